// Pins: found by name, CID, provider and state, and the actions on one. Each action explains its
// effect first, and the outcome at each provider afterwards.
import { ask, said } from './client.js'
import {
  at,
  badge,
  both,
  choose,
  cid as cidOf,
  detail,
  el,
  nothing,
  shortened,
  show,
  table,
  wordsOf,
} from './elements.js'
import { count, moment, size } from './words.js'

/** @import { Brought, Page, Pin, Removal, TakenDown, Verification } from '../../../upload/api-types.ts' */
/** @import { Status } from '../shape.ts' */
/** @import { Child } from './elements.js' */

const pageOf = 10

const states = /** @type {const} */ ([
  ['', 'any'],
  ['pinned', 'pinned'],
  ['pending', 'pending: to be sent'],
  ['missing', 'missing: added later'],
  ['abandoned', 'abandoned'],
])

/** @type {Readonly<Record<string, 'good' | 'warn' | 'bad'>>} */
const kinds = { pinned: 'good', removed: 'good', missing: 'warn', pending: 'warn', queued: 'warn', 'not-asked': 'warn' }

/**
 * An action on a pin. `text`: the loss that it causes, shown before.
 * @typedef {{
 *   readonly word: string,
 *   readonly method: string,
 *   readonly path: (cid: string, more: HTMLFormElement | undefined) => string,
 *   readonly what: string,
 *   readonly text?: (cid: string, names: string) => readonly string[],
 *   readonly result: (answer: any) => readonly Child[],
 *   readonly more?: () => Element,
 * }} Action
 */

/** @type {Readonly<Record<string, Action>>} */
const actions = {
  verify: {
    word: 'Verify',
    method: 'POST',
    path: (cid) => `/pins/${cid}/verify`,
    what: 'Reads and hashes each of its blocks on this machine, and asks the other providers. Nothing is deleted.',
    result: (/** @type {Verification} */ { isWell, providers }) => [
      el('p', {}, isWell ? badge('good', 'complete') : badge('bad', 'damaged or missing')),
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
    what: 'Sends it to each configured provider that lacks it, with retries.',
    result: (/** @type {Brought} */ { to }) => [
      el('p', {}, to.length === 0 ? 'No provider lacks it.' : `Being sent to ${to.join(', ')}.`),
    ],
  },
  remove: {
    word: 'Delete',
    method: 'DELETE',
    what: 'Deletes it at every provider.',
    path: (cid) => `/pins/${cid}`,
    text: (cid, names) => [
      `${cid} is deleted at every provider that has it (of ${names}), and pending deliveries stop. Blocks here that no other pin needs are freed.`,
      'This cannot be undone: where no other node has a copy, its bytes are lost. Caches serve it until they evict it.',
    ],
    result: (/** @type {Removal} */ { isGone, providers }) => [gone(isGone), outcomes(providers)],
  },
  takedown: {
    word: 'Take down',
    method: 'POST',
    what: 'Denies it from now on, and purges it from all tiers and providers.',
    path(cid, more) {
      const said = new FormData(more)
      const query = new URLSearchParams({ status: said.get('legal') ? '451' : '410' })
      const reason = String(said.get('reason') ?? '').trim()
      if (reason !== '') query.set('reason', reason)
      return `/deny/${cid}?${query}`
    },
    text: (cid, names) => [
      `${cid} and the paths below it are denied from now on, for reads and uploads. It is deleted at every provider that has it (of ${names}), and it and what lies below it go from all tiers, shared ones included.`,
      'This cannot be undone: its line in denylists/takedowns.deny can be removed, but that does not restore its bytes. Take it down at the other instances too.',
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
      el('p', {}, `Denied. Blocks purged from the tiers: ${count(blocks)}; retained for other pins: ${count(kept)}.`),
      ...failures.map((why) => el('p', {}, badge('bad', 'left'), ` ${why}`)),
      pins ? outcomes(pins.providers) : el('p', {}, 'No provider had it.'),
    ],
  },
}

/** @param {boolean} isGone */
const gone = (isGone) => el('p', {}, isGone ? badge('good', 'gone') : badge('bad', 'not gone everywhere'))

/** @param {readonly { readonly provider: string, readonly outcome: string, readonly why?: string }[]} shown */
const outcomes = (shown) =>
  table(
    'Outcome at each provider',
    ['Provider', ['Outcome', 'middle'], ['More', 'wide']],
    shown.map(({ provider, outcome, why = '' }) => [
      provider,
      badge(kinds[outcome] ?? 'bad', outcome),
      why === '' ? nothing : why,
    ]),
  )

/** @param {Pin} pin @returns {Child[]} */
function row({ cid, name, at: when, bytes, providers }) {
  return [
    name ?? nothing,
    cidOf(cid),
    moment(Date.parse(when), Date.now()),
    size(bytes),
    both(
      ...Object.entries(providers).map(([holder, { state, why }]) =>
        el('span', { class: 'block' }, badge(kinds[state] ?? 'bad', state), ` ${holder}`, detail(why)),
      ),
    ),
    el('button', { type: 'button', 'data-cid': cid, 'aria-label': `Actions for ${shortened(cid)}` }, 'Actions'),
  ]
}

/** @returns {{ draw(status: Status): void }} */
export function startPins() {
  const section = at('pins')
  const name = /** @type {HTMLInputElement} */ (at('pins-name'))
  const provider = /** @type {HTMLSelectElement} */ (at('pins-provider'))
  const state = /** @type {HTMLSelectElement} */ (at('pins-state'))
  const result = at('pins-said')
  /** The cursors of the pages seen so far, in order. */
  let begins = ['']
  let isWorking = false
  let names = ''
  show(state, ...states.map(([value, text]) => el('option', { value }, text)))

  async function load() {
    const query = new URLSearchParams({ limit: String(pageOf) })
    const after = begins.at(-1) ?? ''
    const asked = { provider: provider.value, state: state.value, name: name.value.trim(), after }
    for (const [key, value] of Object.entries(asked)) if (value !== '') query.set(key, value)
    try {
      const answer = await ask(`/pins?${query}`)
      if (answer.ok) drawPage(await answer.json())
      else show(at('pins-body'), el('p', {}, await said(answer)))
    } catch (error) {
      show(at('pins-body'), el('p', {}, wordsOf(error)))
    }
  }

  /** Content that is not pinned can be taken down too. */
  function noPin() {
    const cid = name.value.trim()
    if (shortened(cid) === cid) return [el('p', {}, 'No pin is like this.')]
    return [
      el('p', {}, 'It is not pinned. '),
      el('p', {}, el('button', { type: 'button', 'data-cid': cid }, 'Actions')),
    ]
  }

  /** @param {Page} page */
  function drawPage({ pins, next }) {
    const isFirst = begins.length === 1
    const page = (/** @type {string} */ to, /** @type {boolean} */ isOff, /** @type {string} */ text) =>
      el('button', { type: 'button', 'data-page': to, disabled: isOff ? '' : undefined }, text)
    show(
      at('pins-body'),
      ...(pins.length > 0
        ? [
            table(
              `Page ${count(begins.length)}`,
              [
                ['Name', 'wide'],
                ['CID', 'wide'],
                ['Since', 'middle'],
                ['Size', 'tight'],
                ['Where', 'wide'],
                ['Action', 'tight'],
              ],
              pins.map(row),
            ),
          ]
        : next === undefined
          ? noPin()
          : [el('p', {}, 'None on this page; the next ones may have some.')]),
      isFirst && next === undefined
        ? undefined
        : el(
            'p',
            { class: 'line' },
            page('back', isFirst, 'Page before'),
            page(next ?? '', next === undefined, 'Next page'),
          ),
    )
  }

  /** @param {string} cid */
  async function menu(cid) {
    if (isWorking) return
    isWorking = true
    try {
      const all = Object.values(actions)
      const choices = all.map(({ word, what, text }) => ({ word, what, isDanger: text !== undefined }))
      const action = all[await choose({ title: 'Actions', text: [cidOf(cid)], choices })]
      if (action) await act(cid, action)
    } finally {
      isWorking = false
    }
  }

  /** @param {string} cid @param {Action} action */
  async function act(cid, { word, text, method, path, more: makeMore, result: resultOf }) {
    const more = makeMore?.()
    more?.addEventListener('submit', (event) => event.preventDefault())
    if (text) {
      const paragraphs = text(cid, names || 'none is configured').map((one) => el('p', {}, one))
      if ((await choose({ title: `${word}?`, text: paragraphs, choices: [{ word, isDanger: true }], more })) < 0) return
    }
    try {
      show(result, el('p', {}, `${word}: in progress …`))
      const route = path(encodeURIComponent(cid), more instanceof HTMLFormElement ? more : undefined)
      const answer = await ask(route, { method })
      const body = answer.ok
        ? resultOf(await answer.json())
        : [el('p', {}, badge('bad', 'refused'), ` ${await said(answer)}`)]
      show(result, el('h3', {}, `${word}: `, cidOf(cid)), ...body)
    } catch (error) {
      show(result, el('p', {}, wordsOf(error)))
    }
    // A click during the reload opens the next menu.
    void load().then(() => {
      if (document.activeElement === document.body) result.focus()
    })
  }

  section.addEventListener('click', ({ target }) => {
    const { cid, page } = target instanceof HTMLElement ? target.dataset : {}
    if (cid !== undefined) void menu(cid)
    if (page === undefined) return
    begins = page === 'back' ? begins.slice(0, -1) : [...begins, page]
    void load()
  })
  section.addEventListener('toggle', () => {
    if (section instanceof HTMLDetailsElement && section.open) void load()
  })
  at('pins-form').addEventListener('submit', (event) => {
    event.preventDefault()
    begins = ['']
    void load()
  })

  return {
    draw({ pins, providers }) {
      section.hidden = pins === undefined
      if (pins === undefined) return
      names = providers.map(({ name: one }) => one).join(', ')
      show(at('pins-gist'), pins.pins === undefined ? 'being counted' : `${count(pins.pins)}, ${size(pins.bytes)}`)
      show(
        provider,
        el('option', { value: '' }, 'any'),
        ...providers.map(({ name: one }) => el('option', { value: one }, one)),
      )
    },
  }
}
