// One process of `npm test`: it takes the next file that no other one has taken, until there is none. Each is a suite, and
// its hooks are its own. The first few take the files that wait, and end when there is none of these.
import asyncHooks from 'node:async_hooks'
import { existsSync, writeFileSync } from 'node:fs'
import { flushCompileCache } from 'node:module'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { pathToFileURL } from 'node:url'
import { nameIn, type Queue } from './queue.ts'

// Node's runner follows every promise, to know where a test is defined and which one an uncaught error belongs to. That makes
// an `await` twenty times as dear. Here it follows while a file defines its tests, and not while they run.
const { createHook } = asyncHooks
const following: asyncHooks.AsyncHook[] = []
asyncHooks.createHook = (callbacks) => {
  const hook = createHook(callbacks)
  following.push(hook)
  return hook
}
const { after, describe } = await import('node:test')

const { folder, quick, slow, ofWaiting } = JSON.parse(process.env['CIDGATE_TEST_QUEUE'] ?? '') as Queue
delete process.env['CIDGATE_TEST_QUEUE']

let running = ''
const tell = (error: unknown) =>
  void process.stderr.write(`uncaught in ${running}: ${error instanceof Error ? error.stack : error}\n`)
process.on('uncaughtExceptionMonitor', tell)
process.on('unhandledRejection', tell)

const isForWaiting = Array.from({ length: ofWaiting }, (_, index) => `waiting-${index}`).some(take)
await compileOnce(!isForWaiting)
// Node 22 lets a process end while its test waits for a timer or a socket that does not hold it.
const hold = setInterval(() => {}, 60_000)
for (const file of isForWaiting ? slow : [...quick, ...slow]) {
  if (!take(file)) continue
  running = file
  for (const hook of following) hook.enable()
  await new Promise<void>((done) => {
    describe(file, async () => {
      asyncHooks.createHook = createHook
      after(() => {
        writeFileSync(join(folder, nameIn(file, 'done')), '')
        done()
      })
      await import(pathToFileURL(file).href)
      for (const hook of following) hook.disable()
    })
  })
}

clearInterval(hold)

// What a failed test left open must not hold up the report of its failure.
setTimeout(() => {
  const left = (process as unknown as { _getActiveHandles(): { unref?(): void }[] })._getActiveHandles()
  for (const one of left) one.unref?.()
}, 10_000).unref()

/**
 * Without a compile cache, as after an install, each lane and each program that a test starts would compile everything: one does, and
 * the others take it from there.
 */
async function compileOnce(mayCompile: boolean): Promise<void> {
  const isCompiled = join(folder, 'compiled')
  if (mayCompile && take('compiling')) {
    for (const one of ['./support/gateway.ts', '../src/cli/serve.ts', '../src/cli/run.ts']) await import(one)
    flushCompileCache()
    writeFileSync(isCompiled, '')
    return
  }
  if (quick.length === 0) return
  for (const until = performance.now() + 10_000; !existsSync(isCompiled) && performance.now() < until; ) await sleep(20)
}

function take(what: string): boolean {
  try {
    writeFileSync(join(folder, nameIn(what, 'taken')), '', { flag: 'wx' })
    return true
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'EEXIST') return false
    throw error
  }
}
