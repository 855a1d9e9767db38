// For the fault matrix, in a process of its own: the content of one row and the upstream that has it. What costs a client much to read costs
// an upstream much to send, and the one that is measured is the gateway.
import { addFile, text } from '../../../support/fixtures.ts'
import { startUpstream } from '../../../support/upstream.ts'
import { type ContentName, contents } from './content.ts'

export type World = { readonly url: string; readonly hot: string; readonly roots: readonly string[] }

const name = process.argv[2] as ContentName
const { blocks, roots, isBlocksOnly, isLost } = await contents[name]()
const { cid: hot } = await addFile(blocks, text(JSON.stringify({ some: 'x'.repeat(1000) })))
const upstream = await startUpstream({ blocks })
const all = roots.map(String)
const silent = new Set(isLost ? all : [])
upstream.fault = ({ url }) => {
  const [cid = ''] = /[^/?]+(?=\?|$)/.exec(url) ?? []
  if (silent.has(cid)) return { kind: 'silent' }
  return isBlocksOnly ? { kind: 'noCar', status: 406 } : undefined
}
// What it writes down would be memory in the end.
setInterval(() => {
  upstream.seen.length = 0
}, 1000).unref()
process.on('disconnect', () => process.exit(0))
process.send?.({ url: upstream.url, hot: String(hot), roots: all } satisfies World)
