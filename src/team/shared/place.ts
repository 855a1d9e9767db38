// The folder in which the processes of a gateway meet: their doors, and the files that they share. It is new at each start, and of
// their user alone.
import { hash } from 'node:crypto'
import { mkdirSync, mkdtempSync, readdirSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { Failure, wordsOf } from '../../core/failure.ts'
import type { Team } from '../team.ts'
import { arrivalSlots, createArrivals } from './arrivals.ts'
import { budgetSlots, createSharedBudgets } from './budgets.ts'
import { createCrowd, crowdSlots } from './crowd.ts'
import { createLives, type Lives, lifeSlots } from './lives.ts'
import { openSlots, type Slots } from './slots.ts'
import { createUnderWay, underWaySlots } from './under-way.ts'

const prefix = 'processes-'
/** What the name of a unix socket may have, in bytes, on every system. */
const longestDoor = 100

export const doorOf = (folder: string, index: number): string => join(folder, `${index}.sock`)

/**
 * A new folder, with what is made in it: in the data folder, where its name is short enough for a socket; else, and where that has no
 * room, among the temporary files, named after it.
 */
export function inPlace<Made>(
  data: string,
  make: (folder: string) => Made,
): { readonly folder: string; readonly made: Made } {
  const isShort = Buffer.byteLength(doorOf(join(data, `${prefix}123456`), 999)) <= longestDoor
  try {
    if (isShort) return madeIn(() => folderIn(data), make)
  } catch {
    // What else is wrong with the data folder the gateway itself says.
  }
  try {
    return madeIn(() => mkdtempSync(join(tmpdir(), elsewhere(data))), make)
  } catch (cause) {
    const why = `workers: what they share (7 MiB) can lie neither in ${data} nor in ${tmpdir()}: ${wordsOf(cause)}`
    throw new Failure('broken', `${why}; make room, or set workers to 1`, { source: 'ours', cause })
  }
}

function folderIn(data: string): string {
  mkdirSync(data, { recursive: true })
  return mkdtempSync(join(data, prefix))
}

/** What cannot be made leaves no folder behind. */
function madeIn<Made>(
  place: () => string,
  make: (folder: string) => Made,
): { readonly folder: string; readonly made: Made } {
  const folder = place()
  try {
    return { folder, made: make(folder) }
  } catch (error) {
    removeIfOurs(folder)
    throw error
  }
}

/** Of processes that worked on this data folder before, and were killed. */
export function removeOtherPlaces(data: string, own: string): void {
  for (const [folder, start] of [
    [data, prefix],
    [tmpdir(), elsewhere(data)],
  ] as const)
    for (const name of namesIn(folder)) {
      const path = join(folder, name)
      if (name.startsWith(start) && path !== own) removeIfOurs(path)
    }
}

const elsewhere = (data: string): string => `cidgate-${prefix}${hash('sha256', resolve(data)).slice(0, 12)}-`

/** Among the temporary files another user may have a folder of this name. */
function removeIfOurs(path: string): void {
  try {
    rmSync(path, { recursive: true, force: true })
  } catch {
    // It is in nobody's way.
  }
}

function namesIn(folder: string): string[] {
  try {
    return readdirSync(folder)
  } catch {
    return []
  }
}

/** What a team has of them, and what its processes alone need. */
export type SharedFiles = {
  readonly team: Pick<Team, 'arrivals' | 'underWay' | 'budgets' | 'crowd'>
  readonly lives: Lives
  close(): void
}

export function openShared(
  folder: string,
  { index, isNew }: { readonly index: number; readonly isNew: boolean },
): SharedFiles {
  const opened: Slots[] = []
  const close = (): void => {
    for (const one of opened) one.close()
  }
  const open = (name: string, { count, bytes }: { readonly count: number; readonly bytes: number }): Slots => {
    const slots = openSlots(join(folder, name), { count, bytes, isNew })
    opened.push(slots)
    return slots
  }
  const openAll = () => ({
    arrivals: open('arrivals', arrivalSlots),
    underWay: open('under-way', underWaySlots),
    budgets: open('budgets', budgetSlots),
    lives: open('lives', lifeSlots),
    crowd: open('crowd', crowdSlots),
  })
  const files = closedIfNot(openAll, close)
  const lives = createLives(files.lives)
  return {
    team: {
      arrivals: createArrivals(files.arrivals),
      underWay: createUnderWay(files.underWay, { index, lifeOf: lives.of }),
      budgets: (limit) => createSharedBudgets(files.budgets, { ...limit, now: systemMs }),
      crowd: createCrowd(files.crowd, { index, lives: (one) => lives.of(one) !== 0 }),
    },
    lives,
    close,
  }
}

function closedIfNot<Opened>(open: () => Opened, close: () => void): Opened {
  try {
    return open()
  } catch (error) {
    close()
    throw error
  }
}

/** Of a clock that all processes of this machine share, and that only goes forward. */
const systemMs = (): number => Number(process.hrtime.bigint() / 1000n) / 1000
