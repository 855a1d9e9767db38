// Makes elements, and brings what is on the page to what it should be by changing only what differs: the focus, a selection and
// a reader's place stay where they are while the numbers change.

const svgNames = new Set(['svg', 'polyline', 'rect', 'title'])
const ofSvg = 'svg:'

/** @typedef {Node | string | undefined} Child */

/**
 * @param {string} name `svg:a` is the element of SVG where HTML has one of that name
 * @param {Record<string, string | number | undefined>} attributes
 * @param {...Child} children
 * @returns {Element}
 */
export function el(name, attributes = {}, ...children) {
  const bare = name.startsWith(ofSvg) ? name.slice(ofSvg.length) : name
  const element =
    bare !== name || svgNames.has(name)
      ? document.createElementNS('http://www.w3.org/2000/svg', bare)
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
 * A table; the first cell of each row names it. The roles are said because a phone shows rows as blocks.
 * @param {string} caption
 * @param {readonly string[]} heads
 * @param {readonly (readonly Child[])[]} rows
 */
export function table(caption, heads, rows) {
  const row = (/** @type {readonly Child[]} */ [first, ...rest]) =>
    el(
      'tr',
      { role: 'row' },
      el('th', { scope: 'row', role: 'rowheader' }, first),
      ...rest.map((cell, at) => el('td', { role: 'cell', 'data-label': heads[at + 1] }, cell)),
    )
  return el(
    'table',
    { role: 'table' },
    el('caption', {}, caption),
    el(
      'thead',
      { role: 'rowgroup' },
      el('tr', { role: 'row' }, ...heads.map((head) => el('th', { scope: 'col', role: 'columnheader' }, head))),
    ),
    el('tbody', { role: 'rowgroup' }, ...rows.map(row)),
  )
}

/** @param {...Child} children */
export const both = (...children) => el('span', {}, ...children)

/** @param {string | undefined} text */
export const detail = (text) => (text === undefined ? undefined : el('span', { class: 'detail' }, text))

/** What is not broken into lines. @param {string} text */
export const whole = (text) => el('span', { class: 'number' }, text)

/** @param {'good' | 'warn' | 'bad'} kind @param {string} text */
export const badge = (kind, text) => el('span', { class: `badge ${kind}` }, text)
