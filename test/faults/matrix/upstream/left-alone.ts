// An upstream that did what it is kept away from for, and is well by now. A healthy one answers in any case, so what is looked at is
// whether it was asked.
import { setTimeout as sleep } from 'node:timers/promises'
import { read, untilWhole } from '../reading.ts'
import { type Cell, inMs } from '../rows.ts'
import { askedBy, keptAwayMs, type Out, type Parts } from './cells.ts'

const fewReads = 2
const pauseMs = 50
const lateMs = 200

export async function awayCell(parts: Parts, out: Out): Promise<Cell> {
  const { fault, form } = parts
  const alone = fault.after === 'left alone' ? [notAskedAlone(parts)] : form.watchedMs > 0 ? [askedAlone(parts)] : []
  const cells = await Promise.all([besideCell(parts, out), ...alone])
  return { measured: cells.map(({ measured }) => measured).join('; '), broken: cells.flatMap(({ broken }) => broken) }
}

/**
 * Files that both have are read, and the healthy one is late: another one would be asked beside it. The one that was ill is not, while it
 * is kept away from.
 */
async function besideCell(parts: Parts, { since, asked }: Out): Promise<Cell> {
  const { fault, form, both, well, fresh } = parts
  well.delayMs = lateMs
  const keptUntil = since + keptAwayMs[fault.after]
  const comesBack = fault.after === 'quarantined' && form.watchedMs > 0
  const lookUntil = comesBack ? keptUntil : performance.now() + form.watchedMs
  const broken: string[] = []
  let reads = 0
  for (;;) {
    const { outcome } = await read(both.url, await fresh())
    if (outcome !== 'complete') broken.push(`by the healthy one: ${outcome}`)
    const now = performance.now()
    if (now > keptUntil) break
    if (askedBy(parts, 'beside') > asked)
      return { measured: `asked after ${inMs(now - since)}`, broken: [...broken, 'asked while it is kept away from'] }
    if (++reads >= fewReads && now > lookUntil) break
    await sleep(pauseMs)
  }
  if (reads === 0) broken.push('its time was over before anybody looked')
  const measured = `left alone for ${reads} reads`
  if (!comesBack) return { measured, broken }
  const back = await backCell(parts)
  return { measured: `${measured}; ${back.measured}`, broken: [...broken, ...back.broken] }
}

/** Its time is over: it answers when the healthy one falls ill. */
async function backCell({ well, both, fresh, form }: Parts): Promise<Cell> {
  well.fault = { kind: 'refuse' }
  const ms = await untilWhole(both.url, fresh, form.recoveredWithinMs)
  if (!Number.isFinite(ms)) return { measured: 'then not', broken: ['not as good as new in time'] }
  return { measured: `then complete without the other after ${inMs(ms)}`, broken: [] }
}

/** It asked to be left alone, and nobody else could be asked. */
async function notAskedAlone(parts: Parts): Promise<Cell> {
  const { single, fresh } = parts
  const asked = askedBy(parts, 'alone')
  const outcomes = []
  for (let reads = 0; reads < fewReads; reads++) outcomes.push((await read(single.url, await fresh())).outcome)
  const more = askedBy(parts, 'alone') - asked
  const broken = outcomes
    .filter((outcome) => outcome !== 404)
    .map((outcome) => `alone, while it is left alone: ${outcome}`)
  if (more > 0) broken.push(`alone: asked ${more} times while it is to be left alone`)
  return { measured: `alone: ${outcomes.at(-1)}, not asked`, broken }
}

/** What it sends is proved anyway: where there is no other, it is asked now and then. */
async function askedAlone({ single, fresh, form }: Parts): Promise<Cell> {
  const ms = await untilWhole(single.url, fresh, form.recoveredWithinMs)
  if (!Number.isFinite(ms)) return { measured: 'alone: not', broken: ['alone: not as good as new in time'] }
  return { measured: `alone: complete after ${inMs(ms)}`, broken: [] }
}
