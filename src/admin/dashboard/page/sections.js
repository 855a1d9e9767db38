// What the status says, section by section.
import { badge, both, detail, el, table, whole } from './elements.js'
import { plot, shares } from './plot.js'
import { count, moment, ms, rate, share, size, span, times } from './words.js'

/** @import { Status, Upstream, Tier, Provider, Upload } from '../shape.ts' */
/** @import { Attempt } from '../../../observe/account.ts' */
/** @import { FailedRequest } from '../../../observe/recent-failures.ts' */
/** @import { Child } from './elements.js' */

/** @param {readonly (readonly [name: string, value: string])[]} facts */
const tiles = (facts) =>
  el('dl', { class: 'tiles' }, ...facts.map(([name, value]) => el('div', {}, el('dt', {}, name), el('dd', {}, value))))

/**
 * @param {Status} status
 * @param {number} perSecond what it is now
 */
export function requestsOf({ requests, history, tiers }, perSecond) {
  const { total, inProgress, byStatus, bySource, bytesOut, shed, throttled } = requests
  const here = ['hot', ...tiers.map(({ name }) => name)]
  const parts = here.map((name) => /** @type {const} */ ([name, bySource[name] ?? 0])).filter(([, value]) => value > 0)
  const hits = parts.reduce((sum, [, value]) => sum + value, 0)
  const fetched = bySource['upstream'] ?? 0
  const minutes = `${Math.max(1, Math.round((history.length * 5) / 60))} min ago`
  return [
    tiles([
      ['A second', rate(perSecond)],
      ['Since the start', count(total)],
      ['In progress', count(inProgress)],
      ['Content from here', share(hits, hits + fetched)],
      ['4xx', count(byStatus['4xx'] ?? 0)],
      ['5xx', count(byStatus['5xx'] ?? 0)],
      ['Refused: too many', count(shed + throttled)],
      ['Sent', size(bytesOut)],
    ]),
    el(
      'div',
      { class: 'plots' },
      plot(
        'Requests a second',
        [
          { name: 'all', values: history.map(({ requests: all, seconds }) => all / seconds) },
          { name: '5xx', values: history.map(({ failed, seconds }) => failed / seconds) },
          { name: '4xx', values: history.map(({ refused, failed, seconds }) => (refused - failed) / seconds) },
        ],
        { write: rate, span: minutes },
      ),
      plot(
        'Time to the first byte of content',
        [
          { name: 'half within', values: history.map(({ p50Ms }) => p50Ms) },
          { name: '95 % within', values: history.map(({ p95Ms }) => p95Ms) },
        ],
        { write: ms, span: minutes },
      ),
    ),
    shares('Where content came from', [...parts, ['upstreams', fetched]]),
  ]
}

/** @type {Readonly<Record<string, 'good' | 'warn' | 'bad'>>} */
const kinds = { ready: 'good', 'cooling-down': 'warn', 'over-budget': 'warn' }

/** @param {Status} status @param {number} now @returns {Child[]} */
export function upstreamsOf({ upstreams, found, routers, announced }, now) {
  if (upstreams.length === 0 && routers.length === 0 && !announced) return ['This gateway asks no upstreams.']
  /** @param {Upstream} one @returns {Child[]} */
  const row = (one) => [
    one.name,
    both(
      badge(kinds[one.state] ?? 'bad', one.state),
      detail(one.why),
      detail(one.until === undefined ? undefined : `for ${span(one.until - now)} more at most`),
    ),
    both(
      `${count(one.won)} of ${count(one.asked)}`,
      detail(one.pending > 0 ? `${count(one.pending)} under way` : undefined),
    ),
    times(one.firstByte),
    mistakes(one),
    one.budget ? `${count(one.budget.used)} of ${count(one.budget.perMinute)}` : 'no limit',
    one.lastTrouble ? both(one.lastTrouble.why, detail(`${span(now - one.lastTrouble.at)} ago`)) : 'none',
  ]
  const heads = ['Upstream', 'State', 'Brought', 'First byte p50 / p95', 'Did not', 'Asked this minute', 'Last error']
  return [
    table('Who is asked for what no tier has', heads, [...upstreams, ...found].map(row)),
    ...routersOf(routers),
    ...announcedOf(announced, now),
  ]
}

/** @param {Status['routers']} routers @returns {Child[]} */
function routersOf(routers) {
  if (routers.length === 0) return []
  const rows = routers.map(({ name, lookups, named, failures, lastFailure, restsMs }) => [
    name,
    restsMs > 0 ? both(badge('warn', 'left alone'), detail(`for ${span(restsMs)} more`)) : badge('good', 'ready'),
    `${count(named)} of ${count(lookups)}`,
    failures > 0 ? both(`failed ${count(failures)}`, detail(lastFailure)) : 'none',
  ])
  return [table('Who says who has it', ['Router', 'State', 'Named somebody', 'Trouble'], rows)]
}

/** @param {Status['announced']} announced @param {number} now @returns {Child[]} */
function announcedOf(announced, now) {
  if (!announced) return []
  const { roots, advertisements, head, lastError, indexers } = announced
  const rows = indexers.map(({ name, announcedAt, lagMs, lastError: why }) => [
    name,
    head === undefined || lagMs === 0 ? badge('good', 'has all') : both(badge('warn', 'lags'), detail(span(lagMs))),
    announcedAt === undefined ? 'not yet' : `${span(now - announcedAt)} ago`,
    why ?? lastError ?? 'none',
  ])
  const caption = `Announced: ${count(roots)} uploads in ${count(advertisements)} advertisements`
  return [table(caption, ['Indexer', 'State', 'Told', 'Last error'], rows)]
}

/** @param {Upstream} one */
function mistakes({ notFound, throttled, failed, falseBytes, lost }) {
  const all = /** @type {const} */ ([
    ['not found', notFound],
    ['too slow', lost],
    ['throttled', throttled],
    ['failed', failed],
  ])
  const said = all.filter(([, value]) => value > 0).map(([name, value]) => `${name} ${count(value)}`)
  return both(
    said.join(', ') || (falseBytes === 0 ? '–' : ''),
    ' ',
    falseBytes > 0 ? badge('bad', `false bytes ${count(falseBytes)}`) : undefined,
  )
}

/** @param {Status} status @returns {Child[]} */
export function tiersOf({ tiers, hot, disk }) {
  /** @param {Tier} one @returns {Child[]} */
  const row = (one) => [
    one.name,
    one.isDown ? both(badge('bad', 'passed over'), detail('its last calls failed')) : badge('good', 'well'),
    full(one.name, one.bytes, one.limitBytes),
    one.blocks === undefined ? 'not counted' : count(one.blocks),
    both(
      share(one.hits, one.hits + one.misses + one.outages),
      detail(`${count(one.hits)} of ${count(one.hits + one.misses + one.outages)}`),
    ),
    times(one.reads),
    trouble(one),
  ]
  const hotRow = [
    'hot (answers)',
    badge('good', 'well'),
    full('hot', hot.bytes, hot.limitBytes),
    count(hot.items),
    '–',
    '–',
    'none',
  ]
  const heads = ['Tier', 'State', 'Full', 'Blocks', 'Hits', 'Reads p50 / p95', 'Trouble']
  return [
    table('Where blocks are kept, in the order in which they are looked for', heads, [hotRow, ...tiers.map(row)]),
    disk &&
      el(
        'p',
        { class: 'note' },
        `Free on the disk of the data folder: ${size(disk.freeBytes)} of ${size(disk.bytes)}.`,
      ),
  ]
}

/** @param {string} name @param {number | undefined} bytes @param {number | undefined} limit @returns {Child} */
function full(name, bytes, limit) {
  if (limit === undefined) return bytes === undefined ? 'no limit here' : size(bytes)
  if (bytes === undefined) return `limit ${size(limit)}`
  const meter = el('meter', { min: 0, max: limit, value: bytes, 'aria-label': `${name}: how full` })
  return both(meter, ` ${size(bytes)} of ${size(limit)}`)
}

/** @param {Tier} one */
function trouble({ outages, queued, dropped, failedWrites, corrupt }) {
  const all = /** @type {const} */ ([
    ['could not be asked', outages],
    ['waiting to be written', queued],
    ['not written for lack of room', dropped],
    ['writes failed', failedWrites],
    ['corrupt blocks', corrupt],
  ])
  return (
    all
      .filter(([, value]) => value > 0)
      .map(([what, value]) => `${what}: ${count(value)}`)
      .join('; ') || 'none'
  )
}

/** @param {Status} status @param {number} now @returns {Child[]} */
export function uploadsOf({ providers, journal, uploads }, now) {
  const taken = uploads === undefined ? 'not known yet' : uploads ? 'yes' : 'no'
  const oldest = journal.oldestAt === undefined ? '–' : span(now - journal.oldestAt)
  return [
    tiles([
      ['Uploads can be confirmed', taken],
      ['Wait for a provider', count(journal.open)],
      ['Their bytes', size(journal.bytes)],
      ['The oldest waits for', oldest],
    ]),
    providers.length === 0 ? el('p', {}, 'No provider is configured.') : providerTable(providers),
    journal.uploads.length === 0 ? undefined : journalTable(journal.uploads, now),
  ]
}

/** @param {readonly Provider[]} providers */
function providerTable(providers) {
  const heads = [
    'Provider',
    'Last check',
    'Holds since the start',
    'Refusals and failures',
    'Still to get',
    'Took p50 / p95',
  ]
  return table(
    'Where uploads are kept',
    heads,
    providers.map(({ name, ok, why, held, failed, waiting, took }) => [
      name,
      ok === undefined ? 'not checked yet' : both(ok ? badge('good', 'well') : badge('bad', 'failed'), detail(why)),
      count(held),
      Object.entries(failed)
        .map(([what, value]) => `${what} ${count(value)}`)
        .join(', ') || 'none',
      count(waiting),
      times(took),
    ]),
  )
}

/** @param {readonly Upload[]} uploads @param {number} now */
function journalTable(uploads, now) {
  /** @param {Upload} one @returns {Child[]} */
  const row = ({ cid, at, bytes, providers, owed = [] }) => {
    const wanted = Object.entries(providers).filter(([, { state }]) => state === 'wanted')
    const held = Object.entries(providers).filter(([, { state }]) => state === 'held')
    const waits = wanted.map(([name, { tries, why, notBefore }]) => {
      const next = notBefore !== undefined && notBefore > now ? `, next in ${span(notBefore - now)}` : ''
      return both(`${name}: ${count(tries)} tries${next}`, detail(why))
    })
    const buttons = [...wanted.map(([name]) => name), ...owed].map((name) =>
      el('button', { type: 'button', class: 'danger', 'data-cid': cid, 'data-name': name }, `Give up ${name}`),
    )
    const owes = owed.map((name) => both(`tier ${name} lacks blocks of it`))
    return [
      el('code', {}, cid),
      span(now - Date.parse(at)),
      size(bytes),
      held.map(([name]) => name).join(', ') || 'this gateway alone',
      both(...waits, ...owes),
      both(...buttons),
    ]
  }
  return table(
    'What waits, the oldest first',
    ['CID', 'Since', 'Size', 'Held by', 'Waits for', 'Action'],
    uploads.map(row),
  )
}

const mostAttempts = 4

/** @param {Attempt} tried */
const attemptOf = ({ upstream, outcome, ms: took }) =>
  `${upstream}: ${outcome}${outcome.startsWith('skipped') ? '' : `, ${ms(took)}`}`

/** @param {Status} status @param {number} now @returns {Child[]} */
export function failuresOf({ failures }, now) {
  if (failures.length === 0) return ['No request has failed since the start.']
  /** @param {FailedRequest} one @returns {Child[]} */
  const row = ({ attempts = [], ...one }) => [
    whole(moment(one.at, now)),
    both(
      badge(one.status >= 500 ? 'bad' : 'warn', one.isCut ? `${one.status}, cut` : `${one.status}`),
      el('span', { class: 'detail number' }, one.kind ?? ''),
    ),
    both(
      el('code', {}, `${one.method} ${one.path}`),
      ' ',
      /^\/ip[fn]s\//.test(one.path) ? el('button', { type: 'button', 'data-why': one.path }, 'Why?') : undefined,
    ),
    both(
      one.why ?? (one.status === 499 ? 'the client left' : '–'),
      ...attempts.slice(0, mostAttempts).map((tried) => detail(attemptOf(tried))),
      detail(attempts.length > mostAttempts ? `and ${attempts.length - mostAttempts} more, in the log` : undefined),
    ),
    whole(ms(one.ms)),
    both(one.request ?? '–', detail(one.client)),
  ]
  return [table('The newest first', ['When', 'Status', 'Request', 'Why', 'Took', 'Id and client'], failures.map(row))]
}
