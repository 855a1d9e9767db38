// Entries of the ledger as an operator sees them: each provider by its name, the store of this gateway as the provider that keeps
// uploads in it, whatever its name was when they came.
import type { Provider } from '../../../backends/pinning/contract.ts'
import type { Entry, Standing as HolderStanding } from '../../store/store.ts'
import { nameOf } from '../stored-upload.ts'
import type { Pin, ProviderState, WaitingUpload } from './told.ts'

export type View = {
  /** The providers that hold it or are to get it, by name. */
  providersOf(entry: Entry): Record<string, ProviderState>
  /** With `missing` for each configured provider that neither holds it nor is to get it. */
  pinOf(entry: Entry): Pin
  waitingOf(entry: Entry): WaitingUpload
}

export const isWanted = ({ holders }: Entry): boolean => Object.values(holders).some(({ state }) => state === 'pending')

export function createView(providers: readonly Provider[], own: Provider | undefined): View {
  const absent = providers.map(({ name }) => [name, { state: 'missing', tries: 0 }] as const)

  const nameFor = (name: string, { kind }: HolderStanding): string => (kind === 'here' && own ? own.name : name)

  const providersOf: View['providersOf'] = ({ holders }) =>
    Object.fromEntries(
      Object.entries(holders).flatMap(([name, { kind: _, ...standing }]) => {
        const holder = holders[name] as HolderStanding
        return holder.kind === 'tier' ? [] : [[nameFor(name, holder), standing as ProviderState]]
      }),
    )
  const told = ({ cid, bytes, at }: Entry) => ({ cid: cid.toString(), bytes, at: new Date(at).toISOString() })

  return {
    providersOf,
    pinOf: (entry) => ({
      ...told(entry),
      ...(entry.name !== undefined && { name: entry.name }),
      isOpen: isWanted(entry),
      providers: { ...Object.fromEntries(absent), ...providersOf(entry) },
    }),
    waitingOf: (entry) => ({
      ...told(entry),
      cid: nameOf(entry.cid),
      providers: providersOf(entry),
      owed: Object.entries(entry.holders).flatMap(([name, { kind }]) => (kind === 'tier' ? [name] : [])),
    }),
  }
}
