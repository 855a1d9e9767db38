// A problem as a page, for people. What a request brought is text in it and never markup.
import type { Attempt } from '../observe/account.ts'

export type Problem = {
  readonly title: string
  readonly status: number
  readonly detail: string
  readonly attempts?: readonly Attempt[] | undefined
}

export const pageHeaders: readonly (readonly [name: string, value: string])[] = [
  ['Content-Type', 'text/html; charset=utf-8'],
  ['Content-Security-Policy', "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"],
  ['Vary', 'Accept'],
]

const escapes: Readonly<Record<string, string>> = {
  '&': '&amp;',
  '<': '&lt;',
  '>': '&gt;',
  '"': '&quot;',
  "'": '&#39;',
}
const escaped = (text: string): string => text.replace(/[&<>"']/g, (char) => escapes[char] ?? '')

const style = `body{font:16px/1.5 system-ui,sans-serif;margin:10vh auto;max-width:42rem;padding:0 1rem;color:#222;background:#fff}
p{overflow-wrap:anywhere}td{padding:.2rem 1.5rem .2rem 0;border-top:1px solid #8884}
@media(prefers-color-scheme:dark){body{color:#ddd;background:#111}}`

export function problemPage({ title, status, detail, attempts = [] }: Problem): string {
  const rows = attempts.map(
    ({ upstream, outcome, ms }) =>
      `<tr><td>${escaped(upstream)}</td><td>${escaped(outcome)}</td><td>${Math.round(ms)} ms</td></tr>`,
  )
  const asked = rows.length > 0 ? `<h2>Who was asked</h2><table>${rows.join('')}</table>` : ''
  return `<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>${status} ${escaped(title)}</title><style>${style}</style><h1>${status} ${escaped(title)}</h1><p>${escaped(detail)}</p>${asked}</html>\n`
}
