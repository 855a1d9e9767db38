// Parts of all pages of the gateway: one style, no script, nothing loaded, links, and the rights of
// files in a browser. Text from content or requests is escaped, never markup.
import { createHash } from 'node:crypto'
import type { CID } from 'multiformats/cid'

const escapes: Readonly<Record<string, string>> = {
  '&': '&amp;',
  '<': '&lt;',
  '>': '&gt;',
  '"': '&quot;',
  "'": '&#39;',
}

export const escaped = (text: string): string =>
  text.toWellFormed().replace(/[&<>"']/g, (char) => escapes[char] as string)

/** A name as people see it: characters that reverse the line or are invisible are replaced. */
export const shown = (name: string): string =>
  escaped(name.replace(/[\p{Cc}\p{Zl}\p{Zp}\u202a-\u202e\u2066-\u2069]/gu, '\ufffd'))

/** The one style sheet: colours and parts of all public pages, and the base of the dashboard's. */
export const style = `:root{color-scheme:light dark;--text:#1c1e21;--dim:#59616d;--line:#d9dde3;--link:#0b5cad;--paper:#fff;--hover:#f2f5f9;--good:#0b6b3a;--warn:#7a4b00;--bad:#a4161a;--key:#6b2fa0}
@media(prefers-color-scheme:dark){:root{--text:#e4e6ea;--dim:#9aa3af;--line:#2c3138;--link:#7ab7ff;--paper:#111418;--hover:#1a1f26;--good:#8ce0ae;--warn:#ffd480;--bad:#ffb3b0;--key:#d2a8ff}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:64rem;padding:1.5rem 1rem 3rem;font:16px/1.5 system-ui,sans-serif;color:var(--text);background:var(--paper);overflow-wrap:anywhere}
h1{font-size:1.2rem;margin:0 0 .5rem}h2{font-size:1rem;margin:1.5rem 0 .25rem}
a{color:var(--link);text-decoration:none;unicode-bidi:isolate}a:hover,a:focus-visible{text-decoration:underline}
p a,li a,dd a,pre a{text-decoration:underline}
p{margin:.5rem 0}.dim,footer{color:var(--dim);font-size:.875rem}.dim a{margin-right:.75rem}
code,.ipfs-hash,pre{font-family:ui-monospace,monospace;font-size:.85em}pre{white-space:pre-wrap;line-height:1.6}pre .ipfs-hash{font-size:1em}
.text{max-width:76ch;margin:1.5rem 0}.whole{user-select:all}.k{color:var(--key)}.s{color:var(--good)}.n{color:var(--warn)}
table{width:100%;border-collapse:collapse;table-layout:fixed;margin:1rem 0}
th{padding:.25rem;text-align:left;font-size:.875rem;font-weight:600;color:var(--dim)}
td{padding:.5rem .25rem;border-top:1px solid var(--line);vertical-align:top}
.list tbody tr:hover td{background:var(--hover)}
.list td+td,.list th+th{width:9.5rem;color:var(--dim)}.list td+td+td,.list th+th+th{width:6rem;text-align:right;white-space:nowrap}
.list svg{width:1.15em;height:1.15em;margin-right:.5em;vertical-align:-.2em;fill:none;stroke:var(--dim);stroke-width:1.5;stroke-linejoin:round}
.list .d svg{fill:var(--link);fill-opacity:.25;stroke:var(--link)}.d td:first-child::after{content:"/";color:var(--dim)}
input,select,button,.pick{font:inherit;color:inherit;background:var(--paper);border:1px solid var(--dim);border-radius:.35rem;padding:.4rem .7rem}
button,.pick,summary{cursor:pointer}button:hover,.pick:hover,summary:hover{background:var(--hover)}
:focus-visible,.pick:focus-within{outline:2px solid var(--link);outline-offset:2px}
.pick{display:inline-block;position:relative}.pick input{position:absolute;opacity:0;width:1px;height:1px}
progress{width:100%}[hidden]{display:none!important}
.brand{display:flex;align-items:center;gap:.75rem;font-size:1.4rem}.brand img{width:2.5rem;height:2.5rem;object-fit:contain}
.narrow form{margin:.75rem 0;display:flex;flex-wrap:wrap;gap:.5rem}.narrow label:not(.pick),.narrow form p,.narrow progress{flex:1 0 100%;margin:0}
.narrow input[type=text]{flex:1 1 14rem;min-width:0}.narrow{max-width:44rem}.narrow ul{padding-left:1.25rem}
#upload{border:2px dashed var(--line);border-radius:.5rem;padding:1rem}#upload.over{border-color:var(--link)}
.fold{border:1px solid var(--line);border-radius:.5rem;margin:.5rem 0;padding:0 .75rem}.fold>summary{margin:0 -.75rem;padding:.5rem .75rem;border-radius:.5rem}
.fold h2{display:inline;font-size:1em;font-weight:400}.fold [id]{scroll-margin-top:4rem}.fold pre{background:var(--hover);border-radius:.35rem;padding:.6rem .75rem;margin:.5rem 0}
.method{display:inline-block;min-width:3.6rem;text-align:center;border-radius:.3rem;margin-right:.5rem;padding:.05rem .3rem;font-weight:600;color:var(--paper);background:var(--link)}
.post{background:var(--good)}.delete{background:var(--bad)}.put{background:var(--warn)}
dl{margin:.25rem 0}dt{font-weight:600}dd{margin:0 0 .35rem 1rem}
@media(max-width:36rem){.list thead{position:absolute;clip-path:inset(50%)}.list tr{display:grid;grid-template-columns:1fr auto;border-top:1px solid var(--line);padding:.35rem 0}.list td{border:0;padding:.15rem .25rem}.list td:first-child{grid-column:1/3}.list td+td,.list td+td+td{width:auto}.fold h2 span{display:block}}`

/** The source expression by which a policy allows an inline style or script. */
export const sourceHash = (text: string): string => `'sha256-${createHash('sha256').update(text).digest('base64')}'`

export const styleSource = sourceHash(style)

/** Allows only the style above: injected markup could still do nothing. */
export const pagePolicy = `default-src 'none'; style-src ${styleSource}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'`

/** `title` is text; `head` and what follows are markup. */
export const pageTop = (title: string, head = ''): string =>
  `<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1"><title>${shown(title)}</title><style>${style}</style>${head}</head><body>\n`

export const pageEnd = '</body></html>\n'

/** An ETag part that changes with the template. */
export const templateHash = (sample: string): string => createHash('sha256').update(sample).digest('hex').slice(0, 10)

/**
 * The position of a page. Its links lead to its own host, to the gateway's host or, on a site
 * without a gateway, to a page that explains CIDs.
 */
export type Whereabouts = {
  readonly namespace: 'ipfs' | 'ipns'
  /** The CID or name as requested. */
  readonly root: string
  /** Names below it, decoded. */
  readonly segments: readonly string[]
  /** The URL path of the root: `/ipfs/<cid>` below the mount path; empty on its own origin. */
  readonly base: string
  /** The prefix of `/ipfs/…` links: the mount path, or `//host`. Undefined without a gateway. */
  readonly gateway: string | undefined
  /** The host of the site, shown if there is no gateway to link to. */
  readonly host: string
}

/** Encodes a name for a URL path; readable characters stay. */
export const encodeName = (name: string): string =>
  encodeURIComponent(name.toWellFormed()).replace(/%(24|26|2B|2C|3A|3B|3D|40)/g, (hex) => decodeURIComponent(hex))

export const joined = (base: string, segments: readonly string[]): string =>
  [base, ...segments.map(encodeName)].join('/')

/** The URL of the directory, with the slash that relative links need. */
export const directoryUrl = ({ base, segments }: Whereabouts): string => `${joined(base, segments)}/`

/** False for a name that browsers would resolve as a path step. */
export const isLinkable = (name: string): boolean => name !== '' && name !== '.' && name !== '..' && !/[/\0]/.test(name)

/** `/ipfs/<a>…</a>/<a>…</a>`: each step of the path as a link. */
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

// These types need no policy; an unknown type is sandboxed.
const harmless =
  /^(?:image\/(?!svg)|video\/|audio\/|font\/|text\/(?:plain|css|csv|javascript|markdown|calendar|vcard|vtt|tab-separated-values)(?:;|$)|application\/(?:json|pdf|wasm|zip|gzip|x-tar|octet-stream|cbor|yaml|toml)$|application\/vnd\.ipld\.)/

// Links on such a page still work, and its files can be saved.
const sandbox = 'sandbox allow-downloads allow-popups allow-popups-to-escape-sandbox'

/** Undefined means no policy: a PDF viewer, for example, refuses to work in a sandbox. */
export function policyFor(type: string, { own }: { readonly own: boolean }): string | undefined {
  return own || harmless.test(type) ? undefined : sandbox
}

export const whoAnswers = 'Who answers for this gateway:'

export const contactHref = (contact: string): string =>
  /^(https?|mailto):/i.test(contact) ? contact : `mailto:${contact}`

/** A link to the contact address, shown without `mailto:`. */
export const contactLink = (contact: string): string =>
  `<a href="${escaped(contactHref(contact))}">${escaped(contact.replace(/^mailto:/i, ''))}</a>`

const top = (name: string): string => `${pageTop(name)}<h1>${shown(name)}</h1>
<p class="dim"><a href="?download=true">Download</a></p>
<pre class="text">`
const bottom = `</pre>\n${pageEnd}`

/**
 * Reads the first bytes before yielding the top, so that an earlier failure can still be an error
 * response.
 */
export async function* textPage(name: string, cid: CID, bytes: AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array> {
  const decoder = new TextDecoder()
  let before = top(name === '' ? cid.toString() : name)
  for await (const piece of bytes) {
    yield Buffer.from(before + escaped(decoder.decode(piece, { stream: true })))
    before = ''
  }
  yield Buffer.from(before + escaped(decoder.decode()) + bottom)
}

const template = templateHash(top('') + bottom)

export const textEtag = (cid: CID): string => `W/"Text-${template}_CID-${cid}"`
