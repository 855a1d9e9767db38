// The answers about pins that an operator gets, by the admin address and by the commands. Nothing of Node is imported here, so that
// the scripts of the dashboard can be checked against it.
import type { Facts } from '../core/failure.ts'

/** Where one provider stands with an upload. */
export type ProviderState = {
  /** `abandoned`: an operator decided it. */
  readonly state: 'pending' | 'pinned' | 'abandoned'
  readonly tries: number
  readonly class?: Facts['class']
  readonly why?: string
  /** Milliseconds since the epoch; the provider is not asked before. */
  readonly notBefore?: number
}

export type Standing = ProviderState['state'] | 'missing'

export type Pin = {
  readonly cid: string
  /** As its uploader called it. */
  readonly name?: string
  readonly bytes: number
  readonly at: string
  /** Some provider or shared tier is still to get it. */
  readonly isOpen: boolean
  readonly providers: Readonly<Record<string, Omit<ProviderState, 'state'> & { readonly state: Standing }>>
}

/** An upload that some provider or shared tier is still to get. */
export type WaitingUpload = {
  readonly cid: string
  readonly bytes: number
  readonly at: string
  readonly providers: Readonly<Record<string, ProviderState>>
  /** Shared tiers that lack blocks of it. */
  readonly pendingTiers: readonly string[]
}

/** `next`: where the following page begins; undefined: there is none. */
export type Page = { readonly pins: readonly Pin[]; readonly next: string | undefined }

export type Verified = {
  readonly provider: string
  readonly state: 'pinned' | 'damaged' | 'missing' | 'queued' | 'failed' | 'not-asked' | 'unknown'
  /** Blocks that were read and hashed, of a provider of this machine. */
  readonly blocks?: number
  readonly bytes?: number
  /** Blocks that are missing or not what they should be, the first of them. */
  readonly damaged?: readonly string[]
  readonly why?: string
}
export type Verification = { readonly cid: string; readonly isWell: boolean; readonly providers: readonly Verified[] }

/**
 * `still-pinned`: it was asked, and has it all the same. `not-asked`: no provider of that name is configured. `not-known`: it says that
 * it has none, but was being sent it and may pin what it got later on.
 */
export type Removed = {
  readonly provider: string
  readonly outcome: 'removed' | 'missing' | 'still-pinned' | 'failed' | 'not-asked' | 'not-known'
  readonly why?: string
}
/** `isGone`: no provider has it any more, as far as they say. */
export type Removal = { readonly cid: string; readonly isGone: boolean; readonly providers: readonly Removed[] }

/** `to`: the providers that it is on its way to. */
export type Brought = { readonly cid: string; readonly to: readonly string[] }

/** `isGone`: neither a provider nor a tier is known to have it. `pins`: what each provider said; null: no provider had it. */
export type TakenDown = {
  readonly cid: string
  readonly isGone: boolean
  readonly pins: Removal | null
  /** Deleted from the tiers. */
  readonly blocks: number
  /** Blocks below it that stay, because another pin on this machine needs them. */
  readonly kept: number
  /** Reasons why blocks could not be found or purged. */
  readonly failures: readonly string[]
}
