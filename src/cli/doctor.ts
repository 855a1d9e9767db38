// `cidgate doctor`: the checks run in a child process, which is killed at the end. A check that
// hangs on a disk cannot be aborted: it would keep its process alive as long as the disk hangs,
// even after `process.exit`.
import { fork } from 'node:child_process'
import { extname } from 'node:path'
import { fileURLToPath } from 'node:url'
import { type Config, loadConfig, notesOnPublicList } from '../config/load.ts'
import { systemClock } from '../core/clock.ts'

/** Marks the child process that runs the checks. */
const marker = 'CIDGATE_DOCTOR'
const program = fileURLToPath(new URL(`./main${extname(import.meta.url)}`, import.meta.url))
/** Longer than all checks and notes in sequence. */
const wholeMs = 60_000

export function doctorCommand(file: string | undefined, asJson: boolean): Promise<number> {
  return process.env[marker] === 'looks' && process.send ? runInChild(asJson) : ask(file, asJson)
}

type Asked = { readonly config: Config; readonly noted: readonly string[] }

function ask(file: string | undefined, asJson: boolean): Promise<number> {
  const asked: Asked = { config: loadConfig(file), noted: notesOnPublicList(file, systemClock.now()) }
  const child = fork(program, ['doctor', ...(asJson ? ['--json'] : [])], {
    env: { ...process.env, [marker]: 'looks' },
    serialization: 'advanced',
  })
  for (const signal of ['SIGTERM', 'SIGINT', 'SIGHUP'] as const) process.once(signal, () => child.kill(signal))
  return new Promise((resolve, reject) => {
    const end = (code: number) => {
      cancel()
      child.kill('SIGKILL')
      resolve(code)
    }
    const cancel = systemClock.after(wholeMs, () => {
      process.stderr.write(`cidgate: doctor was not done within ${wholeMs / 1000} s\n`)
      end(1)
    })
    child.once('error', reject)
    child.once('exit', (code) => end(code ?? 1))
    child.once('message', (code) => end(Number(code)))
    child.send(asked)
  })
}

async function runInChild(asJson: boolean): Promise<number> {
  process.once('disconnect', () => process.kill(process.pid, 'SIGKILL'))
  const { config, noted } = await new Promise<Asked>((resolve) =>
    process.once('message', (message) => resolve(message as Asked)),
  )
  // Lets the child exit if it cannot check anything.
  process.channel?.unref()
  const code = await (await import('./doctor-checks.ts')).runDoctor(config, { asJson, noted })
  // Flushes standard output before the process is killed.
  await new Promise<void>((resolve) => process.stdout.write('', () => resolve()))
  await new Promise<void>((resolve) => process.send?.(code, () => resolve()))
  return code
}
