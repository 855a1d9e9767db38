// The folder shared by the processes of a gateway: their internal sockets, and their shared files.
// Created anew at each start, accessible to their user only.
import { hash } from 'node:crypto'
import { mkdirSync, mkdtempSync, readdirSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { Failure, wordsOf } from '../core/failure.ts'
import {
  createConnectionBalance,
  createInFlightIndex,
  createProcessTable,
  createSharedTokenBuckets,
  createUploadEpochs,
  openSlots,
  type Slots,
} from './slot-file.ts'
import type { Team } from './team.ts'

const prefix = 'processes-'
/** The limit in bytes for the path of a unix socket on every system. */
const maxSocketPathBytes = 100

export const socketPathOf = (folder: string, index: number): string => join(folder, `${index}.sock`)

/**
 * Creates a new folder and its content: in the data folder if its path is short enough for a
 * socket; otherwise, or if that is full, in the temporary folder under a name derived from it.
 */
export function inPlace<Made>(
  data: string,
  make: (folder: string) => Made,
): { readonly folder: string; readonly made: Made } {
  const isShort = Buffer.byteLength(socketPathOf(join(data, `${prefix}123456`), 999)) <= maxSocketPathBytes
  try {
    if (isShort) {
      mkdirSync(data, { recursive: true })
      return madeIn(join(data, prefix), make)
    }
  } catch {
    // Other faults of the data folder are reported by the gateway itself.
  }
  try {
    return madeIn(join(tmpdir(), temporaryName(data)), make)
  } catch (cause) {
    const why = `workers: what they share (7 MiB) can lie neither in ${data} nor in ${tmpdir()}: ${wordsOf(cause)}`
    throw new Failure('upstream-error', `${why}; free some space, or set workers to 1`, { source: 'ours', cause })
  }
}

/** Removes the folder if its content cannot be created. */
function madeIn<Made>(start: string, make: (folder: string) => Made) {
  const folder = mkdtempSync(start)
  try {
    return { folder, made: make(folder) }
  } catch (error) {
    removeIfOurs(folder)
    throw error
  }
}

/** Removes folders of earlier processes over this data folder that were killed. */
export function removeOtherPlaces(data: string, own: string): void {
  for (const [folder, start] of [
    [data, prefix],
    [tmpdir(), temporaryName(data)],
  ] as const)
    for (const name of namesIn(folder)) {
      const path = join(folder, name)
      if (name.startsWith(start) && path !== own) removeIfOurs(path)
    }
}

const temporaryName = (data: string): string => `cidgate-${prefix}${hash('sha256', resolve(data)).slice(0, 12)}-`

/** In the temporary folder another user may have a folder of this name. */
function removeIfOurs(path: string): void {
  try {
    rmSync(path, { recursive: true, force: true })
  } catch {
    // Harmless if it stays.
  }
}

function namesIn(folder: string): string[] {
  try {
    return readdirSync(folder)
  } catch {
    return []
  }
}

/** Shared files for the gateway (`team`), and those for its processes only. */
export type SharedFiles = ReturnType<typeof openShared>

const maxProcesses = 256

export function openShared(folder: string, { index, isNew }: { readonly index: number; readonly isNew: boolean }) {
  const opened: Slots[] = []
  const close = (): void => {
    for (const one of opened) one.close()
  }
  const open = (name: string, count: number, bytes: number): Slots => {
    const slots = openSlots(join(folder, name), { count, bytes, isNew })
    opened.push(slots)
    return slots
  }
  try {
    const processTable = createProcessTable(open('process-table', maxProcesses, 4))
    const isRunning = (one: number): boolean => processTable.of(one) !== 0
    const buckets = open('budgets', 2 ** 16, 24)
    const team: Pick<Team, 'uploadEpochs' | 'inProgress' | 'budgets' | 'connectionBalance'> = {
      uploadEpochs: createUploadEpochs(open('upload-epochs', 2 ** 20, 4)),
      inProgress: createInFlightIndex(open('in-flight', 2 ** 16, 12), { index, runOf: processTable.of }),
      budgets: (limit) => createSharedTokenBuckets(buckets, { ...limit, now: systemMs }),
      connectionBalance: createConnectionBalance(open('connection-balance', maxProcesses, 4), { index, isRunning }),
    }
    return { team, processTable, close }
  } catch (error) {
    close()
    throw error
  }
}

/** A monotonic clock shared by all processes of this machine. */
const systemMs = (): number => Number(process.hrtime.bigint() / 1000n) / 1000
