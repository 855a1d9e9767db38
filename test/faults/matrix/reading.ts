// What a client of the matrix gets: a file that is complete and true, an error, or an answer that is cut. Anything else is false.
import { setTimeout as sleep } from 'node:timers/promises'
import type { FileFixture } from '../../support/fixtures.ts'
import { fetchAll } from '../../support/gateway.ts'

export type Got = { readonly outcome: 'complete' | 'cut' | 'false' | number; readonly ms: number }

export async function read(base: string, { cid, bytes }: FileFixture): Promise<Got> {
  const began = performance.now()
  const got = await fetchAll(`${base}/ipfs/${cid}`).catch(() => undefined)
  const ms = performance.now() - began
  if (!got) return { outcome: 'cut', ms }
  if (got.status !== 200) return { outcome: got.status, ms }
  return { outcome: got.body.equals(bytes) ? 'complete' : 'false', ms }
}

/** How long it took until a file was complete; each is asked for once, since what was not found is remembered for a while. */
export async function untilWhole(
  base: string,
  next: () => Promise<FileFixture | undefined>,
  withinMs: number,
): Promise<number> {
  const began = performance.now()
  for (let file = await next(); file && performance.now() - began < withinMs; file = await next()) {
    const { outcome } = await read(base, file)
    if (outcome === 'complete') return performance.now() - began
    await sleep(50)
  }
  return Number.POSITIVE_INFINITY
}
