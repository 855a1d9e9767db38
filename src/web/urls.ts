// Where a page is and what it links to: under its own host, under that of the gateway, or, on a site that has no gateway
// beside it, to a page that explains CIDs.
import { escaped, shown } from './page.ts'

export type Whereabouts = {
  readonly namespace: 'ipfs' | 'ipns'
  /** The CID or name, as it was asked for. */
  readonly root: string
  /** Names below it, decoded. */
  readonly segments: readonly string[]
  /** The root as the host that was asked has it: `/ipfs/<cid>` where the routes are mounted, or nothing on an origin of its own. */
  readonly base: string
  /** Before `/ipfs/…`: where the routes of the host that was asked are mounted, `//host` for another. Undefined: there is none. */
  readonly gateway: string | undefined
  /** Of a site without a gateway. */
  readonly host: string
}

/** As the paths of URLs hold them, with what may stay readable left readable. */
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

/** The attributes of a link to a CID. `filename` is what it is called here: the type of a file often hangs on that. */
export function cidLink({ gateway }: Whereabouts, cid: string, filename?: string): string {
  if (gateway === undefined) return `href="https://cid.ipfs.tech/#${cid}" target="_blank" rel="noreferrer noopener"`
  // Encoded as a path and then as a query, as every gateway before this one does it.
  const query = filename === undefined ? '' : `?filename=${encodeURIComponent(encodeName(filename))}`
  return `href="${escaped(`${gateway}/ipfs/${cid}${query}`)}"`
}

export const shortCid = (cid: string): string => (cid.length <= 12 ? cid : `${cid.slice(0, 4)}…${cid.slice(-4)}`)
