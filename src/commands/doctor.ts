// `cidgate doctor`: the looks are taken in a process of its own, which is killed when all was said. A look that hangs on a
// disk cannot be stopped, and would keep its process for as long as the disk hangs.
import { fork } from 'node:child_process'
import { type Config, loadConfig } from '../config/load.ts'

/** Says to the process that it is the one that looks. */
const marker = 'CIDGATE_DOCTOR'

export function doctorCommand(file: string | undefined): Promise<number> {
  return process.env[marker] === 'looks' && process.send ? looks() : ask(loadConfig(file))
}

function ask(config: Config): Promise<number> {
  const [, program = ''] = process.argv
  const child = fork(program, ['doctor'], { env: { ...process.env, [marker]: 'looks' }, serialization: 'advanced' })
  for (const signal of ['SIGTERM', 'SIGINT', 'SIGHUP'] as const) process.once(signal, () => child.kill(signal))
  return new Promise((resolve, reject) => {
    child.once('error', reject)
    child.once('exit', (code) => resolve(code ?? 1))
    child.once('message', (code) => {
      child.kill('SIGKILL')
      resolve(Number(code))
    })
    child.send(config)
  })
}

async function looks(): Promise<number> {
  process.once('disconnect', () => process.exit(1))
  const config = await new Promise<Config>((resolve) =>
    process.once('message', (message) => resolve(message as Config)),
  )
  const code = await (await import('./doctor-looks.ts')).lookAtAll(config)
  // Nothing that was said may be lost to the end that comes now.
  await new Promise<void>((resolve) => process.stdout.write('', () => resolve()))
  await new Promise<void>((resolve) => process.send?.(code, () => resolve()))
  return code
}
