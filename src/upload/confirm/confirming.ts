// Confirms one upload while its client waits: asks providers until enough hold it, fills the tiers, and accepts it. It undoes
// an upload that cannot be confirmed.
import type { Provider, Upload } from '../../../backends/pinning/contract.ts'
import { Failure } from '../../core/failure.ts'
import type { Log } from '../../core/log.ts'
import type { Claim, Claims } from '../claims.ts'
import { askAll } from './ask-all.ts'
import type { ProviderAttempt } from './attempt.ts'
import type { Cleanup } from './cleanup.ts'
import type { Delivery } from './delivery.ts'
import type { Quorum } from './quorum.ts'
import type { Retries } from './retries.ts'

export type ConfirmingOptions = {
  readonly providers: readonly Provider[]
  readonly quorum: Quorum
  readonly claims: Claims
  readonly cleanup: Cleanup
  readonly retries: Retries
  readonly log: Log
  /**
   * Fills the tiers once enough providers hold it, before the 200. Returns the shared tiers that lack it. Does not reject.
   * `isKept`: a store of this machine has it.
   */
  readonly onConfirmed: (upload: Upload, signal: AbortSignal, isKept: boolean) => Promise<readonly string[]>
  readonly closing: AbortSignal
  readonly track: <T>(work: Promise<T>) => Promise<T>
}

/** The upload failed only because another one of the same request failed. */
export class OtherFailed extends Error {}

/** `others`: resolves when enough providers hold each upload of the same request. */
export type Confirming = (delivery: Delivery, others: () => Promise<unknown>) => Promise<void>

export function createConfirming(options: ConfirmingOptions): Confirming {
  const { providers, quorum, claims, cleanup, retries, log, onConfirmed, closing, track } = options

  function askOnce(delivery: Delivery): Promise<readonly ProviderAttempt[]> {
    const { stop } = delivery
    return askAll({
      providers,
      quorum,
      entry: () => delivery.entry,
      ask: async (provider) => {
        const attempt = await retries.ask(delivery, provider, stop.signal)
        if (!attempt.isHeld) {
          const { class: kind, why } = attempt
          log('warn', 'upload.provider', { cid: delivery.entry.cid, provider: provider.name, class: kind, why })
        }
        return attempt
      },
      onBegun: (work) => void delivery.asks.add(track(work)),
    })
  }

  async function accept(delivery: Delivery): Promise<void> {
    const owed = await onConfirmed(delivery.upload, closing, quorum.isKeptHere(delivery.entry))
    delivery.happened('ready')
    delivery.change({ owed })
    const isEverywhere = quorum.holders(delivery.entry).length === providers.length && owed.length === 0
    if (!isEverywhere) await cleanup.persist(delivery)
    // Also if every provider has it: a process that finds an entry which does not count asks them again, and undoes the upload
    // when one of them fails then.
    await delivery.write(isEverywhere ? undefined : 'copied')
    delivery.happened('written')
  }

  async function giveUp(delivery: Delivery, claim: Claim | undefined): Promise<void> {
    delivery.happened('failed')
    if (!delivery.isOver) return
    delivery.stop.abort(new Failure('cancelled', 'the upload cannot be confirmed', { source: 'ours' }))
    await Promise.allSettled(delivery.asks)
    await cleanup.undo(delivery, claim)
  }

  return async (delivery, others) => {
    closing.throwIfAborted()
    const onClose = () => delivery.stop.abort(closing.reason)
    closing.addEventListener('abort', onClose, { once: true })
    let claim: Claim | undefined
    try {
      claim = await claims.claim(delivery.entry.cid, () => cleanup.heldLocally(delivery))
      delivery.change({ heldBefore: claim.before })
      await delivery.write()
      const attempts = await askOnce(delivery)
      closing.throwIfAborted()
      if (!quorum.isEnough(delivery.entry) && !quorum.canQueue(attempts)) throw quorum.unconfirmed(attempts)
      delivery.happened('enough')
      await others().catch((cause: unknown) => {
        throw new OtherFailed('one that it came with cannot be confirmed', { cause })
      })
      closing.throwIfAborted()
      await cleanup.offer(delivery)
      await accept(delivery)
      claim.keep()
    } catch (error) {
      // While the gateway closes, the upload stays in the journal for the next process.
      if (!closing.aborted) await giveUp(delivery, claim)
      throw error
    } finally {
      await claim?.leave()
      void Promise.allSettled(delivery.asks).then(() => closing.removeEventListener('abort', onClose))
    }
  }
}
