// `add` as Kubo has it: every part is a file. What would give another CID than a profile of ours is refused, not ignored.
import { type Profile, profiles } from '../../backends/pinning/contract.ts'
import { tooLarge } from '../upload/failures.ts'
import { boundaryOf } from '../upload/part-watch.ts'
import { aroundBytes } from '../upload/receive.ts'
import { badCall, type Call, isTrue, sendJson } from './kubo-call.ts'

type Shape = { readonly chunker: string; readonly links: string; readonly isRaw: boolean }

const shapes: Readonly<Record<Profile, Shape>> = {
  'unixfs-v1-2025': { chunker: 'size-1048576', links: '1024', isRaw: true },
  'unixfs-v0-2015': { chunker: 'size-262144', links: '174', isRaw: false },
}

const wanted: Readonly<Record<string, string>> = {
  'wrap-with-directory': 'false',
  'only-hash': 'false',
  trickle: 'false',
  inline: 'false',
  nocopy: 'false',
  hash: 'sha2-256',
}

export async function addFiles({ request, response, query, deps }: Call): Promise<void> {
  const { uploads } = deps
  boundaryOf(request.headers['content-type'])
  if (Number(request.headers['content-length'] ?? 0) > uploads.maxBytes + aroundBytes) throw tooLarge(uploads.maxBytes)
  const profile = profileOf(query)
  const leave = uploads.enter()
  try {
    if (request.headers.expect !== undefined) response.writeContinue()
    const added = await uploads.receive(request, { parts: 'every', ...(profile && { profile }) })
    const lines = added.map(({ cid, dagBytes, fileName }) => ({
      Name: nameOf(fileName) || cid.toString(),
      Hash: cid.toString(),
      Size: String(dagBytes),
    }))
    response.setHeader('X-Chunked-Output', '1')
    sendJson(response, ...lines)
  } finally {
    leave()
  }
}

/** Undefined: that of the configuration. */
function profileOf(query: URLSearchParams): Profile | undefined {
  for (const [name, value] of Object.entries(wanted)) {
    const asked = query.get(name)
    if (asked !== null && asked !== value) throw badCall(`${name}=${asked} is not done here`)
  }
  const version = query.get('cid-version')
  if (version !== null && version !== '0' && version !== '1') throw badCall(`cid-version=${version} is not 0 or 1`)
  const named = profiles.filter((_, index) => version === null || version === String(1 - index))
  const fits = named.filter((profile) => isOf(shapes[profile], query))
  if (fits.length === 0) throw badCall('these options are not those of unixfs-v1-2025 or unixfs-v0-2015')
  const says = ['cid-version', 'raw-leaves', 'chunker', 'max-file-links'].some((name) => query.has(name))
  return says ? fits[0] : undefined
}

const isOf = ({ chunker, links, isRaw }: Shape, query: URLSearchParams): boolean =>
  (query.get('chunker') ?? chunker) === chunker &&
  (query.get('max-file-links') ?? links) === links &&
  isTrue(query, 'raw-leaves', isRaw) === isRaw

/** Only told back to the client. A folder in it would have to become one, which is not done here. */
function nameOf(fileName: string | undefined): string {
  if (fileName === undefined) return ''
  let name = fileName
  try {
    name = decodeURIComponent(fileName.replaceAll('+', ' '))
  } catch {
    // As Kubo does: what cannot be decoded stays.
  }
  return name.split('/').at(-1) ?? ''
}
