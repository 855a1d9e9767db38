// Creates elements, and updates the page by changing only what differs, so that focus, selection
// and scroll position stay while the numbers change.

const svgNames = new Set(['svg', 'path', 'rect'])

/** @typedef {Node | string | undefined} Child */

/**
 * @param {string} name
 * @param {Record<string, string | number | undefined>} attributes
 * @param {...Child} children
 * @returns {Element}
 */
export function el(name, attributes = {}, ...children) {
  const element = svgNames.has(name)
    ? document.createElementNS('http://www.w3.org/2000/svg', name)
    : document.createElement(name)
  for (const [key, value] of Object.entries(attributes))
    if (value !== undefined) element.setAttribute(key, String(value))
  element.append(...children.filter((child) => child !== undefined))
  return element
}

/** @param {Element} parent @param {...Child} children */
export function show(parent, ...children) {
  match(parent, children.filter((child) => child !== undefined).map(nodeOf))
}

/** @param {Node | string} child @returns {Node} */
const nodeOf = (child) => (typeof child === 'string' ? document.createTextNode(child) : child)

/** @param {Element} parent @param {Node[]} wanted */
function match(parent, wanted) {
  for (const [index, next] of wanted.entries()) {
    const there = parent.childNodes[index]
    if (there === undefined) parent.append(next)
    else if (there.nodeName !== next.nodeName) parent.replaceChild(next, there)
    else if (there instanceof Element && next instanceof Element) {
      matchAttributes(there, next)
      match(there, [...next.childNodes])
    } else if (there.nodeValue !== next.nodeValue) there.nodeValue = next.nodeValue
  }
  while (parent.childNodes.length > wanted.length) parent.lastChild?.remove()
}

/** @param {Element} there @param {Element} next */
function matchAttributes(there, next) {
  for (const name of there.getAttributeNames()) if (!next.hasAttribute(name)) there.removeAttribute(name)
  for (const name of next.getAttributeNames()) {
    const value = next.getAttribute(name) ?? ''
    if (there.getAttribute(name) !== value) there.setAttribute(name, value)
  }
}

/**
 * A table whose rows begin with their header. Roles are explicit because a phone shows rows as
 * blocks. A column may have a width: `tight`, `middle`, or `wide` for a cell with a line of its own
 * on a phone.
 * @param {string} caption
 * @param {readonly (string | readonly [head: string, width: string])[]} columns
 * @param {readonly (readonly Child[])[]} rows
 */
export function table(caption, columns, rows) {
  const heads = columns.map((column) => (typeof column === 'string' ? column : column[0]))
  const widths = columns.map((column) => (typeof column === 'string' ? undefined : column[1]))
  const cell = (/** @type {Child} */ child, /** @type {number} */ at) => {
    const isNothing = child === undefined || child === nothing
    const kind = isNothing ? 'nothing' : widths[at]?.includes('wide') ? 'wide' : undefined
    return el('td', { role: 'cell', class: kind, 'data-label': heads[at] }, child ?? nothing)
  }
  const row = (/** @type {readonly Child[]} */ [first, ...rest]) =>
    el(
      'tr',
      { role: 'row' },
      el('th', { scope: 'row', role: 'rowheader' }, first),
      ...rest.map((one, at) => cell(one, at + 1)),
    )
  return el(
    'table',
    { role: 'table' },
    el('caption', {}, caption),
    el('colgroup', {}, ...widths.map((width) => el('col', { class: width }))),
    el(
      'thead',
      { role: 'rowgroup' },
      el('tr', { role: 'row' }, ...heads.map((head) => el('th', { scope: 'col', role: 'columnheader' }, head))),
    ),
    el('tbody', { role: 'rowgroup' }, ...rows.map(row)),
  )
}

/** The content of an empty cell. */
export const nothing = '–'

/** @param {...Child} children */
export const both = (...children) => el('span', {}, ...children)

/** @param {string | undefined} text */
export const detail = (text) => (text === undefined ? undefined : el('span', { class: 'detail' }, text))

/** @param {'good' | 'warn' | 'bad'} kind @param {string} text */
export const badge = (kind, text) => el('span', { class: `badge ${kind}` }, text)

/** Shortens the CIDs in a text in their middle. @param {string} text */
export const shortened = (text) =>
  text.replace(
    /\b(?:b[a-z2-7]{30,}|Qm[1-9A-Za-z]{44}|k[0-9a-z]{40,})\b/g,
    (cid) => `${cid.slice(0, 9)}…${cid.slice(-6)}`,
  )

/** A CID, or a path with CIDs, shortened, with a button that copies all. @param {string} text */
export const cid = (text) =>
  el(
    'span',
    {},
    el('code', { title: text }, shortened(text)),
    el('button', { type: 'button', class: 'copy', 'data-copy': text, 'aria-label': `Copy ${shortened(text)}` }, 'Copy'),
  )

/** @param {HTMLElement} button @param {string} text */
export async function copy(button, text) {
  const isCopied = await navigator.clipboard?.writeText(text).then(
    () => true,
    () => false,
  )
  show(button, isCopied || copiedByCommand(text) ? 'Copied' : 'Not copied')
  setTimeout(() => show(button, 'Copy'), 2000)
}

/**
 * Works without the clipboard API, which a page has only over HTTPS or on this machine.
 * @param {string} text
 */
function copiedByCommand(text) {
  const field = document.createElement('textarea')
  field.value = text
  document.body.append(field)
  field.select()
  const isCopied = document.execCommand('copy')
  field.remove()
  return isCopied
}

/** @param {string} id @returns {HTMLElement} */
export function at(id) {
  const element = document.getElementById(id)
  if (!element) throw new Error(`the page has no ${id}`)
  return element
}

/**
 * Asks the operator; the safe choice has the focus. `more`: additional fields.
 * @typedef {{ readonly word: string, readonly what?: string, readonly isDanger?: boolean }} Choice
 * @param {{ title: string, text?: readonly Child[], choices: readonly Choice[], more?: Element | undefined }} question
 * @returns {Promise<number>} the index of the choice; -1: none
 */
export function choose({ title, text = [], choices, more }) {
  const dialog = /** @type {HTMLDialogElement} */ (at('ask'))
  show(at('ask-title'), title)
  show(at('ask-text'), ...text)
  at('ask-more').replaceChildren(...(more ? [more] : []))
  const button = (/** @type {Choice} */ { word, isDanger = false }, /** @type {number} */ index) =>
    el('button', { type: 'submit', value: index, class: isDanger ? 'danger' : undefined }, word)
  at('ask-choices').replaceChildren(
    ...choices.map((one, index) => el('div', { class: 'choice' }, button(one, index), one.what ?? '')),
  )
  dialog.showModal()
  // The dialog's `close` event would be late, and may belong to an earlier question.
  return new Promise((resolve) => {
    const over = new AbortController()
    const answer = (/** @type {number} */ index) => {
      over.abort()
      resolve(index)
    }
    const { signal } = over
    const chosen = (/** @type {SubmitEvent} */ { submitter }) =>
      Number.parseInt(submitter?.getAttribute('value') ?? '', 10)
    at('ask-form').addEventListener('submit', (event) => answer(chosen(event) >= 0 ? chosen(event) : -1), { signal })
    dialog.addEventListener('cancel', () => answer(-1), { signal })
  })
}

/** @param {unknown} error */
export const wordsOf = (error) => `No answer: ${error instanceof Error ? error.message : String(error)}`
