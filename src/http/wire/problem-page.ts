// A problem as a page for people: what happened, which upstreams were asked, and what to do. Text from the request is
// escaped.
import type { FailureKind } from '../../core/failure.ts'
import type { Attempt } from '../../observe/account.ts'
import { escaped, pageEnd, pagePolicy, pageTop, shown } from '../../web/page.ts'

export type Problem = {
  readonly title: string
  readonly status: number
  readonly kind: FailureKind
  readonly detail: string
  readonly attempts?: readonly Attempt[] | undefined
  readonly requestId?: string | undefined
}

export const pageHeaders: readonly (readonly [name: string, value: string])[] = [
  ['Content-Type', 'text/html; charset=utf-8'],
  ['Content-Security-Policy', pagePolicy],
]

const nextSteps: Readonly<Record<number, string>> = {
  400: 'Check the address: a letter may be missing at its beginning or end.',
  401: 'Ask the operator of this gateway for access.',
  404: 'Check the address. New content may take a minute to be found: this gateway goes on searching, so try again soon.',
  406: 'Ask for it without a format, or for its blocks with ?format=raw or ?format=car.',
  410: 'Another address on this gateway will not help. The operator can say why.',
  412: 'Ask again without Cache-Control: only-if-cached.',
  429: 'Wait a moment, then try again.',
  451: 'Another address on this gateway will not help. The operator can say why.',
  500: 'If this happens again, tell the operator of this gateway.',
  502: 'The services that may have this content cannot be reached now. Try again later.',
  503: 'Try again in a second.',
  504: 'It may exist and be slow to find: this gateway goes on searching, so try again soon.',
}

const nextStep = ({ kind, status }: Problem): string | undefined => {
  // A path that is proved not to exist will not appear later.
  if (kind === 'no-link') return 'Check the address: this path is proved not to exist.'
  if (kind === 'malformed' && status === 500)
    return 'The content was published with this mistake: only its author can fix it.'
  return nextSteps[status]
}

export function problemPage(problem: Problem): string {
  const { title, status, detail, attempts = [], requestId } = problem
  const rows = attempts.map(
    ({ upstream, outcome, ms }) =>
      `<tr><td>${shown(upstream)}</td><td>${shown(outcome)}</td><td>${Math.round(ms)} ms</td></tr>\n`,
  )
  const asked = rows.length > 0 ? `<h2>Upstreams that were asked</h2>\n<table>\n${rows.join('')}</table>\n` : ''
  const next = nextStep(problem)
  const request = requestId === undefined ? '' : `<p>Request ${shown(requestId)}</p>\n`
  return `${pageTop(`${status} ${title}`)}<h1>${status} ${escaped(title)}</h1>
<p>${shown(detail)}</p>
${next === undefined ? '' : `<h2>What you can do</h2>\n<p>${escaped(next)}</p>\n`}${asked}${request}${pageEnd}`
}

/** The same as plain text. */
export function problemText(problem: Problem): string {
  const { title, status, detail, attempts = [], requestId } = problem
  const next = nextStep(problem)
  const asked = attempts.map(({ upstream, outcome, ms }) => `${upstream}: ${outcome}, ${Math.round(ms)} ms`)
  const request = requestId === undefined ? [] : [`Request ${requestId}`]
  return `${[`${status} ${title}`, detail, ...(next === undefined ? [] : [next]), ...asked, ...request].join('\n')}\n`
}
