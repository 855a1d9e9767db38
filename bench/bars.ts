// A plot of ratios as SVG: a bar for each on a logarithmic axis, relative to the peer (1), with a
// mark for the aim. The same figures give the same file.

type Bar = {
  readonly name: string
  readonly ratio: number
  readonly aim: number | undefined
  readonly isMissed: boolean
}

const [width, left, right, top, step] = [760, 190, 700, 56, 22]
const ticks = [0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50]

export function bars(all: readonly Bar[]): string {
  const values = [...all.flatMap(({ ratio, aim }) => [ratio, aim ?? ratio]), 0.5, 2].filter((value) => value > 0)
  const inside = ticks.filter((tick) => tick >= Math.min(...values) / 2.5 && tick <= Math.max(...values) * 2.5)
  const [first, last] = [Math.log(inside[0] ?? 0.05), Math.log(inside.at(-1) ?? 50)]
  const at = (value: number): number => {
    const share = (Math.log(Math.max(value, 1e-3)) - first) / (last - first)
    return Math.round(left + Math.min(1, Math.max(0, share)) * (right - left))
  }
  const bottom = top + all.length * step
  const label = 'The gateway: work per processor second as a share of each peer'
  return `${[
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${bottom + 40}" font-family="sans-serif" font-size="12" role="img" aria-label="${label}">`,
    `<rect width="${width}" height="${bottom + 40}" fill="#fff"/>`,
    `<text x="12" y="22" font-size="14" font-weight="bold">${label}</text>`,
    '<text x="12" y="40">blue: aim met, or none; red: not met; black line: the aim</text>',
    ...inside.flatMap((tick) => [
      `<line x1="${at(tick)}" y1="${top}" x2="${at(tick)}" y2="${bottom}" stroke="${tick === 1 ? '#888' : '#ddd'}"/>`,
      `<text x="${at(tick)}" y="${bottom + 18}" text-anchor="middle">${tick} x</text>`,
    ]),
    ...all.flatMap(({ name, ratio, aim, isMissed }, index) => {
      const y = top + index * step
      const [from, to] = [Math.min(at(1), at(ratio)), Math.max(at(1), at(ratio))]
      const colour = isMissed ? '#c4511b' : '#1b6ca8'
      return [
        `<text x="${left - 8}" y="${y + 15}" text-anchor="end">${name}</text>`,
        `<rect x="${from}" y="${y + 4}" width="${Math.max(1, to - from)}" height="${step - 8}" fill="${colour}"/>`,
        ...(aim === undefined
          ? []
          : [
              `<line x1="${at(aim)}" y1="${y + 1}" x2="${at(aim)}" y2="${y + step - 1}" stroke="#000" stroke-width="2"/>`,
            ]),
        `<text x="${width - 8}" y="${y + 15}" text-anchor="end">${ratio.toFixed(2)}</text>`,
      ]
    }),
    '</svg>',
  ].join('\n')}\n`
}
