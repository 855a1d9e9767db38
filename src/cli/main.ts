// The program: its arguments to an exit code. 0: it worked, 1: it failed, 2: wrong usage.
import { survive } from '../core/log.ts'
import { run } from './run.ts'

survive(process.stderr)
process.exitCode = await run(process.argv.slice(2), {
  stdin: process.stdin,
  stdout: process.stdout,
  stderr: process.stderr,
  environment: process.env,
})
