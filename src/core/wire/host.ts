// Whether a Host header is a host and perhaps a port (RFC 9110 §7.2, RFC 3986 §3.2.2). Whatever else it says (a name before an @, a
// space, a port that is none) another parser could read as another host.
import { isIPv6 } from 'node:net'

const form =
  /^(?:(?:[\w.~!$&'()*+,;=-]|%[\da-f]{2})*|\[(?:([\da-f:.]+)|v[\da-f]+\.[\w.~!$&'()*+,;=:-]+)\])(?::(\d*))?$/i
const highestPort = 65_535

/** Clients ask for a handful of hosts. A client that makes many up costs its own requests a look each. */
const mostKnown = 256
const longestKnown = 260

/** The same with a memory, for what is answered in microseconds: five times as quick. */
export function createHostCheck(): (host: string) => boolean {
  const known = new Set<string>()
  return (host) => {
    if (known.has(host)) return true
    if (!isHost(host)) return false
    if (known.size >= mostKnown) known.clear()
    if (host.length <= longestKnown) known.add(host)
    return true
  }
}

/** Empty too: a client sends that where its URL has no host (RFC 9112 §3.2). */
export function isHost(text: string): boolean {
  const [whole, address, port = ''] = form.exec(text) ?? []
  if (whole === undefined || Number(port) > highestPort) return false
  return address === undefined || isIPv6(address)
}
