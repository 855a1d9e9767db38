// Draws lines over time, and shares of a whole, as SVG. The legend beside a plot says the newest values in words.
import { el } from './elements.js'
import { share } from './words.js'

const width = 600
const height = 120

/** @param {number} at */
const seriesOf = (at) => `s${(at % 6) + 1}`

/** Red is for what is bad, and a tier is not. */
const calm = [1, 4, 3, 5, 6]
/** @param {number} at */
const calmOf = (at) => `s${calm[at % calm.length]}`

/** @typedef {{ readonly name: string, readonly values: readonly (number | undefined)[] }} Series */

/**
 * @param {string} title
 * @param {readonly Series[]} series
 * @param {{ readonly write: (value: number) => string, readonly span: string }} how
 */
export function plot(title, series, { write, span }) {
  const most = Math.max(...series.flatMap(({ values }) => values.map((value) => value ?? 0)), 0)
  const latest = series.map(({ values }) => values.at(-1))
  const said = series.map(({ name }, at) => `${name} ${latest[at] === undefined ? 'none' : write(latest[at])}`)
  return el(
    'figure',
    {},
    el('figcaption', {}, title),
    el('div', { class: 'ends' }, el('span', {}, `at most ${write(most)}`)),
    el(
      'svg',
      {
        class: 'plot',
        viewBox: `0 0 ${width} ${height}`,
        preserveAspectRatio: 'none',
        role: 'img',
        'aria-label': `${title}, ${span}; now: ${said.join(', ')}; at most ${write(most)}`,
      },
      ...series.map(({ values }, at) => el('polyline', { class: seriesOf(at), points: pointsOf(values, most || 1) })),
    ),
    el('div', { class: 'ends' }, el('span', {}, span), el('span', {}, 'now')),
    legend(said, seriesOf),
  )
}

/** Where nothing was measured, the line goes on from the value before. @param {readonly (number | undefined)[]} values @param {number} most */
function pointsOf(values, most) {
  const step = width / Math.max(1, values.length - 1)
  return values
    .map((value, at) =>
      value === undefined ? '' : `${(at * step).toFixed(1)},${(height - (value / most) * (height - 4)).toFixed(1)}`,
    )
    .filter((point) => point !== '')
    .join(' ')
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
        return el('rect', { class: calmOf(at), x: (from - part).toFixed(2), width: part.toFixed(2), height: 10 })
      }),
    ),
    legend(said, calmOf),
  )
}
