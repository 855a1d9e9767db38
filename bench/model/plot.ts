// Plots as SVG, made of text: lines over a logarithmic axis of bytes. The same figures give the same file.

export type Line = { readonly name: string; readonly points: readonly (readonly [x: number, y: number])[] }
export type Plot = {
  readonly title: string
  readonly across: string
  readonly up: string
  readonly ticks: readonly (readonly [x: number, label: string])[]
  readonly most: number
  readonly lines: readonly Line[]
}

const [width, height] = [640, 360]
const area = { left: 64, right: 616, top: 40, bottom: 300 }
const colours = ['#1b6ca8', '#c4511b', '#3a8a3f', '#7a4ba0']
const steps = 5

export function svg({ title, across, up, ticks, most, lines }: Plot): string {
  const xs = ticks.map(([x]) => Math.log(x))
  const [first, last] = [Math.min(...xs), Math.max(...xs)]
  const at = (x: number) => round(area.left + ((Math.log(x) - first) / (last - first)) * (area.right - area.left))
  const over = (y: number) => round(area.bottom - (y / most) * (area.bottom - area.top))
  const text = (x: number, y: number, words: string, anchor = 'middle', more = '') =>
    `<text x="${x}" y="${y}" text-anchor="${anchor}"${more}>${words}</text>`
  const rule = (x1: number, y1: number, x2: number, y2: number) =>
    `<line x1="${x1}" y1="${y1}" x2="${x2}" y2="${y2}" stroke="#ddd"/>`
  const levels = Array.from({ length: steps + 1 }, (_, index) => (most / steps) * index)
  return `${[
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" font-family="sans-serif" font-size="12" role="img" aria-label="${title}">`,
    `<rect width="${width}" height="${height}" fill="#fff"/>`,
    text(area.left, 22, title, 'start', ' font-size="14" font-weight="bold"'),
    ...levels.flatMap((level) => [
      rule(area.left, over(level), area.right, over(level)),
      text(area.left - 6, over(level) + 4, String(round(level)), 'end'),
    ]),
    ...ticks.flatMap(([x, label]) => [rule(at(x), area.top, at(x), area.bottom), text(at(x), area.bottom + 16, label)]),
    text((area.left + area.right) / 2, area.bottom + 34, across),
    text(14, (area.top + area.bottom) / 2, up, 'middle', ` transform="rotate(-90 14 ${(area.top + area.bottom) / 2})"`),
    ...lines.flatMap(({ name, points }, index) => {
      const colour = colours[index % colours.length] ?? ''
      const path = points.map(([x, y]) => `${at(x)},${over(Math.min(y, most))}`).join(' ')
      const x = area.left + index * 180
      return [
        `<polyline points="${path}" fill="none" stroke="${colour}" stroke-width="2"/>`,
        `<line x1="${x}" y1="350" x2="${x + 20}" y2="350" stroke="${colour}" stroke-width="2"/>`,
        text(x + 26, 354, name, 'start'),
      ]
    }),
    '</svg>',
  ].join('\n')}\n`
}

const round = (value: number): number => Math.round(value * 10) / 10
