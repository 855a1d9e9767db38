// Shared by all pages of the gateway: one style, no script, nothing loaded. Text from content or requests is escaped,
// never markup.
import { createHash } from 'node:crypto'

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

const style = `:root{color-scheme:light dark;--text:#1c1e21;--dim:#5c6470;--line:#d9dde3;--link:#0b5cad;--paper:#fff;--hover:#f2f5f9}
@media(prefers-color-scheme:dark){:root{--text:#e4e6ea;--dim:#9aa3af;--line:#2c3138;--link:#7ab7ff;--paper:#111418;--hover:#1a1f26}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:64rem;padding:1.5rem 1rem 3rem;font:16px/1.5 system-ui,sans-serif;color:var(--text);background:var(--paper);overflow-wrap:anywhere}
h1{font-size:1.2rem;margin:0 0 .5rem}h2{font-size:1rem;margin:1.5rem 0 .25rem}
a{color:var(--link);text-decoration:none;unicode-bidi:isolate}a:hover,a:focus-visible{text-decoration:underline}
p a,li a,dd a,pre a{text-decoration:underline}
p{margin:.5rem 0}.dim,footer{color:var(--dim);font-size:.875rem}.dim a{margin-right:.75rem}
code,.ipfs-hash,pre{font-family:ui-monospace,monospace;font-size:.85em}pre{white-space:pre-wrap;line-height:1.6}
table{width:100%;border-collapse:collapse;table-layout:fixed;margin:1rem 0}
td{padding:.5rem .25rem;border-top:1px solid var(--line);vertical-align:top}tr:hover td{background:var(--hover)}
td+td{width:8rem;color:var(--dim)}td+td+td{width:6rem;text-align:right;white-space:nowrap}
th{padding:.25rem;text-align:left;font-size:.875rem;font-weight:600;color:var(--dim)}th+th{width:8rem}th+th+th{width:6rem;text-align:right}
.whole{user-select:all}.cut a:first-child{display:inline-block;max-width:14ch;overflow:hidden;text-overflow:ellipsis;white-space:nowrap;vertical-align:bottom}
tbody td:first-child::before{content:"";display:inline-block;width:1.5em;color:var(--dim)}.d td:first-child::before{content:"\\A0"/"Folder";width:.9em;height:.7em;line-height:.7;margin-right:.6em;background:currentColor;clip-path:polygon(0 0,40% 0,50% 20%,100% 20%,100% 100%,0 100%)}.image td:first-child::before{content:"\\25A3"/"Image"}.video td:first-child::before{content:"\\25B6\\FE0E"/"Video"}.audio td:first-child::before{content:"\\266A"/"Audio"}
.d td:first-child::after{content:"/";color:var(--dim)}
@media(max-width:36rem){thead{position:absolute;clip-path:inset(50%)}tr{display:grid;grid-template-columns:1fr auto;border-top:1px solid var(--line);padding:.35rem 0}td{border:0;padding:.15rem .25rem}td:first-child{grid-column:1/3}td+td,td+td+td{width:auto}}`

/** How a policy names a style or script that is written in the page. */
export const sourceHash = (text: string): string => `'sha256-${createHash('sha256').update(text).digest('base64')}'`

export const styleSource = sourceHash(style)

/** Allows only the style above: injected markup could still do nothing. */
export const pagePolicy = `default-src 'none'; style-src ${styleSource}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'`

/** `title` is text; `head` and what follows are markup. */
export const pageTop = (title: string, head = ''): string =>
  `<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1"><title>${shown(title)}</title><style>${style}</style>${head}</head><body>\n`

export const pageEnd = '</body></html>\n'

/** An ETag part for a template: another template is another answer. */
export const templateHash = (sample: string): string => createHash('sha256').update(sample).digest('hex').slice(0, 10)
