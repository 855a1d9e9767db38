// Starts a worker: the program that runs here, by the same Node and with the same flags.
import { type ChildProcess, fork } from 'node:child_process'

/** What `main.ts` knows a worker by. */
export const workerWord = '--worker-of-cidgate'

export const startWorker = (): ChildProcess =>
  fork(process.argv[1] ?? '', [workerWord], {
    execArgv: process.execArgv,
    serialization: 'advanced',
    stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
  })
