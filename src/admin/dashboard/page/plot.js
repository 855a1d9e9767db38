// Draws lines over time, and shares of a total, as SVG. The legend of a plot has the newest values
// as text.
import { el } from './elements.js'
import { share } from './words.js'

const width = 600
const height = 120

/** Red is reserved for faults. @param {number} at */
const seriesOf = (at) => `s${(at % 5) + 1}`

/** @typedef {{ readonly name: string, readonly values: readonly (number | undefined)[], readonly colour?: string }} Series */

/**
 * @param {string} title
 * @param {readonly Series[]} series
 * @param {{ readonly write: (value: number) => string, readonly span: string, readonly isGap: (at: number) => boolean, readonly max?: number }} how
 */
export function plot(title, series, { write, span, isGap, max: given }) {
  const max = given ?? Math.max(...series.flatMap(({ values }) => values.map((value) => value ?? 0)), 0)
  const said = series.map(({ name, values }) => {
    const latest = values.at(-1)
    return `${name} ${latest === undefined ? 'no data now' : write(latest)}`
  })
  const colour = (/** @type {number} */ at) => series[at]?.colour ?? seriesOf(at)
  return el(
    'figure',
    {},
    el('figcaption', {}, title),
    el('div', { class: 'ends' }, el('span', {}, `max ${write(max)}`)),
    el(
      'svg',
      {
        class: 'plot',
        viewBox: `0 0 ${width} ${height}`,
        preserveAspectRatio: 'none',
        role: 'img',
        'aria-label': `${title}, ${span}; now: ${said.join(', ')}; max ${write(max)}`,
      },
      ...series.map(({ values }, at) => el('path', { class: colour(at), d: lineOf(values, max || 1, isGap) })),
    ),
    el('div', { class: 'ends' }, el('span', {}, span), el('span', {}, 'now')),
    legend(said, colour),
  )
}

/**
 * Interrupts the line where nothing was measured.
 * @param {readonly (number | undefined)[]} values
 * @param {number} max
 * @param {(at: number) => boolean} isGap
 */
function lineOf(values, max, isGap) {
  const step = width / Math.max(1, values.length - 1)
  return values
    .map((value, at) => {
      if (value === undefined) return ''
      const point = `${(at * step).toFixed(1)},${(height - (value / max) * (height - 4)).toFixed(1)}`
      // An isolated point is a line of zero length, whose round ends make it a dot.
      return at > 0 && values[at - 1] !== undefined && !isGap(at) ? `L${point}` : `M${point}h0`
    })
    .join('')
}

/** @param {readonly string[]} said @param {(at: number) => string} colour */
const legend = (said, colour) =>
  el(
    'ul',
    { class: 'legend' },
    ...said.map((text, at) =>
      el(
        'li',
        {},
        el(
          'svg',
          { viewBox: '0 0 10 10', 'aria-hidden': 'true' },
          el('rect', { class: colour(at), width: 10, height: 10 }),
        ),
        text,
      ),
    ),
  )

/** @param {string} title @param {readonly (readonly [name: string, value: number])[]} parts */
export function shares(title, parts) {
  const all = parts.reduce((sum, [, value]) => sum + value, 0)
  const said = parts.map(([name, value]) => `${name} ${share(value, all)}`)
  let from = 0
  return el(
    'figure',
    {},
    el('figcaption', {}, title),
    el(
      'svg',
      {
        class: 'share',
        viewBox: '0 0 100 10',
        preserveAspectRatio: 'none',
        role: 'img',
        'aria-label': `${title}: ${said.join(', ') || 'nothing yet'}`,
      },
      ...parts.map(([, value], at) => {
        const part = (100 * value) / (all || 1)
        from += part
        return el('rect', { class: seriesOf(at), x: (from - part).toFixed(2), width: part.toFixed(2), height: 10 })
      }),
    ),
    legend(said, seriesOf),
  )
}
