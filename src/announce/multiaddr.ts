// Multiaddrs of HTTP servers, in the binary form that announcements carry.
import { isIPv4 } from 'node:net'
import type { CID } from 'multiformats/cid'
import { parseKey } from '../core/cid.ts'

const withText = { dns: 0x35, dns4: 0x36, dns6: 0x37, sni: 0x01c1, 'http-path': 0x01e1 } as const
const alone = { https: 0x01bb, tls: 0x01c0, http: 0x01e0 } as const

/** Both spellings of an HTTPS server, `/https` and `/tls/http`: some clients know only one. */
export function addressesOf(url: URL): readonly string[] {
  const name = url.hostname
  const port = url.port || (url.protocol === 'https:' ? '443' : '80')
  const host = isIPv4(name) ? `/ip4/${name}` : name.startsWith('[') ? `/ip6/${name.slice(1, -1)}` : `/dns/${name}`
  const at = `${host}/tcp/${port}`
  return url.protocol === 'https:' ? [`${at}/https`, `${at}/tls/http`] : [`${at}/http`]
}

/** Throws a TypeError for an unknown or malformed component. */
export function multiaddrBytes(text: string): Uint8Array {
  const [empty, ...words] = text.split('/')
  if (empty !== '') throw new TypeError(`${text} is no multiaddr`)
  const pieces: Uint8Array[] = []
  while (words.length > 0) {
    const kind = words.shift() as string
    if (kind in alone) pieces.push(varint(alone[kind as keyof typeof alone]))
    else pieces.push(component(kind, words.shift() ?? ''))
  }
  return Buffer.concat(pieces)
}

function component(kind: string, value: string): Uint8Array {
  if (kind === 'tcp') return Buffer.from([0x06, Number(value) >> 8, Number(value) & 0xff])
  if (kind === 'ip4') return Buffer.from([0x04, ...value.split('.').map(Number)])
  if (kind === 'ip6') return Buffer.concat([varint(0x29), ip6Bytes(value)])
  if (kind === 'p2p') {
    const key: CID | undefined = parseKey(value)
    if (!key) throw new TypeError(`${value} is no peer ID`)
    return prefixed(0x01a5, key.multihash.bytes)
  }
  if (!(kind in withText)) throw new TypeError(`/${kind} is not known`)
  return prefixed(withText[kind as keyof typeof withText], Buffer.from(decodeURIComponent(value)))
}

const prefixed = (code: number, bytes: Uint8Array): Uint8Array =>
  Buffer.concat([varint(code), varint(bytes.byteLength), bytes])

function ip6Bytes(text: string): Uint8Array {
  const [head = '', tail] = text.split('::')
  const groups = (part: string) => (part === '' ? [] : part.split(':').map((group) => Number.parseInt(group, 16)))
  const [first, last] = [groups(head), groups(tail ?? '')]
  const middle = tail === undefined ? [] : Array.from({ length: 8 - first.length - last.length }, () => 0)
  return Buffer.from([...first, ...middle, ...last].flatMap((group) => [group >> 8, group & 0xff]))
}

export function varint(value: number): Uint8Array {
  const bytes: number[] = []
  for (let rest = value; ; rest >>>= 7) {
    if (rest < 0x80) return Buffer.from([...bytes, rest])
    bytes.push((rest & 0x7f) | 0x80)
  }
}
