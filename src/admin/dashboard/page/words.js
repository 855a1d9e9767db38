// Formats numbers, sizes and times.

const numbers = new Intl.NumberFormat('en', { maximumFractionDigits: 0 })
const tenths = new Intl.NumberFormat('en', { maximumFractionDigits: 1 })
const clock = new Intl.DateTimeFormat('en', { hour: '2-digit', minute: '2-digit', second: '2-digit', hourCycle: 'h23' })
const day = new Intl.DateTimeFormat('en', { month: 'short', day: 'numeric' })

/** @param {number} value */
export const count = (value) => numbers.format(value)

/** @param {number} value */
export const rate = (value) => (value >= 10 ? numbers : tenths).format(value)

/** @param {number} part @param {number} all */
export const share = (part, all) => (all === 0 ? '–' : `${tenths.format((100 * part) / all)} %`)

const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB']

/** @param {number | undefined} bytes */
export function size(bytes) {
  if (bytes === undefined) return 'not known'
  let value = bytes
  let unit = 0
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024
    unit++
  }
  return `${(unit === 0 || value >= 100 ? numbers : tenths).format(value)} ${units[unit]}`
}

/** @param {number | undefined} value */
export function ms(value) {
  if (value === undefined) return '–'
  if (value < 10) return `${tenths.format(value)} ms`
  return value < 10_000 ? `${numbers.format(value)} ms` : `${tenths.format(value / 1000)} s`
}

/** @param {{ readonly p50Ms?: number, readonly p95Ms?: number }} times */
export const times = ({ p50Ms, p95Ms }) => (p50Ms === undefined ? '–' : `${ms(p50Ms)} / ${ms(p95Ms)}`)

/** Formats a duration. @param {number} given milliseconds */
export function span(given) {
  const seconds = Math.max(0, Math.round(given / 1000))
  if (seconds < 120) return `${seconds} s`
  if (seconds < 7200) return `${Math.floor(seconds / 60)} min`
  return seconds < 172_800 ? `${Math.floor(seconds / 3600)} h` : `${Math.floor(seconds / 86_400)} days`
}

/** Omits the date if it is today. @param {number} at @param {number} now */
export function moment(at, now) {
  const date = new Date(at)
  const isToday = date.toDateString() === new Date(now).toDateString()
  return isToday ? clock.format(date) : `${day.format(date)}, ${clock.format(date)}`
}
