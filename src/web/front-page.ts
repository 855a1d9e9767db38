// The first page: what this is, a field for an address of content, and, where this client may upload, a place for files.
// Everything stands in the page itself, and its policy names each part by its hash.
import { contactLink, whoAnswers } from './contact.ts'
import { frontScript } from './front-script.ts'
import { inUnits } from './listing.ts'
import { escaped, pageEnd, pageTop, shown, sourceHash, styleSource } from './page.ts'

export type FrontFacts = {
  readonly version: string
  /** The name that the operator gave the gateway. */
  readonly name: string
  /** The path under which an application mounted the gateway; empty at the root. */
  readonly base: string
  /** `closed`: this gateway takes none of this client. */
  readonly uploads: 'open' | 'token' | 'closed'
  readonly mostBytes: number
  readonly contact: string | undefined
}

/** `forms`: hosts besides this one that the field may lead to, since browsers hold the policy against redirects as well. */
export const frontPolicy = (forms: readonly string[]): string =>
  `default-src 'none'; style-src ${styleSource}; script-src ${sourceHash(frontScript)}; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action ${["'self'", ...forms].join(' ')}; frame-ancestors 'none'`

export function frontPage(facts: FrontFacts): string {
  const { version, name, base, uploads, contact } = facts
  const icon = `${escaped(base)}/favicon.svg`
  const said = contact === undefined ? '' : `<li>${whoAnswers} ${contactLink(contact)}</li>\n`
  return `${pageTop(name, `<link rel="icon" href="${icon}">`)}<main class="narrow"><h1 class="brand"><img src="${icon}" alt="" width="40" height="40">${shown(name)}</h1>
<p>An IPFS gateway. Files here are addressed by what is in them: a CID is made of the bytes. Every byte is checked against the CID that you asked for before you get it.</p>
<form action="${escaped(base)}/ipfs/" method="get"><label for="uri">A CID, an ipfs:// address, or a name</label>
<input type="text" id="uri" name="uri" required autocomplete="off" autocapitalize="none" spellcheck="false" placeholder="ipfs://bafy…"><button>Open</button></form>
${uploads === 'open' ? uploadArea(facts) : ''}${uploads === 'token' ? '<p>Uploads need a token of the operator here.</p>\n' : ''}<h2>More</h2>
<ul><li><a href="${escaped(base)}/openapi.json">The description of the API</a>, for people here and for programs</li>
<li><a href="https://docs.ipfs.tech/concepts/what-is-ipfs/" rel="noreferrer">What IPFS is</a></li>
${said}</ul></main>
<footer>cidgate ${escaped(version)}</footer>
${uploads === 'open' ? `<script>${frontScript}</script>\n` : ''}${pageEnd}`
}

function uploadArea({ base, mostBytes }: FrontFacts): string {
  const folder = '<label class="pick scripted" hidden>A folder<input type="file" webkitdirectory></label>'
  return `<h2>Upload</h2>
<form id="upload" action="${escaped(base)}/add" method="post" enctype="multipart/form-data">
<p>Drop files or a folder here, or choose them. Up to ${inUnits(mostBytes)}. What is uploaded can be read by everybody who knows its CID.</p>
<label class="pick">Files<input type="file" name="data" multiple required></label>${folder}<button type="submit">Upload</button>
<progress max="1" value="0" hidden aria-label="Upload"></progress></form>
<div id="result" role="status"></div>
`
}

/** A hexagon, as CIDs are drawn. */
export const icon = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><path d="M16 2 28 9v14l-12 7-12-7V9z" fill="#0b5cad"/><path d="M16 9v14M10 12.500l12 7M22 12.500l-12 7" stroke="#fff" stroke-width="2.500" stroke-linecap="round"/></svg>
`
