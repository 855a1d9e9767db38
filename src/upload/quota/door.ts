// Uploads as clients reach them: each door says which client it is, and the quota of its token holds at all of them.

import type { IncomingMessage } from 'node:http'
import type { Block } from '../../core/cid.ts'
import type { UploadSlot } from '../intake/admission.ts'
import type { Added, AddOptions, Uploads } from '../uploads.ts'
import type { NamedQuota, Quotas, QuotaUse } from './quotas.ts'

/** A client, as far as limits go, with the quota of the token that it sent. */
export type Uploader = string | { readonly client: string; readonly quota: NamedQuota }

/** What only computes a CID uses no quota up, and none refuses it. */
export const withoutQuota = (who: Uploader): Uploader => (typeof who === 'string' ? who : who.client)

type Receiving = {
  /** `least`: bytes that it will bring at any rate, by its Content-Length. */
  enter(who: Uploader, signal?: AbortSignal, least?: number): Promise<UploadSlot>
  receive(request: IncomingMessage, options?: AddOptions): Promise<Added[]>
}

export type UploadDoor = Omit<Uploads, keyof Receiving> & Receiving

/** `keep`: commits what was used, where the upload itself is not committed here. */
export const withQuotas = (
  side: Pick<Uploads, keyof Receiving>,
  quotas: Quotas,
  keep?: (use: ReturnType<QuotaUse['use']>) => Promise<void>,
): Receiving => ({
  async enter(who, signal, least) {
    if (typeof who === 'string') return side.enter(who, signal)
    await quotas.ready
    const quota = quotas.begin(who.quota, least)
    try {
      const slot = await side.enter(who.client, signal)
      const leave = () => {
        slot.leave()
        quota.end()
      }
      return { ...slot, quota, leave }
    } catch (error) {
      quota.end()
      throw error
    }
  },
  async receive(request, own = {}) {
    const { slot } = own
    if (!slot?.quota) return side.receive(request, own)
    const added = await side.receive(request, own)
    const use = slot.quota.use()
    slot.quota.accept()
    await keep?.(use)
    return added
  },
})

/** The same for a DAG that exists already. */
export const keepWithin =
  (keep: Uploads['keep']): Uploads['keep'] =>
  async (root, blocks, slot, name) => {
    const { quota } = slot ?? {}
    await keep(root, quota ? counted(blocks, (bytes) => quota.add(bytes)) : blocks, slot, name)
    quota?.accept()
  }

async function* counted(blocks: AsyncIterable<Block>, add: (bytes: number) => void): AsyncGenerator<Block> {
  for await (const block of blocks) {
    add(block.bytes.byteLength)
    yield block
  }
}
