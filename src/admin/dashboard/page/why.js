// Explains the response to a path: each block on it, its source, and the outcome at each upstream.
// Lists its blocks as a tree, with the tiers that have each.
import { ask, said } from './client.js'
import { at, badge, both, cid as cidOf, detail, el, show, table, wordsOf } from './elements.js'
import { count, ms, size, span } from './words.js'

/** @import { Blocks, Why } from '../shape.ts' */
/** @import { Placed, PlacedBlock } from '../../../observe/block-locations.ts' */
/** @import { Child } from './elements.js' */

/** Converts the operator's input to a path. @param {string} text */
function pathOf(text) {
  const trimmed = text.trim()
  const scheme = /^(ipfs|ipns):\/\/(.*)$/.exec(trimmed)
  if (scheme) return `/${scheme[1]}/${scheme[2]}`
  const url = /^https?:\/\/[^/]+(\/ip[fn]s\/[^?#]*)/.exec(trimmed)
  if (url?.[1]) return url[1]
  return /^\/ip[fn]s\//.test(trimmed) ? trimmed : `/ipfs/${trimmed}`
}

/** @param {Why} why @returns {Child[]} */
function whyOf({ path, status, ms: took, steps, found, failure, attempts }) {
  const kind = status < 400 ? 'good' : status < 500 ? 'warn' : 'bad'
  const retry =
    failure?.retryAfterMs === undefined ? '' : `; it may be worth asking again in ${span(failure.retryAfterMs)}`
  const what = found
    ? both(
        `${found.kind}, ${found.type}${found.bytes === undefined ? '' : `, ${size(found.bytes)}`}, CID `,
        cidOf(found.cid),
      )
    : `${failure?.kind}: ${failure?.why}${retry}`
  return [
    el('h3', {}, badge(kind, String(status)), ' ', cidOf(path)),
    el('p', {}, `After ${ms(took)}: `, what),
    steps.length === 0
      ? undefined
      : table(
          'The blocks of the path',
          [['Step', 'tight'], ['Block', 'wide'], 'From', ['Took', 'tight'], ['Size', 'tight']],
          steps.map(({ cid, from, isFetched, ms: stepMs, bytes }, at) => [
            count(at + 1),
            cidOf(cid),
            from === undefined ? 'memory of this request' : both(from, detail(isFetched ? 'an upstream' : 'a tier')),
            ms(stepMs),
            size(bytes),
          ]),
        ),
    attempts.length === 0
      ? undefined
      : table(
          'Outcome at each upstream',
          ['Upstream', 'Outcome', ['Brought', 'tight'], ['After', 'tight']],
          attempts.map(({ upstream, outcome, ms: after, bytes }) => [upstream, outcome, size(bytes ?? 0), ms(after)]),
        ),
  ]
}

/**
 * Each block once, directly below its parent.
 * @param {Placed['blocks']} blocks
 * @returns {{ readonly block: PlacedBlock, readonly number: number, readonly depth: number }[]}
 */
function asTree(blocks, parent = /** @type {number | undefined} */ (undefined), depth = 0) {
  return blocks.flatMap((block, index) =>
    block.parent === parent ? [{ block, number: index + 1, depth }, ...asTree(blocks, index, depth + 1)] : [],
  )
}

/** @param {PlacedBlock} block @param {readonly string[]} tiers */
function whereOf({ places, isAway, bytes }, tiers) {
  const marks = tiers.flatMap((name, tier) =>
    places[tier] === 'has' ? [badge('good', name)] : places[tier] === 'unknown' ? [badge('warn', `${name}?`)] : [],
  )
  if (places.includes('has')) return both(...marks)
  return both(...marks, isAway || bytes === undefined ? badge('bad', 'no tier here') : 'in its CID')
}

/** @param {Placed} placed @returns {Child[]} */
function blocksOf({ blocks, tiers, isCut }) {
  const all = count(blocks.length)
  const held = tiers.map((name, tier) => {
    const place = blocks.filter(({ places }) => places[tier] === 'has').length
    return el('li', {}, `${name}: ${count(place)} of ${all}`)
  })
  const away = blocks.filter(({ isAway }) => isAway).length
  return [
    el('h3', {}, isCut ? `The first ${all} blocks, and where they lie` : `Its blocks (${all}), and where they lie`),
    el('ul', { class: 'legend' }, ...held, el('li', {}, `in no tier here: ${count(away)}`)),
    table(
      'The blocks, each below the one that links to it',
      [
        ['Block', 'middle'],
        ['CID', 'wide'],
        ['Below', 'tight'],
        ['Size', 'tight'],
        ['Where', 'wide'],
      ],
      asTree(blocks).map(({ block, number, depth }) => [
        `${'\u00a0\u00a0'.repeat(depth)}${count(number)}`,
        cidOf(block.cid),
        block.parent === undefined ? 'the root' : count(block.parent + 1),
        block.bytes === undefined ? (block.isAway ? 'not known' : 'a leaf') : size(block.bytes),
        both(whereOf(block, tiers), detail(block.isAway ? 'what lies below it is not known' : undefined)),
      ]),
    ),
  ]
}

export function startWhy() {
  const section = at('why')
  const body = at('why-body')
  const tree = at('blocks-body')
  const field = /** @type {HTMLInputElement} */ (at('why-field'))

  /** @template Answer @param {string} route @param {string} text @param {(answer: Answer) => void} draw */
  async function read(route, text, draw) {
    section.hidden = false
    tree.replaceChildren()
    show(body, 'Reading …')
    try {
      const answer = await ask(`${route}?path=${encodeURIComponent(pathOf(text))}`)
      if (answer.ok) draw(await answer.json())
      else show(body, el('p', {}, await said(answer)))
    } catch (error) {
      show(body, el('p', {}, wordsOf(error)))
    }
  }
  const why = (/** @type {string} */ text) => read('/why', text, (/** @type {Why} */ why) => show(body, ...whyOf(why)))
  const draw = (/** @type {string} */ text) =>
    read('/blocks', text, (/** @type {Blocks} */ { why, placed }) => {
      show(body, ...whyOf(why))
      if (placed && placed.blocks.length > 0) show(tree, ...blocksOf(placed))
    })

  at('why-form').addEventListener('submit', (event) => {
    event.preventDefault()
    void why(field.value)
  })
  at('why-draw').addEventListener('click', () => {
    if (field.reportValidity()) void draw(field.value)
  })
  at('why-close').addEventListener('click', () => {
    section.hidden = true
    field.focus()
  })
  at('main').addEventListener('click', ({ target }) => {
    const path = target instanceof HTMLElement ? target.dataset['why'] : undefined
    if (path === undefined) return
    field.value = path
    field.focus()
    scrollTo({ top: 0 })
    void why(path)
  })
}
