// `cidgate backup` and `cidgate doctor --salvage`: handle all stores of a configuration, in the
// data folder and in the current and former folders of embedded providers.
import { appendFile, cp, stat } from 'node:fs/promises'
import { join, relative, resolve } from 'node:path'
import { type Config, configFile, loadConfig } from '../config/load.ts'
import { systemClock } from '../core/clock.ts'
import { isGone, orIfGone } from '../core/disk/files.ts'
import { silentLog } from '../core/log.ts'
import { backUpStore } from '../store/backup.ts'
import { databaseIn } from '../store/open.ts'
import { ownFolder } from '../store/owner.ts'
import { salvageStore } from '../store/salvage.ts'
import { orphanedStores } from '../wiring/backends.ts'
import type { Io } from './command.ts'

type Out = Pick<Io, 'stdout'>

/** The file name used by the embedded provider. */
const foldersFile = 'pins.folders'

/** Lists all folders, the data folder first. */
export async function storeFolders(config: Config): Promise<string[]> {
  const embedded = config.pinning.providers.filter(({ use }) => use === 'embedded')
  const own = [...embedded, ...(await orphanedStores(config))].flatMap(({ options }) => {
    const { path } = options as { readonly path?: string }
    return path === undefined ? [] : [resolve(path)]
  })
  const folders = [...new Set([resolve(config.data), ...own])]
  const there = await Promise.all(folders.map((folder) => orIfGone(stat(databaseIn(folder)), undefined)))
  return folders.filter((_, index) => index === 0 || there[index])
}

export async function backupCommand(file: string | undefined, to: string, { stdout, stderr }: Io): Promise<number> {
  const config = loadConfig(configFile(file))
  const stopped = new AbortController()
  for (const signal of ['SIGINT', 'SIGTERM'] as const) process.once(signal, () => stopped.abort())
  const [data = '', ...others] = await storeFolders(config)
  const copies: string[] = []
  const damaged: string[] = []
  async function backUp(folder: string, copy: string): Promise<string> {
    const { uploads, files, damage } = await backUpStore(folder, copy, stopped.signal)
    for (const line of damage) damaged.push(`${folder}: ${line}\n`)
    return `${folder} → ${copy}: ${uploads} uploads, ${files} files of large ones\n`
  }
  // The data folder is last, because its ledger may name files in the others.
  for (const [index, folder] of others.entries()) {
    const copy = join(`${to}-folders`, String(index + 1))
    stdout.write(await backUp(folder, copy))
    copies.push(copy)
  }
  const report = await backUp(data, to)
  for (const name of ['denylists', foldersFile])
    await cp(join(data, name), join(to, name), { recursive: true }).catch((error: unknown) => {
      if (!isGone(error)) throw error
    })
  // Relative paths, so that a gateway over the backup finds the copies after both were moved
  // together.
  for (const copy of copies) await appendFile(join(to, foldersFile), `${JSON.stringify(relative(to, copy))}\n`)
  stdout.write(report)
  if (damaged.length === 0) return 0
  stderr.write(
    `${damaged.join('')}cidgate: a copy of a damaged store: keep earlier backups, and run doctor --salvage\n`,
  )
  return 1
}

export async function salvageCommand(file: string | undefined, { stdout }: Out): Promise<number> {
  const config = loadConfig(configFile(file))
  const name = config.pinning.providers.find(({ use }) => use === 'embedded')?.name ?? 'local'
  let isComplete = true
  for (const path of await storeFolders(config)) {
    const leave = await ownFolder(path, { clock: systemClock, log: silentLog })
    try {
      const { uploads, byRoots, incomplete, aside } = await salvageStore(path, name, systemClock.now())
      stdout.write(`${path}: ${uploads} uploads in a new database; the damaged files are in ${aside}\n`)
      for (const cid of byRoots) stdout.write(`${cid}: found by its file only; delete it if it was deleted before\n`)
      for (const cid of incomplete)
        stdout.write(`${cid}: blocks are missing here; upload it again, or restore it from a provider\n`)
      isComplete &&= incomplete.length === 0
    } finally {
      leave()
    }
  }
  return isComplete ? 0 : 1
}
