// The answer to "why": each block on the way to what a path names, who had it, and what the upstreams said.
import { badge, both, detail, el, table } from './elements.js'
import { count, ms, size, span } from './words.js'

/** @import { Why } from '../shape.ts' */
/** @import { Child } from './elements.js' */

/** What the operator typed, as a path. @param {string} text */
export function pathOf(text) {
  const trimmed = text.trim()
  const scheme = /^(ipfs|ipns):\/\/(.*)$/.exec(trimmed)
  if (scheme) return `/${scheme[1]}/${scheme[2]}`
  const url = /^https?:\/\/[^/]+(\/ip[fn]s\/[^?#]*)/.exec(trimmed)
  if (url?.[1]) return url[1]
  return /^\/ip[fn]s\//.test(trimmed) ? trimmed : `/ipfs/${trimmed}`
}

/** @param {Why} why @returns {Child[]} */
export function whyOf({ path, status, ms: took, steps, found, failure, attempts }) {
  const kind = status < 400 ? 'good' : status < 500 ? 'warn' : 'bad'
  const retry =
    failure?.retryAfterMs === undefined ? '' : `; it may be worth asking again in ${span(failure.retryAfterMs)}`
  const what = found
    ? `${found.kind}, ${found.type}${found.bytes === undefined ? '' : `, ${size(found.bytes)}`}, CID ${found.cid}`
    : `${failure?.kind}: ${failure?.why}${retry}`
  return [
    el('h3', {}, badge(kind, String(status)), ' ', el('code', {}, path)),
    el('p', {}, `After ${ms(took)}: ${what}`),
    steps.length === 0
      ? undefined
      : table(
          'The blocks on the way',
          ['Step', 'Block', 'From', 'Took', 'Size'],
          steps.map(({ cid, from, isFetched, ms: stepMs, bytes }, at) => [
            count(at + 1),
            el('code', {}, cid),
            from === undefined ? 'was at hand' : both(from, detail(isFetched ? 'an upstream' : 'a tier')),
            ms(stepMs),
            size(bytes),
          ]),
        ),
    attempts.length === 0
      ? undefined
      : table(
          'What the upstreams said',
          ['Upstream', 'Outcome', 'After'],
          attempts.map(({ upstream, outcome, ms: after }) => [upstream, outcome, ms(after)]),
        ),
  ]
}
