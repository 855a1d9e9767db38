// Renders the status by section: a line for the folded section, and its body.
import { badge, both, cid as cidOf, detail, el, nothing, shortened, table } from './elements.js'
import { plot, shares } from './plot.js'
import { count, moment, ms, rate, share, size, span, times } from './words.js'

/** @import { Status, Upstream, Tier, Provider, Upload } from '../shape.ts' */
/** @import { FailedRequest } from '../../../observe/requests.ts' */
/** @import { Child } from './elements.js' */

/** @typedef {{ readonly gist: string, readonly body: readonly Child[] }} Part */

/** @param {Status['alerts']} alerts @returns {Child[]} */
export const alertsOf = (alerts) =>
  alerts.map(({ severity, part, what, next }) =>
    el(
      'li',
      { class: severity },
      el('strong', {}, shortened(what)),
      `Next: ${next}. `,
      el('a', { href: `#${part}` }, 'Show'),
    ),
  )

/** @param {Status['history']} history @param {'requests' | 'failed' | 'refused' | 'content' | 'hits'} name */
const sum = (history, name) => history.reduce((all, one) => all + one[name], 0)

/** @param {Status['history']} history */
const minutesOf = (history) => `${Math.max(1, Math.round((history.length * 5) / 60))} min`

/**
 * The four figures that matter.
 * @param {Status} status
 * @param {number | undefined} perSecond what it is now
 * @param {number} now
 * @returns {Child[]}
 */
export function figuresOf({ history, requests }, perSecond, now) {
  const minutes = minutesOf(history)
  const peak = Math.max(0, ...history.map(({ requests: all, seconds }) => all / seconds))
  const latest = history.findLast(({ p50Ms }) => p50Ms !== undefined)
  const [all, failed, refused] = [sum(history, 'requests'), sum(history, 'failed'), sum(history, 'refused')]
  /** @param {string} name @param {string} value @param {string} more @param {string} [kind] */
  const figure = (name, value, more, kind) =>
    el('div', {}, el('dt', {}, name), el('dd', { class: kind }, value, el('span', { class: 'detail' }, more)))
  return [
    figure('Requests/s', perSecond === undefined ? nothing : rate(perSecond), `max ${rate(peak)} in ${minutes}`),
    figure('Hit ratio', share(sum(history, 'hits'), sum(history, 'content')), `in ${minutes}`),
    figure(
      'First byte p50 / p95',
      latest ? times(latest) : nothing,
      latest ? `${span(now - latest.at)} ago` : `no content read in ${minutes}`,
    ),
    figure(
      'Errors (5xx)',
      share(failed, all),
      `${count(failed)} of ${count(all)} in ${minutes}; 4xx ${count(refused - failed)}; shed ${count(requests.shed + requests.rateLimited)}`,
      failed > 0 && failed >= all / 100 ? 'bad' : undefined,
    ),
  ]
}

/** @param {Status} status @returns {Part} */
export function requestsOf({ requests, history, tiers }) {
  const { total, inProgress, bySource, bytesOut } = requests
  const known = Object.entries(bySource).filter(([name, value]) => name !== 'none' && name !== 'upstream' && value > 0)
  const order = tiers.map(({ name }) => name)
  const parts = known.toSorted(([one], [other]) => order.indexOf(one) - order.indexOf(other))
  const since = `${minutesOf(history)} ago`
  const how = {
    span: since,
    // A process that was stopped measured nothing meanwhile.
    isGap: (/** @type {number} */ at) =>
      (history[at]?.at ?? 0) - (history[at - 1]?.at ?? 0) > 2500 * (history[at]?.seconds ?? 5),
  }
  return {
    gist: `${count(total)} since the start, ${count(inProgress)} in progress, ${size(bytesOut)} sent`,
    body: [
      el(
        'div',
        { class: 'plots' },
        plot(
          'Requests/s',
          [
            { name: 'all', values: history.map(({ requests: all, seconds }) => all / seconds) },
            {
              name: '4xx',
              colour: 's3',
              values: history.map(({ refused, failed, seconds }) => (refused - failed) / seconds),
            },
            { name: '5xx', colour: 's-bad', values: history.map(({ failed, seconds }) => failed / seconds) },
          ],
          { ...how, write: rate },
        ),
        plot(
          'Hit ratio',
          [
            {
              name: 'hits',
              values: history.map(({ hits, content }) => (content > 0 ? (100 * hits) / content : undefined)),
            },
          ],
          { ...how, write: (value) => `${rate(value)} %`, max: 100 },
        ),
        plot(
          'Time to the first byte of content',
          [
            { name: 'p50', values: history.map(({ p50Ms }) => p50Ms) },
            { name: 'p95', values: history.map(({ p95Ms }) => p95Ms) },
          ],
          { ...how, write: ms },
        ),
      ),
      shares('Where content came from, since the start', [...parts, ['upstreams', bySource['upstream'] ?? 0]]),
    ],
  }
}

/** @type {Readonly<Record<string, 'good' | 'warn' | 'bad'>>} */
const kinds = { ready: 'good', quarantined: 'bad', incompatible: 'bad' }

/** @param {Status} status @param {number} now @returns {Part} */
export function upstreamsOf({ upstreams, found, routers, announced }, now) {
  /** @param {Upstream} one @returns {Child[]} */
  const row = (one) => [
    one.name,
    both(
      badge(kinds[one.state] ?? 'warn', one.state),
      detail(one.why === undefined ? undefined : shortened(one.why)),
      detail(one.until === undefined ? undefined : `for ${span(one.until - now)} at most`),
    ),
    both(
      `${count(one.won)} of ${count(one.asked)}`,
      detail(one.pending > 0 ? `${count(one.pending)} in progress` : undefined),
    ),
    times(one.firstByte),
    mistakes(one),
    one.budget ? `${count(one.budget.used)} of ${count(one.budget.perMinute)}` : nothing,
    one.lastError ? both(shortened(one.lastError.why), detail(`${span(now - one.lastError.at)} ago`)) : nothing,
  ]
  const ready = upstreams.filter(({ state }) => state === 'ready').length
  const all = [...upstreams, ...found]
  const gist = [
    upstreams.length === 0 ? 'none' : `${count(ready)} of ${count(upstreams.length)} ready`,
    ...(found.length > 0 ? [`${count(found.length)} found by routers`] : []),
    ...(announced ? [`${count(announced.roots)} uploads announced`] : []),
  ]
  return {
    gist: gist.join(', '),
    body: [
      all.length === 0
        ? el('p', {}, 'This gateway asks no upstreams.')
        : table(
            'Asked for what no tier has',
            [
              'Upstream',
              ['State', 'middle'],
              ['Won', 'tight'],
              ['First byte p50 / p95', 'middle'],
              ['Lost or failed', 'middle wide'],
              ['Budget a minute', 'tight'],
              ['Last error', 'wide'],
            ],
            all.map(row),
          ),
      ...routersOf(routers),
      ...announcedOf(announced, now),
    ],
  }
}

/** @param {Status['routers']} routers @returns {Child[]} */
function routersOf(routers) {
  if (routers.length === 0) return []
  const rows = routers.map(({ name, lookups, named, failures, lastFailure, backoffMs }) => [
    name,
    backoffMs > 0 ? both(badge('warn', 'unhealthy'), detail(`for ${span(backoffMs)} more`)) : badge('good', 'ready'),
    `${count(named)} of ${count(lookups)}`,
    failures > 0 ? both(`failed ${count(failures)}`, detail(lastFailure)) : nothing,
  ])
  return [
    table(
      'Routers, which say who has content',
      ['Router', ['State', 'middle'], ['Named a gateway', 'middle'], ['Errors', 'wide']],
      rows,
    ),
  ]
}

/** @param {Status['announced']} announced @param {number} now @returns {Child[]} */
function announcedOf(announced, now) {
  if (!announced) return []
  const { roots, advertisements, head, lastError, indexers } = announced
  const rows = indexers.map(({ name, announcedAt, lagMs, lastError: why }) => [
    name,
    head === undefined || lagMs === 0 ? badge('good', 'up to date') : both(badge('warn', 'lags'), detail(span(lagMs))),
    announcedAt === undefined ? nothing : `${span(now - announcedAt)} ago`,
    why ?? lastError ?? nothing,
  ])
  const caption = `Announced: ${count(roots)} uploads in ${count(advertisements)} advertisements`
  return [table(caption, ['Indexer', ['State', 'middle'], ['Announced', 'middle'], ['Last error', 'wide']], rows)]
}

/** @param {Upstream} one */
function mistakes({ notFound, throttled, failed, hashMismatch, lost }) {
  const all = /** @type {const} */ ([
    ['not found', notFound],
    ['slower than another', lost],
    ['rate-limited', throttled],
    ['failed', failed],
  ])
  const said = all.filter(([, value]) => value > 0).map(([name, value]) => `${name} ${count(value)}`)
  if (said.length === 0 && hashMismatch === 0) return nothing
  return both(said.join(', '), ' ', hashMismatch > 0 ? badge('bad', `hash mismatch ${count(hashMismatch)}`) : undefined)
}

/** @param {Status} status @returns {Part} */
export function tiersOf({ tiers, responses, disk }) {
  /** @param {Tier} one @returns {Child[]} */
  const row = (one) => [
    one.name,
    one.isDown ? badge('bad', 'circuit open') : badge('good', 'ready'),
    full(one.name, one.bytes, one.limitBytes),
    one.blocks === undefined ? nothing : count(one.blocks),
    both(
      share(one.hits, one.hits + one.misses + one.outages),
      detail(`of ${count(one.hits + one.misses + one.outages)}`),
    ),
    times(one.reads),
    trouble(one),
  ]
  const cache = [
    'responses',
    badge('good', 'ready'),
    full('responses', responses.bytes, responses.limitBytes),
    count(responses.items),
    nothing,
    nothing,
    nothing,
  ]
  const open = tiers.filter(({ isDown }) => isDown).length
  const free = disk === undefined ? '' : `, disk ${size(disk.freeBytes)} of ${size(disk.bytes)} free`
  return {
    gist: `${count(tiers.length - open)} of ${count(tiers.length)} ready${free}`,
    body: [
      table(
        'In the order in which they are asked',
        [
          'Tier',
          ['State', 'middle'],
          ['Full', 'middle'],
          ['Blocks', 'tight'],
          ['Hit ratio', 'tight'],
          ['Reads p50 / p95', 'middle'],
          ['Errors', 'wide'],
        ],
        [cache, ...tiers.map(row)],
      ),
    ],
  }
}

/** @param {string} name @param {number | undefined} bytes @param {number | undefined} limit @returns {Child} */
function full(name, bytes, limit) {
  if (limit === undefined) return bytes === undefined ? nothing : size(bytes)
  if (bytes === undefined) return `limit ${size(limit)}`
  const meter = el('meter', { min: 0, max: limit, value: bytes, 'aria-label': `${name}: how full` })
  return both(meter, `${size(bytes)} of ${size(limit)}`)
}

/** @param {Tier} one */
function trouble({ outages, queued, dropped, failedWrites, corrupt }) {
  const all = /** @type {const} */ ([
    ['outages', outages],
    ['waiting to be written', queued],
    ['not written, the queue was full', dropped],
    ['writes failed', failedWrites],
    ['corrupt blocks', corrupt],
  ])
  const some = all.filter(([, value]) => value > 0)
  return some.map(([what, value]) => `${what}: ${count(value)}`).join('; ') || nothing
}

/** @param {Status} status @param {number} now @returns {Part} */
export function uploadsOf({ providers, pending, uploads }, now) {
  const taken = uploads === undefined ? 'not checked yet' : uploads ? 'uploads accepted' : 'uploads refused'
  const oldest = pending.oldestAt === undefined ? '' : `, the oldest for ${span(now - pending.oldestAt)}`
  const waiting = `${count(pending.open)} ${pending.open === 1 ? 'waits' : 'wait'} for a provider`
  return {
    gist: providers.length === 0 ? 'no provider' : `${taken}, ${waiting}`,
    body: [
      providers.length === 0 ? el('p', {}, 'No provider is configured.') : providerTable(providers),
      pending.open === 0 ? undefined : el('p', {}, `Waiting: ${count(pending.open)}, ${size(pending.bytes)}${oldest}.`),
      pending.uploads.length === 0 ? undefined : pendingTable(pending.uploads, now),
    ],
  }
}

/** @param {readonly Provider[]} providers */
const providerTable = (providers) =>
  table(
    'Providers of uploads',
    [
      'Provider',
      ['Last check', 'wide'],
      ['Pinned since the start', 'middle'],
      'Failures',
      ['Waiting', 'tight'],
      ['Took p50 / p95', 'middle'],
    ],
    providers.map(({ name, ok, why, pinned, failed, waiting, took }) => [
      name,
      ok === undefined ? 'not checked yet' : both(ok ? badge('good', 'ready') : badge('bad', 'failed'), detail(why)),
      count(pinned),
      Object.entries(failed)
        .map(([what, value]) => `${what} ${count(value)}`)
        .join(', ') || nothing,
      count(waiting),
      times(took),
    ]),
  )

/** @param {readonly Upload[]} uploads @param {number} now */
function pendingTable(uploads, now) {
  /** @param {Upload} one @returns {Child[]} */
  const row = ({ cid, at, bytes, providers, pendingTiers = [] }) => {
    const pending = Object.entries(providers).filter(([, { state }]) => state === 'pending')
    const pinned = Object.entries(providers).filter(([, { state }]) => state === 'pinned')
    const waits = pending.map(([name, { tries, why, notBefore }]) => {
      const next = notBefore !== undefined && notBefore > now ? `, next in ${span(notBefore - now)}` : ''
      return el('span', { class: 'block' }, `${name}: ${count(tries)} tries${next}`, detail(why))
    })
    const holders = [...pending.map(([name]) => name), ...pendingTiers]
    return [
      cidOf(cid),
      span(now - Date.parse(at)),
      size(bytes),
      pinned.map(([name]) => name).join(', ') || 'only this gateway',
      both(...waits, ...pendingTiers.map((name) => el('span', { class: 'block' }, `tier ${name} lacks blocks of it`))),
      el('button', { type: 'button', 'data-cid': cid, 'data-holders': JSON.stringify(holders) }, 'Actions'),
    ]
  }
  return table(
    'Waiting uploads, the oldest first',
    ['CID', ['Since', 'tight'], ['Size', 'tight'], ['Pinned at', 'middle'], ['Waits for', 'wide'], ['Action', 'tight']],
    uploads.map(row),
  )
}

const maxCauses = 10

/**
 * Failures that differ only in a CID, an address or a number have one cause.
 * @param {FailedRequest} one
 */
const causeOf = ({ status, isCut, kind = '', why = '' }) =>
  [
    isCut ? `${status}, aborted` : status,
    kind,
    why.replace(/\b(?:b[a-z2-7]{30,}|Qm\w{44}|k[0-9a-z]{40,}|\d+(?:\.\d+)*)\b/g, '#'),
  ].join('\n')

/** @param {Status} status @param {number} now @returns {Part} */
export function failuresOf({ failures }, now) {
  const groups = [...Map.groupBy(failures, causeOf).values()].toSorted((one, other) => other.length - one.length)
  /** @param {readonly FailedRequest[]} group @returns {Child[]} */
  const row = (group) => {
    const [one] = group
    if (!one) return []
    const outcomes = Map.groupBy(
      group.flatMap(({ attempts = [] }) => attempts),
      ({ upstream, outcome }) => `${upstream}: ${outcome}`,
    )
    return [
      both(
        badge(one.status >= 500 ? 'bad' : 'warn', one.isCut ? `${one.status}, aborted` : `${one.status}`),
        ` ${shortened(one.why ?? (one.status === 499 ? 'the client left' : (one.kind ?? 'no reason was noted')))}`,
      ),
      count(group.length),
      moment(one.at, now),
      [...outcomes]
        .map(([what, all]) => `${what} ×${count(all.length)}`)
        .slice(0, 4)
        .join(', ') || nothing,
      both(
        `${one.method} `,
        cidOf(one.path),
        ' ',
        /^\/ip[fn]s\//.test(one.path) ? el('button', { type: 'button', 'data-why': one.path }, 'Why') : undefined,
        detail(`${ms(one.ms)}, client ${one.client ?? 'unknown'}, request ${one.request ?? 'unknown'}`),
      ),
    ]
  }
  const more = groups.length - maxCauses
  if (groups.length === 0) return { gist: 'none since the start', body: ['No request has failed since the start.'] }
  return {
    gist: `${count(groups.length)} ${groups.length === 1 ? 'cause' : 'causes'}, the last at ${moment(failures[0]?.at ?? now, now)}`,
    body: [
      table(
        `The last ${count(failures.length)} failures, the most frequent cause first`,
        [
          ['Cause', 'wide'],
          ['Count', 'tight'],
          ['Last', 'middle'],
          ['Upstreams', 'wide'],
          ['Last request', 'wide'],
        ],
        groups.slice(0, maxCauses).map(row),
      ),
      more > 0 ? el('p', {}, `${count(more)} more causes: cidgate status --failures, or the log.`) : undefined,
    ],
  }
}
