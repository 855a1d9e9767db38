// Starts a worker: the same program, Node binary and flags.
import { type ChildProcess, fork } from 'node:child_process'

/** The argument by which `main.ts` recognizes a worker. */
export const workerWord = '--worker-of-cidgate'

export const startWorker = (): ChildProcess =>
  fork(process.argv[1] ?? '', [workerWord], {
    execArgv: process.execArgv,
    serialization: 'advanced',
    stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
  })
