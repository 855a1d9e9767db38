// The data folder has one owner, and says who that is; one that cannot be written to says so.
import assert from 'node:assert/strict'
import { mkdir, readFile, rm, symlink, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, it } from 'node:test'
import { type Clock, systemClock } from '../../src/core/clock.ts'
import { makeFolders } from '../../src/core/disk/files.ts'
import { isFailure } from '../../src/core/failure.ts'
import { silentLog } from '../../src/core/log.ts'
import { createDataFolders } from '../../src/data-folder/folder.ts'
import { failureOf, troubleOf } from '../../src/store/database.ts'
import { joinStore } from '../../src/store/open.ts'
import { lockFile } from '../../src/store/owner.ts'
import { createFakeClock } from '../support/fake-clock.ts'
import { startedGateway, tempFolder } from '../support/gateway.ts'

describe('data folder', () => {
  let folder: string
  beforeEach(async () => {
    folder = await tempFolder()
  })
  afterEach(() => rm(folder, { recursive: true, force: true }))
  const folders = createDataFolders()
  const open = async (path = folder, clock: Clock = systemClock) => {
    const { store, leave } = joinStore(folders.enter(path), { clock, log: silentLog })
    await store.ready.catch(async (error: unknown) => {
      await leave()
      throw error
    })
    return leave
  }
  const isLocked = () =>
    lockFile(join(folder, 'owner.lock')).then(
      (lock) => {
        lock.release()
        return false
      },
      (error: unknown) => {
        assert.equal(troubleOf(error), 'taken')
        return true
      },
    )

  it('shared by gateways under any path until the last leaves', async () => {
    const make = (path: string) => ({ path })
    const [path, link] = [join(folder, 'real', 'data'), join(folder, 'link')]
    await symlink(join(folder, 'real'), link)
    const one = folders.enter(path)
    await mkdir(path, { recursive: true })
    const other = folders.enter(join(link, 'data'))
    const part = one.part(make)
    assert.equal(other.part(make), part)
    assert.notEqual(folders.enter(join(folder, 'other')).part(make), part)
    one.leave()
    one.leave()
    const third = folders.enter(path)
    assert.equal(third.part(make), part)
    other.leave()
    third.leave()
    assert.notEqual(folders.enter(path).part(make), part)
  })

  it('lock removed → locked again', async () => {
    const clock = createFakeClock()
    const leave = await open(folder, clock)
    await rm(folder, { recursive: true })
    for (let turn = 0; turn < 1000 && !(await readFile(join(folder, 'owner.json')).catch(() => undefined)); turn++)
      await clock.advance(10_000)
    assert.ok(await isLocked())
    await leave()
    assert.equal(clock.timers, 0)
  })

  it('missing folder on a read-only disk → not reported as gone', async () => {
    // As Node has it: all at once, the reason is another.
    const failing = (code: string) => Promise.reject(Object.assign(new Error(code), { code }))
    const asked: string[] = []
    const make = ((path: string, options?: object) => {
      if (options) return failing('ENOENT')
      asked.push(path)
      return failing(path === '/disk/a' ? 'EROFS' : 'ENOENT')
    }) as typeof mkdir
    await assert.rejects(makeFolders('/disk/a/b', make), { code: 'EROFS' })
    assert.deepEqual(asked, ['/disk/a/b', '/disk/a'])
    const refused = await makeFolders('/disk/a/b', make).catch((error: unknown) => failureOf(error, 'take an upload'))
    assert.ok(isFailure(refused, 'disk-error'))
    assert.equal(refused.message, 'cannot take an upload in the data folder: EROFS; it is mounted read-only')
  })

  it('out of file descriptors → reported, retryable', () => {
    const refused = failureOf(Object.assign(new Error(), { code: 'EMFILE' }), 'take an upload')
    assert.deepEqual([refused.kind, refused.retryAfterMs], ['overloaded', 1000])
    assert.match(refused.message, /EMFILE; raise the limit of open files/)
  })

  it('unwritable folder → named, with the user', async () => {
    await writeFile(join(folder, 'file'), '')
    const path = join(folder, 'file', 'data')
    const expected = new RegExp(`${path} is not a folder: a file is in its place`)
    await assert.rejects(open(path), expected)
    const config = { data: path, admin: false, retrieval: { upstreams: [] } } as const
    await assert.rejects(startedGateway(config, { log: silentLog }), { name: 'ConfigError', message: expected })
    // What keeps nothing for good can do without.
    const events: string[] = []
    const log = (_level: string, event: string) => void events.push(event)
    const reader = await startedGateway(
      { ...config, pinning: { providers: [] }, cache: { tiers: [] }, retrieval: { upstreams: [], probeEvery: 0 } },
      { log },
    )
    await reader.close()
    assert.ok(events.includes('data.write-failed'))
  })
})
