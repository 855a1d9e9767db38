// URLs of pages and their links: under the page's own host, under the gateway's host, or, on a site without a gateway,
// on a page that explains CIDs.
import { escaped, shown } from './page.ts'

export type Whereabouts = {
  readonly namespace: 'ipfs' | 'ipns'
  /** The CID or name, as it was asked for. */
  readonly root: string
  /** Names below it, decoded. */
  readonly segments: readonly string[]
  /** The URL path of the root on this host: `/ipfs/<cid>` below the mount path, or empty on its own origin. */
  readonly base: string
  /** The prefix of `/ipfs/…` links: the mount path, or `//host` of another host. Undefined: there is no gateway. */
  readonly gateway: string | undefined
  /** The host of a site; shown where there is no gateway to link to. */
  readonly host: string
}

/** Encodes a name for a URL path; readable characters stay. */
export const encodeName = (name: string): string =>
  encodeURIComponent(name.toWellFormed()).replace(/%(24|26|2B|2C|3A|3B|3D|40)/g, (hex) => decodeURIComponent(hex))

export const joined = (base: string, segments: readonly string[]): string =>
  [base, ...segments.map(encodeName)].join('/')

/** The address of the directory itself, with the slash that relative links need. */
export const directoryUrl = ({ base, segments }: Whereabouts): string => `${joined(base, segments)}/`

/** A name that no URL can hold: a browser would take it for a step in the path. */
export const isLinkable = (name: string): boolean => name !== '' && name !== '.' && name !== '..' && !/[/\0]/.test(name)

/** `/ipfs/<a>…</a>/<a>…</a>`: every step of the path, as a link. */
export function breadcrumbs(at: Whereabouts): string {
  const { namespace, root, segments, gateway, host } = at
  const base = gateway === undefined ? `//${host}` : `${gateway}/${namespace}/${root}`
  const steps = [root, ...segments].map((name, index) => {
    const href = index === 0 && gateway === undefined ? `${base}/` : joined(base, segments.slice(0, index))
    return `<a href="${escaped(href)}">${shown(name)}</a>`
  })
  return `/${namespace}/${steps.join('/')}`
}

/** The attributes of a link to a CID. `filename` helps the gateway to find the media type. */
export function cidLink({ gateway }: Whereabouts, cid: string, filename?: string): string {
  if (gateway === undefined) return `href="https://cid.ipfs.tech/#${cid}" target="_blank" rel="noreferrer noopener"`
  // Encoded twice, as a path and as a query: other gateways do the same.
  const query = filename === undefined ? '' : `?filename=${encodeURIComponent(encodeName(filename))}`
  return `href="${escaped(`${gateway}/ipfs/${cid}${query}`)}"`
}

export const shortCid = (cid: string): string => (cid.length <= 18 ? cid : `${cid.slice(0, 9)}…${cid.slice(-6)}`)
