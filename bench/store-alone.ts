// For bench/stores.ts: what the S3 store brings by itself, in a process of its own, with nothing behind it that proves, keeps
// or sends. A gateway cannot be quicker. Reads the root of each file, then all the rest at once, and prints MB/s for each.
import { S3Store } from '../backends/tiers/s3-store.ts'

type Job = { readonly s3: ConstructorParameters<typeof S3Store>[0]; readonly files: readonly (readonly string[])[] }

process.once('message', async ({ s3, files }: Job) => {
  const store = new S3Store({ ...s3, prefix: 'blocks/', holds: 'blocks' })
  await store.get('not-there') // the library is loaded, as it is in a gateway that looked for something
  const rates: number[] = []
  for (const [root = '', ...rest] of files) {
    const began = performance.now()
    const blocks = [await store.get<Buffer>(root), ...(await Promise.all(rest.map((key) => store.get<Buffer>(key))))]
    const bytes = blocks.reduce((sum, block) => sum + Buffer.byteLength((block as Buffer | undefined) ?? ''), 0)
    rates.push(bytes / 1000 / (performance.now() - began))
  }
  await store.disconnect()
  process.send?.(rates)
  process.disconnect()
})
