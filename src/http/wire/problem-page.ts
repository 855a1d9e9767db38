// A problem as an HTML page: what happened, which upstreams were asked, and what to do. Text from
// the request is escaped.
import type { FailureKind } from '../../core/failure.ts'
import type { Attempt } from '../../observe/account.ts'
import { contactLink, whoAnswers } from '../../web/contact.ts'
import { escaped, pageEnd, pagePolicy, pageTop, shown } from '../../web/page.ts'

export type Problem = {
  readonly title: string
  readonly status: number
  readonly kind: FailureKind
  readonly detail: string
  /** The seconds of `Retry-After`, if set. */
  readonly retryAfter?: number | undefined
  readonly attempts?: readonly Attempt[] | undefined
  readonly requestId?: string | undefined
  /** The operator's contact address. */
  readonly contact?: string | undefined
}

export const pageHeaders: readonly (readonly [name: string, value: string])[] = [
  ['Content-Type', 'text/html; charset=utf-8'],
  ['Content-Security-Policy', pagePolicy],
]

/** The meaning for the visitor; the detail below it is for support. */
const meanings: Readonly<Partial<Record<FailureKind, string>>> = {
  'not-found': 'No server that was asked has this content.',
  'path-not-found': 'There is nothing at this address.',
  timeout: 'This content was not found in the time that a visitor waits.',
  unavailable: 'None of the servers that may have this content could be reached.',
  throttled: 'There were too many requests from your network.',
  refused: 'This gateway does not know you.',
  'upstream-error': 'A server that this gateway needs has failed.',
  'hash-mismatch': 'What the servers sent is not what this address stands for, so it is not shown.',
  denied: 'The operator of this gateway does not serve this content.',
  overloaded: 'This gateway has too much to do at the moment.',
  internal: 'Something went wrong in this gateway.',
}

const hasNot = 'This gateway does not have this content.'

const stepsOf: Readonly<Record<number, string>> = {
  400: 'Check the address: a letter may be missing at its beginning or end.',
  401: 'Ask the operator of this gateway for access.',
  404: 'Check the address. New content may take a minute to be found.',
  406: 'Ask for it without a format, or for its blocks with ?format=raw or ?format=car.',
  410: 'Another address on this gateway will not help. The operator can say why.',
  412: 'Ask again without Cache-Control: only-if-cached.',
  451: 'Another address on this gateway will not help. The operator can say why.',
  500: 'If this happens again, tell the operator of this gateway.',
  502: 'If this goes on, tell the operator of this gateway.',
  504: 'It may exist and be slow to find.',
}

/** Statuses whose next step is to ask the operator. */
const forOperator: ReadonlySet<number> = new Set([401, 410, 451, 500, 502])

// A path that is proved not to exist will not appear later.
const mayComeLater = ({ kind, retryAfter }: Problem): boolean => kind !== 'path-not-found' && retryAfter !== undefined

/** Sentences; the one that may lead to the operator comes first. */
function nextSteps(problem: Problem): string[] {
  const { kind, status, retryAfter = 0, attempts = [] } = problem
  if (kind === 'path-not-found') return ['Check the address: this path is proved not to exist.']
  if (kind === 'malformed' && status === 500)
    return ['The content was published with this mistake: only its author can fix it.']
  const again = mayComeLater(problem) ? `Try again in ${inWords(retryAfter)}.` : undefined
  const searches = [404, 504].includes(status) && attempts.length > 0 ? 'This gateway goes on searching.' : undefined
  return [stepsOf[status], searches, again].filter((text) => text !== undefined)
}

const asksOperator = ({ status, kind }: Problem): boolean => forOperator.has(status) && kind !== 'malformed'

function inWords(seconds: number): string {
  if (seconds < 90) return seconds === 1 ? 'a second' : `${seconds} seconds`
  const minutes = Math.ceil(seconds / 60)
  return minutes < 90 ? `${minutes} minutes` : `${Math.ceil(minutes / 60)} hours`
}

/** Words for the outcome at an upstream; others are shown as they are. */
const outcomes: Readonly<Record<string, string>> = {
  'not-found': 'Does not have it',
  timeout: 'Did not answer in time',
  unavailable: 'Cannot be reached',
  throttled: 'Takes no more requests now',
  refused: 'Refused',
  'upstream-error': 'Failed',
  'hash-mismatch': 'Sent something else',
  cancelled: 'No longer needed',
  lost: 'Another was faster',
  won: 'Sent it',
}

/** Capitalizes the first word, but not a CID or name. */
const capital = (text: string): string =>
  /^[a-z]{1,15}(?:[ ,:-]|$)/.test(text) ? text.charAt(0).toUpperCase() + text.slice(1) : text
const asSentence = (text: string): string => (/[.!?:…]$/.test(text) ? capital(text) : `${capital(text)}.`)
const outcomeText = (outcome: string): string => outcomes[outcome] ?? capital(outcome)

export function problemPage(problem: Problem): string {
  const { title, status, kind, detail, attempts = [], requestId, contact } = problem
  const rows = attempts.map(
    ({ upstream, outcome, ms }) =>
      `<tr><td>${shown(upstream)}</td><td>${shown(outcomeText(outcome))}</td><td>${Math.round(ms)} ms</td></tr>\n`,
  )
  const heads =
    '<thead><tr><th scope="col">Server</th><th scope="col">Result</th><th scope="col">Time</th></tr></thead>'
  const asked =
    rows.length > 0 ? `<h2>Servers that were asked</h2>\n<table class="list">${heads}\n${rows.join('')}</table>\n` : ''
  const meaning = kind === 'not-found' && attempts.length === 0 ? hasNot : meanings[kind]
  const steps = nextSteps(problem).map(escaped)
  const again = mayComeLater(problem) ? ' <a href="">Try again</a>' : ''
  const request = requestId === undefined ? '' : `<p class="dim">Request <code>${shown(requestId)}</code></p>\n`
  const operator = contact === undefined ? '' : contactLink(contact)
  if (operator !== '' && asksOperator(problem)) steps.splice(1, 0, operator)
  const answers = operator !== '' && !asksOperator(problem) ? `<p class="dim">${whoAnswers} ${operator}</p>\n` : ''
  const details = `<p${meaning === undefined ? '' : ' class="dim"'}>${shown(asSentence(detail))}</p>\n`
  return `${pageTop(`${status} ${title}`)}<h1>${status} ${escaped(title)}</h1>
${meaning === undefined ? '' : `<p>${escaped(meaning)}</p>\n`}${details}${steps.length === 0 ? '' : `<h2>What you can do</h2>\n<p>${steps.join(' ')}${again}</p>\n`}${asked}${answers}${request}${pageEnd}`
}

/**
 * The problem as plain text, with the outcomes as codes for programs such as the conformance suite.
 */
export function problemText(problem: Problem): string {
  const { title, status, detail, attempts = [], requestId, contact } = problem
  const next = nextSteps(problem).join(' ')
  const asked = attempts.map(({ upstream, outcome, ms }) => `${upstream}: ${outcome}, ${Math.round(ms)} ms`)
  const request = requestId === undefined ? [] : [`Request ${requestId}`]
  const operator = contact === undefined ? [] : [asksOperator(problem) ? contact : `${whoAnswers} ${contact}`]
  const lines = [`${status} ${title}`, detail, ...(next === '' ? [] : [next]), ...operator]
  return `${[...lines, ...asked, ...request].join('\n')}\n`
}
