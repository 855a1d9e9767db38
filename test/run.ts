// `npm test`: every file of tests, or those that are named. To start a process takes longer than most files do, so a few
// processes take one file after another (`lane.ts`). A file that measures or replaces what belongs to its whole process has
// one of its own. Each file runs alone as well: `node --test test/unit/block.test.ts`.
import { globSync, mkdtempSync, readdirSync, rmSync, statfsSync } from 'node:fs'
import { freemem, tmpdir } from 'node:os'
import { join } from 'node:path'
import { run } from 'node:test'
import { spec } from 'node:test/reporters'
import { fileURLToPath } from 'node:url'
import { nameIn, type Queue } from './queue.ts'

const root = fileURLToPath(new URL('../', import.meta.url))
/** More than the processors of a small machine: a good part of what a file takes is waiting. Each costs eight seconds of one. */
const lanes = 5
/** For files that wait for programs they start: such a lane loads and compiles next to nothing of the gateway. */
const waitingLanes = 2
// In Node 22 it is that of a whole lane.
const timeout = process.versions.node.startsWith('22.') ? 600_000 : 60_000
// Files of a lane make garbage by the hundred megabytes. With a large nursery most of it is never copied, and one thread for it
// does not take turns with those of the other lanes: a fifth less processor time. Without the last two flags, V8 marks the whole
// heap after each 32 MiB of buffers, and a test that moves files spends half its time on it. The programs that tests start have
// none of these.
const execArgv = [
  '--max-semi-space-size=32',
  '--min-semi-space-size=16',
  '--single-threaded-gc',
  '--initial-old-space-size=256',
  // Node 22 has no such flag.
  ...(process.versions.node.startsWith('22.') ? [] : ['--external-memory-accounted-in-global-limit']),
]

const alone = new Set(['test/faults/reload-leaks.test.ts', 'test/http/add-fuzz.test.ts'])
const waiting = ['faults/workers', 'http/signals', 'faults/add-slow', 'faults/add-killed', 'http/command-line']
/** What takes longest comes first, so that all processes end at about the same time. */
const order = [...waiting, 'faults/**/*', 'contract/**/*', 'http/**/*', 'unit/**/*']

const all = [...new Set(order.flatMap((some) => globSync(`test/${some}.test.ts`, { cwd: root }).sort()))]
const named = process.argv.slice(2)
const files = named.length > 0 ? named : all
const shared = files.filter((file) => !alone.has(file))
const [quick, slow] = [shared.filter((file) => !isWaiting(file)), shared.filter(isWaiting)]
const ofWaiting = Math.min(waitingLanes, slow.length)
const temporary = mkdtempSync(join(process.env['TMPDIR'] ?? (isRoomy('/dev/shm') ? '/dev/shm' : tmpdir()), 'cidgate-'))
const queue = mkdtempSync(join(temporary, 'queue-'))

// The programs that tests start inherit these.
process.env['TMPDIR'] = temporary
process.env['NODE_COMPILE_CACHE'] ??= join(root, 'node_modules/.cache/cidgate')
process.env['CIDGATE_TEST_QUEUE'] = JSON.stringify({ folder: queue, quick, slow, ofWaiting } satisfies Queue)
process.chdir(root)

const laneFile = fileURLToPath(new URL('./lane.ts', import.meta.url))
const mine = files.filter((file) => alone.has(file)).map((file) => join(root, file))
const ofAll = ofWaiting + Math.min(lanes, quick.length)
const events = run({
  files: [...mine, ...Array.from({ length: ofAll }, () => laneFile)],
  concurrency: lanes + waitingLanes,
  execArgv,
  timeout,
})
events.on('test:fail', () => {
  process.exitCode = 1
})
events.compose(spec).pipe(process.stdout)

process.on('exit', () => {
  const ended = new Set(readdirSync(queue).filter((name) => name.endsWith('.done')))
  rmSync(temporary, { recursive: true, force: true })
  const left = shared.filter((file) => !ended.has(nameIn(file, 'done')))
  if (left.length === 0) return
  process.stdout.write(`not run to its end: ${left.join(', ')}\n`)
  process.exitCode = 1
})

function isWaiting(file: string): boolean {
  return waiting.some((one) => file === `test/${one}.test.ts`)
}

/**
 * Files in memory cost a fifth less processor time than those on a disk, which are made and removed by the ten thousand. What
 * lies there at a time stays below 512 MiB.
 */
function isRoomy(folder: string): boolean {
  const enough = 2 * 1024 ** 3
  try {
    const { bavail, bsize } = statfsSync(folder)
    return bavail * bsize >= enough && freemem() >= enough
  } catch {
    return false
  }
}
