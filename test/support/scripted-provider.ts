// A provider that does as it is told, once or always: holds, fails, hangs, lies, breaks off.
import { CID } from 'multiformats/cid'
import type { PinState, Provider, ProviderTraits } from '../../backends/pinning/contract.ts'
import { type Facts, Failure } from '../../src/core/failure.ts'

export type Behaviour = 'holds' | 'dead' | 'lies' | 'breaks' | 'hangs' | 'auth' | 'quota' | 'content' | 'crashes'

export type ScriptedProvider = Provider & {
  behaviour: Behaviour
  /** Milliseconds to be waited for, with a failure that says so. */
  retryAfterMs: number | undefined
  readonly held: Map<string, Buffer>
  /** Of the uploads that it holds. */
  readonly names: (string | undefined)[]
  readonly pins: number
  readonly unpins: string[]
  /** What is under way. */
  readonly asked: number
}

const other = CID.parse('bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy')

export function scriptedProvider(
  name: string,
  behaviour: Behaviour = 'holds',
  traits?: Partial<ProviderTraits>,
): ScriptedProvider {
  let pins = 0
  let asked = 0
  const provider = {
    name,
    behaviour,
    retryAfterMs: undefined as number | undefined,
    traits: { takesBytes: true, local: false, ...traits },
    held: new Map<string, Buffer>(),
    names: [] as (string | undefined)[],
    unpins: [] as string[],
    get pins() {
      return pins
    },
    get asked() {
      return asked
    },
    async pin(upload: Parameters<Provider['pin']>[0], signal: AbortSignal): Promise<CID> {
      pins++
      asked++
      try {
        const fail = (kind: Facts['class']) =>
          new Failure('upstream-error', `provider ${name}: ${kind}`, {
            source: 'provider',
            retryAfterMs: provider.retryAfterMs,
            facts: { class: kind },
          })
        if (provider.behaviour === 'dead') throw fail('transient')
        const said = provider.behaviour
        if (said === 'auth' || said === 'quota' || said === 'content') throw fail(said)
        if (provider.behaviour === 'crashes') throw new TypeError('a bug')
        const pieces: Uint8Array[] = []
        for await (const piece of upload.file(signal)) {
          pieces.push(piece)
          if (provider.behaviour === 'breaks') throw fail('transient')
        }
        if (provider.behaviour === 'hangs')
          await new Promise((_, reject) =>
            signal.addEventListener('abort', () => reject(signal.reason as Error), { once: true }),
          )
        if (provider.behaviour === 'lies') return other
        provider.held.set(upload.cid.toV1().toString(), Buffer.concat(pieces))
        provider.names.push(upload.name)
        return upload.cid
      } finally {
        asked--
      }
    },
    async unpin(cid: CID) {
      provider.unpins.push(cid.toString())
      provider.held.delete(cid.toV1().toString())
    },
    status: async (cid: CID): Promise<PinState> => (provider.held.has(cid.toV1().toString()) ? 'pinned' : 'missing'),
    probe: async () => {},
    close: async () => {},
  }
  return provider
}
