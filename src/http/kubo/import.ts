// `dag/import`: every part is a CAR, and each of its roots becomes an upload, as with `POST
// /add?format=car`.
import { isOn, type KuboCall, optionsIn, refuseOn, sendJson, spellingIn } from './call.ts'
import { checkFile, receiveFiles } from './receiving.ts'

const off: Readonly<Record<string, string>> = {
  'local-only': 'a root is kept whole, or not at all',
  'allow-big-block': 'a block has 2 MiB at most',
}

export async function importCars(call: KuboCall): Promise<void> {
  const { query, response } = call
  const given = optionsIn(query, {})
  refuseOn(given, off)
  const spelled = spellingIn(given)
  // Everything is pinned, as with `add`; the option only controls the response.
  const tellsRoots = isOn(given, 'pin-roots', true)
  const tellsStats = isOn(given, 'stats', false)
  const stats = { BlockCount: 0, BlockBytesCount: 0 }
  const added = await receiveFiles(call, {
    kind: 'cars',
    look: checkFile,
    onCarBlock({ bytes }) {
      stats.BlockCount++
      stats.BlockBytesCount += bytes.byteLength
    },
  })
  const roots = new Set(tellsRoots ? added.map(({ cid }) => spelled(cid)) : [])
  const lines = [...roots].map((root) => ({ Root: { Cid: { '/': root }, PinErrorMsg: '' } }))
  response.setHeader('X-Chunked-Output', '1')
  sendJson(call, ...lines, ...(tellsStats ? [{ Stats: stats }] : []))
}
