// The page: draws each status, and runs the operator's actions.
import { ask, said, useToken, watchStatus } from './client.js'
import { at, badge, choose, copy, show, wordsOf } from './elements.js'
import { startPins } from './pins.js'
import { alertsOf, failuresOf, figuresOf, requestsOf, tiersOf, uploadsOf, upstreamsOf } from './sections.js'
import { startUpload } from './upload.js'
import { startWhy } from './why.js'
import { count, span } from './words.js'

/** @import { Status } from '../shape.ts' */
/** @import { Child } from './elements.js' */

const foldsKey = 'cidgate-folds'
const openOnDesk = ['requests', 'failures', 'upstreams', 'tiers']
const tokenSection = at('token')
const state = at('state')
const pins = startPins()
const upload = startUpload()
startWhy()
startFolds()
let isDrawn = false
/** Totals of the last seconds, for the rate. @type {{ at: number, total: number }[]} */
const totals = []
const maxTotals = 6
/** The first screen has space for no more above the figures. */
const maxAlerts = 3

/** @param {Status} status @param {number} now of the gateway's clock */
function draw(status, now) {
  tokenSection.hidden = true
  const { processes, alerts } = status
  const isBad = alerts.some(({ severity }) => severity === 'bad')
  const words = alerts.length === 0 ? 'no faults' : `${count(alerts.length)} faults`
  const several = processes ? `, ${processes.answering} of ${processes.wanted} processes` : ''
  show(
    state,
    badge(alerts.length === 0 ? 'good' : isBad ? 'bad' : 'warn', words),
    ` version ${status.version}, up for ${span(now - status.startedAt)}${several}`,
  )
  const more = alerts.slice(maxAlerts)
  show(at('alerts'), ...alertsOf(alerts.slice(0, maxAlerts)))
  at('more-alerts').hidden = more.length === 0
  show(at('more-alerts-gist'), `${count(more.length)} more`)
  show(at('more-alerts-body'), ...alertsOf(more))
  show(at('figures'), ...figuresOf(status, perSecond(status.requests.total), now))
  part('requests', requestsOf(status))
  part('failures', failuresOf(status, now))
  part('upstreams', upstreamsOf(status, now))
  part('tiers', tiersOf(status))
  part('uploads', uploadsOf(status, now))
  pins.draw(status)
  upload.draw(status)
  // The initial link scrolls once the sections above its target have their height.
  if (!isDrawn) goTo(location.hash)
  isDrawn = true
}

/** Restores the folded sections, and opens the one that a link points to. */
function startFolds() {
  const folds = /** @type {HTMLDetailsElement[]} */ ([...document.querySelectorAll('main > details')])
  /** @type {Record<string, boolean>} */
  const kept = JSON.parse(localStorage.getItem(foldsKey) ?? '{}')
  const isDesk = matchMedia('(min-width: 45rem)').matches
  for (const fold of folds) {
    fold.open = kept[fold.id] ?? (isDesk && openOnDesk.includes(fold.id))
    fold.addEventListener('toggle', () => {
      kept[fold.id] = fold.open
      localStorage.setItem(foldsKey, JSON.stringify(kept))
    })
  }
  // A second click on the same link does not change the hash, but must scroll too.
  document.addEventListener('click', ({ target }) => {
    const link = target instanceof Element ? target.closest('a') : null
    const hash = link?.getAttribute('href') ?? ''
    if (hash.startsWith('#')) queueMicrotask(() => goTo(hash))
  })
  addEventListener('hashchange', () => goTo(location.hash))
}

/** @param {string} hash */
function goTo(hash) {
  const target = hash.length > 1 ? document.getElementById(decodeURIComponent(hash.slice(1))) : null
  const fold = target?.closest('details')
  if (fold) fold.open = true
  target?.scrollIntoView()
}

/** @param {string} id @param {{ readonly gist: string, readonly body: readonly Child[] }} drawn */
function part(id, { gist, body }) {
  show(at(`${id}-gist`), gist)
  show(at(`${id}-body`), ...body)
}

/** @param {number} total */
function perSecond(total) {
  totals.push({ at: performance.now(), total })
  if (totals.length > maxTotals) totals.shift()
  const [first] = totals
  const last = totals.at(-1)
  if (!first || !last || last.at === first.at) return undefined
  return Math.max(0, ((last.total - first.total) * 1000) / (last.at - first.at))
}

const askNow = watchStatus({
  onStatus: draw,
  onRefused(why) {
    show(state, badge('warn', 'a token is needed'))
    show(at('token-why'), why)
    tokenSection.hidden = false
  },
  onSilent(why) {
    show(state, badge('bad', 'no answer'), ` from the gateway: ${why}. Below is its last answer.`)
  },
})

at('token-form').addEventListener('submit', (event) => {
  event.preventDefault()
  const field = /** @type {HTMLInputElement} */ (at('token-field'))
  useToken(field.value.trim())
  field.value = ''
  void askNow()
})

at('main').addEventListener('click', ({ target }) => {
  if (target instanceof HTMLElement && target.dataset['copy'] !== undefined) void copy(target, target.dataset['copy'])
})

at('uploads-body').addEventListener('click', ({ target }) => {
  const { cid, holders } = target instanceof HTMLElement ? target.dataset : {}
  if (cid !== undefined && holders !== undefined) void giveUp(cid, JSON.parse(holders))
})

/** @param {string} cid @param {readonly string[]} holders that are still to get it */
async function giveUp(cid, holders) {
  const title = `Give up an upload?`
  const choices = holders.map((name) => ({
    word: `Give up ${name}`,
    what: `${name} does not get ${cid} any more.`,
    isDanger: true,
  }))
  const name = holders[await choose({ title, choices })]
  if (name === undefined) return
  const address = `/uploads/${encodeURIComponent(cid)}/${encodeURIComponent(name)}`
  try {
    const answer = await ask(address, { method: 'DELETE' })
    if (answer.status === 409) {
      const text = [`Only this gateway holds ${cid}: its bytes are lost then.`]
      if ((await choose({ title, text, choices: [{ word: 'Give up and lose it', isDanger: true }] })) < 0) return
      const second = await ask(`${address}?losing=true`, { method: 'DELETE' })
      if (!second.ok) await tell(await said(second))
    } else if (!answer.ok) await tell(await said(answer))
  } catch (error) {
    await tell(wordsOf(error))
  }
  void askNow()
}

/** @param {string} text */
const tell = (text) => choose({ title: 'Failed', text: [text], choices: [] })
