// A problem as a page, for people: what happened, who was asked, and what can be done about it. What a request brought is
// text in it and never markup.
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
  400: 'Look at the address again: a letter may be missing at its beginning or end.',
  401: 'Ask the operator of this gateway for access.',
  404: 'Look at the address again. What was published a moment ago may take a minute to be found: the search goes on here, so try again soon.',
  406: 'Ask for it without a format, or for the blocks themselves with ?format=raw or ?format=car.',
  410: 'Another address on this gateway will not help. The operator can say why.',
  412: 'Ask again without Cache-Control: only-if-cached, and it is looked for.',
  429: 'Wait a moment before you go on.',
  451: 'Another address on this gateway will not help. The operator can say why.',
  500: 'If this goes on, tell the operator of this gateway.',
  502: 'Those who could have it cannot be reached just now. Try again in a while.',
  503: 'Try again in a second.',
  504: 'It may exist and be slow to find: the search goes on here, so try again soon.',
}

const nextStep = ({ kind, status }: Problem): string | undefined => {
  // What is proved to be absent does not turn up.
  if (kind === 'no-link') return 'Look at the address again: it is certain that there is nothing at this one.'
  if (kind === 'malformed' && status === 500) return 'It was published with this mistake: only its author can mend it.'
  return nextSteps[status]
}

export function problemPage(problem: Problem): string {
  const { title, status, detail, attempts = [], requestId } = problem
  const rows = attempts.map(
    ({ upstream, outcome, ms }) =>
      `<tr><td>${shown(upstream)}</td><td>${shown(outcome)}</td><td>${Math.round(ms)} ms</td></tr>\n`,
  )
  const asked = rows.length > 0 ? `<h2>Who was asked</h2>\n<table>\n${rows.join('')}</table>\n` : ''
  const next = nextStep(problem)
  const request = requestId === undefined ? '' : `<p>Request ${shown(requestId)}</p>\n`
  return `${pageTop(`${status} ${title}`)}<h1>${status} ${escaped(title)}</h1>
<p>${shown(detail)}</p>
${next === undefined ? '' : `<h2>What you can do</h2>\n<p>${escaped(next)}</p>\n`}${asked}${request}${pageEnd}`
}

/** The same in lines. */
export function problemText(problem: Problem): string {
  const { title, status, detail, attempts = [], requestId } = problem
  const next = nextStep(problem)
  const asked = attempts.map(({ upstream, outcome, ms }) => `${upstream}: ${outcome}, ${Math.round(ms)} ms`)
  const request = requestId === undefined ? [] : [`Request ${requestId}`]
  return `${[`${status} ${title}`, detail, ...(next === undefined ? [] : [next]), ...asked, ...request].join('\n')}\n`
}
