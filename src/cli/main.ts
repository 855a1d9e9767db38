// The program: runs the arguments and sets the exit code. 0: success, 1: failure, 2: wrong usage.
import { survive } from '../core/log.ts'
import { workerWord } from './command.ts'
import { run } from './run.ts'

survive(process.stderr)
const isWorker = process.argv[2] === workerWord && process.send !== undefined
process.exitCode = isWorker
  ? await (await import('./serve.ts')).workerCommand()
  : await run(process.argv.slice(2), {
      stdin: process.stdin,
      stdout: process.stdout,
      stderr: process.stderr,
      environment: process.env,
    })
