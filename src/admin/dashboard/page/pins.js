// The life of a pin: a page of the pins by provider and state, and what an operator does with one. Each action says what it
// will do before it is done, and what each provider said when it is.
import { ask, said } from './client.js'
import { at, confirmed, wordsOf } from './dialog.js'
import { badge, both, detail, el, show, table, whole } from './elements.js'
import { count, moment, size } from './words.js'

/** @import { Brought, Page, Pin, Removal, TakenDown, Verification } from '../../../upload/pins/told.ts' */
/** @import { Status } from '../shape.ts' */
/** @import { Child } from './elements.js' */

const pageOf = 10

/** @type {Readonly<Record<string, 'good' | 'warn' | 'bad'>>} */
const kinds = { held: 'good', removed: 'good', absent: 'warn', wanted: 'warn', queued: 'warn', 'not-asked': 'warn' }

/**
 * What can be done with a pin. `text`: what it will do.
 * @typedef {{
 *   readonly word: string,
 *   readonly method: string,
 *   readonly path: (cid: string, more: HTMLFormElement | undefined) => string,
 *   readonly text: (cid: string, names: string) => readonly string[],
 *   readonly result: (answer: any) => readonly Child[],
 *   readonly more?: () => Element,
 *   readonly isDanger?: boolean,
 * }} Action
 */

/** @type {Readonly<Record<string, Action>>} */
const actions = {
  verify: {
    word: 'Verify',
    method: 'POST',
    path: (cid) => `/pins/${cid}/verify`,
    text: (cid, names) => [
      `Every block of ${cid} is read from the disks of this machine and hashed, and the other providers are asked whether they still hold it (${names}).`,
      'Nothing is deleted. A provider that lost it is marked as lacking it.',
    ],
    result: (/** @type {Verification} */ { isWell, providers }) => [
      el('p', {}, isWell ? badge('good', 'well') : badge('bad', 'not well'), ' '),
      outcomes(
        providers.map(({ provider, state, blocks, bytes, damaged = [], why }) => ({
          provider,
          outcome: state,
          why: [
            blocks === undefined ? undefined : `blocks hashed: ${count(blocks)}, ${size(bytes)}`,
            damaged.length === 0 ? undefined : `missing or wrong: ${damaged.join(', ')}`,
            why,
          ]
            .filter(Boolean)
            .join('; '),
        })),
      ),
    ],
  },
  sync: {
    word: 'Bring',
    method: 'POST',
    path: (cid) => `/pins/${cid}/sync`,
    text: (cid, names) => [
      `${cid} is sent to each configured provider that lacks it (of ${names}), behind everything else and with retries. It is listed under uploads until they have it.`,
    ],
    result: (/** @type {Brought} */ { to }) => [
      el('p', {}, to.length === 0 ? 'No provider lacks it.' : `On its way to ${to.join(', ')}.`),
    ],
  },
  remove: {
    word: 'Delete',
    method: 'DELETE',
    isDanger: true,
    path: (cid) => `/pins/${cid}`,
    text: (cid, names) => [
      `${cid} is deleted at every provider that has it (of ${names}), and what is on its way stops. The blocks here that no other pin needs are freed.`,
      'This cannot be undone: where no other node has a copy, its bytes are lost. Caches serve it until they make room.',
    ],
    result: (/** @type {Removal} */ { isGone, providers }) => [gone(isGone), outcomes(providers)],
  },
  takedown: {
    word: 'Take down',
    method: 'POST',
    isDanger: true,
    path(cid, more) {
      const said = new FormData(more)
      const query = new URLSearchParams({ status: said.get('legal') ? '451' : '410' })
      const reason = String(said.get('reason') ?? '').trim()
      if (reason !== '') query.set('reason', reason)
      return `/deny/${cid}?${query}`
    },
    text: (cid, names) => [
      `${cid} and the paths below it are denied from now on, for reads and uploads. It is deleted at every provider that has it (of ${names}), and it and what lies below it go from all tiers, shared ones included.`,
      'This cannot be undone: its line in denylists/takedowns.deny can be removed, but its bytes do not come back by that. Other instances have to be told, too.',
    ],
    more: () =>
      el(
        'form',
        { class: 'more' },
        el('label', { for: 'reason' }, 'A word for the list, such as malware (may be empty)'),
        el('input', {
          id: 'reason',
          class: 'reason',
          name: 'reason',
          autocomplete: 'off',
          maxlength: 200,
          pattern: '[\\w.:\\/\\-]*',
        }),
        el(
          'label',
          {},
          el('input', { type: 'checkbox', name: 'legal', value: 'yes' }),
          ' For a legal reason: 451, not 410',
        ),
      ),
    result: (/** @type {TakenDown} */ { isGone, pins, blocks, kept, failures }) => [
      gone(isGone),
      el('p', {}, `Denied. Blocks purged from the tiers: ${count(blocks)}; kept for other pins: ${count(kept)}.`),
      ...failures.map((why) => el('p', {}, badge('bad', 'left'), ` ${why}`)),
      pins ? outcomes(pins.providers) : el('p', {}, 'No provider had it.'),
    ],
  },
}

/** @param {boolean} isGone */
const gone = (isGone) => el('p', {}, isGone ? badge('good', 'gone') : badge('bad', 'not gone everywhere'))

/** @param {readonly { readonly provider: string, readonly outcome: string, readonly why?: string }[]} told */
const outcomes = (told) =>
  table(
    'What each provider said',
    ['Provider', 'Outcome', 'More'],
    told.map(({ provider, outcome, why = '' }) => [
      provider,
      badge(kinds[outcome] ?? 'bad', outcome),
      why === '' ? '–' : why,
    ]),
  )

/** @param {string} cid @param {string} action */
const button = (cid, action) => {
  const { word = action, isDanger = false } = actions[action] ?? {}
  return el(
    'button',
    { type: 'button', class: isDanger ? 'danger' : undefined, 'data-cid': cid, 'data-do': action },
    word,
  )
}

/** @param {Pin} pin @returns {Child[]} */
function row({ cid, at: when, bytes, isOpen, providers }) {
  const states = Object.entries(providers)
  const isLacking = !isOpen && states.some(([, { state }]) => state === 'wanted' || state === 'absent')
  return [
    el('code', {}, cid),
    whole(moment(Date.parse(when), Date.now())),
    whole(size(bytes)),
    both(
      ...states.map(([name, { state, why }]) =>
        el('span', { class: 'standing' }, badge(kinds[state] ?? 'bad', state), ` ${name}`, detail(why)),
      ),
    ),
    both(...['verify', ...(isLacking ? ['sync'] : []), 'remove', 'takedown'].map((action) => button(cid, action))),
  ]
}

/** @returns {{ draw(status: Status): void }} */
export function startPins() {
  const section = at('pins')
  const provider = /** @type {HTMLSelectElement} */ (at('pins-provider'))
  const state = /** @type {HTMLSelectElement} */ (at('pins-state'))
  const own = /** @type {HTMLInputElement} */ (at('pin-field'))
  const result = at('pins-said')
  /** Where each page begins that was seen, the first one's first. */
  let begins = ['']
  let isWorking = false
  let isShown = false
  let names = ''

  async function load() {
    const query = new URLSearchParams({ limit: String(pageOf) })
    if (provider.value !== '') query.set('provider', provider.value)
    if (state.value !== '') query.set('state', state.value)
    const after = begins.at(-1) ?? ''
    if (after !== '') query.set('after', after)
    try {
      const answer = await ask(`/pins?${query}`)
      if (!answer.ok) return show(at('pins-body'), el('p', {}, await said(answer)))
      /** @type {Page} */
      const page = await answer.json()
      drawPage(page)
    } catch (error) {
      show(at('pins-body'), el('p', {}, wordsOf(error)))
    }
  }

  /** @param {Page} page */
  function drawPage({ pins, next }) {
    const heads = ['CID', 'Since', 'Size', 'Where', 'Action']
    const nothing = next === undefined ? 'No pin is like this.' : 'None on this page; the next ones may have some.'
    const first = begins.length === 1
    show(
      at('pins-body'),
      pins.length === 0 ? el('p', {}, nothing) : table(`Page ${count(begins.length)}`, heads, pins.map(row)),
      el(
        'p',
        { class: 'line' },
        el('button', { type: 'button', 'data-page': 'back', disabled: first ? '' : undefined }, 'Page before'),
        el(
          'button',
          { type: 'button', 'data-page': next ?? '', disabled: next === undefined ? '' : undefined },
          'Next page',
        ),
      ),
    )
  }

  /** @param {string} cid @param {string} name */
  async function act(cid, name) {
    const action = actions[name]
    if (!action || isWorking) return
    isWorking = true
    const { word } = action
    const more = action.more?.()
    more?.addEventListener('submit', (event) => event.preventDefault())
    const paragraphs = action
      .text(cid, names || 'none is configured')
      .map((text) => el('span', { class: 'block' }, text))
    try {
      if (!(await confirmed({ title: `${word}?`, text: paragraphs, yes: word, ...(more && { more }) }))) return
      show(result, el('p', {}, `${word} ${cid}: under way …`))
      const path = action.path(encodeURIComponent(cid), more instanceof HTMLFormElement ? more : undefined)
      const answer = await ask(path, { method: action.method })
      const told = answer.ok
        ? action.result(await answer.json())
        : [el('p', {}, badge('bad', 'refused'), ` ${await said(answer)}`)]
      show(result, el('h3', {}, `${word}: `, el('code', {}, cid)), ...told)
    } catch (error) {
      show(result, el('p', {}, wordsOf(error)))
    } finally {
      isWorking = false
    }
    await load()
    if (document.activeElement === document.body) result.focus()
  }

  section.addEventListener('click', (event) => {
    if (!(event.target instanceof HTMLElement)) return
    const { cid, do: action, page } = event.target.dataset
    if (action !== undefined) {
      const meant = cid ?? own.value.trim()
      if (meant === '') return own.focus()
      void act(meant, action)
    } else if (page !== undefined) {
      begins = page === 'back' ? begins.slice(0, -1) : [...begins, page]
      void load()
    }
  })
  at('pins-form').addEventListener('submit', (event) => {
    event.preventDefault()
    begins = ['']
    void load()
  })
  at('pin-form').addEventListener('submit', (event) => event.preventDefault())

  return {
    draw({ pins, providers }) {
      section.hidden = pins === undefined
      if (pins === undefined) return
      names = providers.map(({ name }) => name).join(', ')
      const total = pins.pins === undefined ? 'being counted' : `${count(pins.pins)}, ${size(pins.bytes)}`
      show(at('pins-total'), `Pins here: ${total}.`)
      show(
        provider,
        el('option', { value: '' }, 'any'),
        ...providers.map(({ name }) => el('option', { value: name }, name)),
      )
      if (!isShown) void load()
      isShown = true
    },
  }
}
