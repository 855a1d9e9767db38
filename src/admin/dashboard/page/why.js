// Explains the response to a path: each block on it, its source, and the outcome at each upstream.
// Draws the blocks as a tree, with a letter for each tier that has the block; nodes are focusable
// and lead to the rows of the list, which has the same facts as text.
import { ask, said } from './client.js'
import { at, badge, both, cid as cidOf, detail, el, show, table, wordsOf } from './elements.js'
import { count, ms, size, span } from './words.js'

/** @import { Blocks, Why } from '../shape.ts' */
/** @import { Place, Placed, PlacedBlock } from '../../../observe/block-locations.ts' */
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

const field = 18
const high = 20
const gap = 8
const indent = 22
const maxWidth = 960
const minWidth = 280

/** A letter for each name, of the name if possible. @param {readonly string[]} names */
function lettersOf(names) {
  /** @type {string[]} */
  const letters = []
  for (const name of names)
    letters.push([...`${name.toUpperCase()}123456789`].find((one) => /\w/.test(one) && !letters.includes(one)) ?? '*')
  return letters
}

/** @typedef {{ readonly index: number, readonly x: number, readonly y: number }} Spot */

/**
 * Each block with children begins a line; leaves of one block are side by side below it.
 * @param {Placed} placed
 * @param {number} width
 */
function layOut({ blocks, tiers }, width) {
  const wide = tiers.length * field + gap
  /** @type {number[][]} */
  const below = blocks.map(() => [])
  for (const [index, { parent }] of blocks.entries()) if (parent !== undefined) below[parent]?.push(index)
  /** @type {Spot[]} */
  const spots = []
  /** @type {string[]} */
  const lines = []
  let y = gap

  /** @param {number} index @param {number} depth */
  function putTree(index, depth) {
    const x = gap + Math.min(depth, 6) * indent
    const from = y
    spots.push({ index, x, y })
    y += high + gap
    const branch = x + indent / 2
    const right = Math.max(1, Math.floor((width - x - indent) / wide))
    let column = 0
    let last = from
    const endRow = () => {
      if (column > 0) y += high + gap
      column = 0
    }
    for (const child of below[index] ?? []) {
      if ((below[child] ?? []).length > 0) endRow()
      if (column === 0) {
        last = y + high / 2
        lines.push(`M${branch} ${last}H${x + indent}`)
      }
      if ((below[child] ?? []).length > 0) putTree(child, depth + 1)
      else {
        spots.push({ index: child, x: x + indent + column * wide, y })
        column++
        if (column >= right) endRow()
      }
    }
    endRow()
    if (last > from) lines.push(`M${branch} ${from + high}V${last}`)
  }

  putTree(0, 0)
  return { spots, lines, height: y }
}

/** @param {PlacedBlock} block @param {readonly string[]} tiers */
function whereOf({ places, isAway, bytes }, tiers) {
  const named = (/** @type {Place} */ place) => tiers.filter((_, index) => places[index] === place).join(', ')
  const silent = named('unknown')
  const has = named('has')
  const place = has !== '' ? has : isAway ? 'no tier here' : bytes === undefined ? 'no tier here' : 'in its CID'
  return silent === '' ? place : `${place}; not known of ${silent}`
}

/** @param {Placed} placed @param {number} width */
function drawing(placed, width) {
  const { blocks, tiers } = placed
  const letters = lettersOf(tiers)
  const { spots, lines, height } = layOut(placed, width)
  /** @param {Spot} spot */
  const node = ({ index, x, y }) => {
    const block = /** @type {PlacedBlock} */ (blocks[index])
    // The accessible name begins with the visible text, for voice control.
    const marks = block.places.map((place, tier) =>
      place === 'has' ? (letters[tier] ?? '') : place === 'unknown' ? '?' : '',
    )
    const label = `${marks.join('')} block ${index + 1}: ${whereOf(block, tiers)}`.trim()
    return el(
      'svg:a',
      { href: `#block-${index + 1}`, 'aria-label': label },
      el('svg:title', {}, `${label}, ${block.cid}`),
      ...block.places.flatMap((place, tier) => [
        el('svg:rect', {
          class: place === 'has' ? `s${(tier % 6) + 1}` : 'lacks',
          x: x + tier * field,
          y,
          width: field - 1,
          height: high,
        }),
        marks[tier] === ''
          ? undefined
          : el(
              'svg:text',
              {
                class: place === 'has' ? 'has' : 'not',
                x: x + tier * field + field / 2,
                y: y + high / 2,
              },
              marks[tier],
            ),
      ]),
    )
  }
  return el(
    'svg:svg',
    {
      class: 'blocks',
      viewBox: `0 0 ${width} ${height}`,
      width,
      height,
      role: 'group',
      'aria-label': 'The blocks as a tree',
    },
    el('svg:path', { class: 'edges', d: lines.join('') }),
    ...spots.map(node),
  )
}

/** @param {Placed} placed @param {number} width @returns {Child[]} */
function blocksOf(placed, width) {
  const { blocks, tiers, isCut } = placed
  const letters = lettersOf(tiers)
  const all = blocks.length
  const away = blocks.filter(({ isAway }) => isAway).length
  const legend = tiers.map((name, tier) => {
    const place = blocks.filter(({ places }) => places[tier] === 'has').length
    const swatch = el(
      'svg:svg',
      { viewBox: '0 0 8 8', 'aria-hidden': 'true' },
      el('svg:rect', { class: `s${(tier % 6) + 1}`, width: 8, height: 8 }),
    )
    return el('li', {}, swatch, `${letters[tier]} ${name}: ${count(place)} of ${count(all)}`)
  })
  return [
    el(
      'h3',
      {},
      isCut ? `The first ${count(all)} blocks, and where they lie` : `Its blocks (${count(all)}), and where they lie`,
    ),
    el('ul', { class: 'legend' }, ...legend, el('li', {}, `in no tier here: ${count(away)}`)),
    drawing(placed, width),
    el(
      'details',
      { id: 'blocks-list' },
      el('summary', {}, 'The same in words'),
      table(
        'The blocks, level by level',
        [['Block', 'tight'], ['CID', 'wide'], ['Below', 'tight'], ['Size', 'tight'], 'Where'],
        blocks.map((block, index) => [
          el('span', { id: `block-${index + 1}` }, count(index + 1)),
          cidOf(block.cid),
          block.parent === undefined ? 'the root' : count(block.parent + 1),
          block.bytes === undefined ? (block.isAway ? 'not known' : 'a leaf') : size(block.bytes),
          both(whereOf(block, tiers), detail(block.isAway ? 'what lies below it is not known' : undefined)),
        ]),
      ),
    ),
  ]
}

/** @returns {{ why(text: string): Promise<void>, draw(text: string): Promise<void> }} */
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
      const width = Math.max(minWidth, Math.min(maxWidth, tree.clientWidth))
      if (placed && placed.blocks.length > 0) show(tree, ...blocksOf(placed, width))
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
  tree.addEventListener('click', ({ target }) => {
    const list = document.getElementById('blocks-list')
    if (target instanceof Element && target.closest('svg a') && list instanceof HTMLDetailsElement) list.open = true
  })
  at('main').addEventListener('click', ({ target }) => {
    const path = target instanceof HTMLElement ? target.dataset['why'] : undefined
    if (path === undefined) return
    field.value = path
    field.focus()
    scrollTo({ top: 0 })
    void why(path)
  })
  return { why, draw }
}
