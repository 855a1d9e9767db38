// The page: draws each status that comes, and does what the operator asks for.
import { startBlocks } from './blocks.js'
import { ask, said, useToken, watchStatus } from './client.js'
import { at, confirmed, wordsOf } from './dialog.js'
import { badge, el, show } from './elements.js'
import { startPins } from './pins.js'
import { failuresOf, requestsOf, tiersOf, uploadsOf, upstreamsOf } from './sections.js'
import { startUpload } from './upload.js'
import { pathOf, whyOf } from './why.js'
import { span } from './words.js'

/** @import { Status, Why } from '../shape.ts' */

const tokenSection = at('token')
const state = at('state')
const pins = startPins()
const upload = startUpload()
const drawBlocks = startBlocks()
/** Totals of the last seconds, for what is going on now. @type {{ at: number, total: number }[]} */
const totals = []
const keptTotals = 6

/** @param {Status} status @param {number} now of the gateway's clock */
function draw(status, now) {
  tokenSection.hidden = true
  const { processes } = status
  const isWell =
    status.ready &&
    status.upstreams.every((one) => one.state === 'ready') &&
    status.tiers.every((one) => !one.isDown) &&
    (!processes || processes.answering >= processes.wanted)
  const words = status.draining
    ? 'stopping'
    : status.ready
      ? isWell
        ? 'all well'
        : 'ready, with trouble'
      : 'not ready'
  const kind = status.ready ? (isWell ? 'good' : 'warn') : 'bad'
  const several = processes ? `, ${processes.answering} of ${processes.wanted} processes answer` : ''
  show(state, badge(kind, words), ` version ${status.version}, up for ${span(now - status.startedAt)}${several}`)
  show(at('requests-body'), ...requestsOf(status, perSecond(status.requests.total)))
  show(at('upstreams-body'), ...upstreamsOf(status, now))
  show(at('tiers-body'), ...tiersOf(status))
  show(at('uploads-body'), ...uploadsOf(status, now))
  pins.draw(status)
  upload.draw(status)
  show(at('failures-body'), ...failuresOf(status, now))
}

/** @param {number} total */
function perSecond(total) {
  totals.push({ at: performance.now(), total })
  if (totals.length > keptTotals) totals.shift()
  const [first] = totals
  const last = totals.at(-1)
  if (!first || !last || last.at === first.at) return 0
  return Math.max(0, ((last.total - first.total) * 1000) / (last.at - first.at))
}

const lookNow = watchStatus({
  onStatus: draw,
  onRefused(why) {
    show(state, badge('bad', 'a token is needed'))
    show(at('token-why'), why)
    tokenSection.hidden = false
  },
  onSilent(why) {
    show(state, badge('bad', 'no answer'), ` from the gateway: ${why}. What is below is what it said last.`)
  },
})

at('token-form').addEventListener('submit', (event) => {
  event.preventDefault()
  const field = /** @type {HTMLInputElement} */ (at('token-field'))
  useToken(field.value.trim())
  field.value = ''
  void lookNow()
})

/** @param {string} text */
async function why(text) {
  const body = at('why-body')
  at('blocks-body').replaceChildren()
  show(body, 'Reading …')
  try {
    const answer = await ask(`/why?path=${encodeURIComponent(pathOf(text))}`)
    if (!answer.ok) return show(body, el('p', {}, await said(answer)))
    /** @type {Why} */
    const told = await answer.json()
    show(body, ...whyOf(told))
  } catch (error) {
    show(body, el('p', {}, wordsOf(error)))
  }
}

const whyField = /** @type {HTMLInputElement} */ (at('why-field'))

at('why-form').addEventListener('submit', (event) => {
  event.preventDefault()
  void why(whyField.value)
})

at('why-draw').addEventListener('click', () => {
  if (whyField.reportValidity()) void drawBlocks(pathOf(whyField.value))
})

at('main').addEventListener('click', (event) => {
  const path = event.target instanceof HTMLElement ? event.target.dataset['why'] : undefined
  if (path === undefined) return
  whyField.value = path
  whyField.focus()
  void why(path)
})

at('uploads-body').addEventListener('click', (event) => {
  const { cid, name } = event.target instanceof HTMLElement ? event.target.dataset : {}
  if (cid !== undefined && name !== undefined) void giveUp(cid, name)
})

/** @param {string} cid @param {string} name */
async function giveUp(cid, name) {
  const title = 'Give up?'
  if (!(await confirmed({ title, text: [`${name} will not get ${cid} any more.`], yes: 'Give up' }))) return
  const address = `/uploads/${encodeURIComponent(cid)}/${encodeURIComponent(name)}`
  try {
    const answer = await ask(address, { method: 'DELETE' })
    if (answer.status === 409) {
      const text = [`Only this gateway holds ${cid}: its bytes are lost then.`]
      if (!(await confirmed({ title, text, yes: 'Give up and lose it' }))) return
      const second = await ask(`${address}?losing=true`, { method: 'DELETE' })
      if (!second.ok) await tell(await said(second))
    } else if (!answer.ok) await tell(await said(answer))
  } catch (error) {
    await tell(wordsOf(error))
  }
  void lookNow()
}

/** @param {string} text */
const tell = (text) => confirmed({ title: 'It was not done', text: [text], yes: 'Good' })
