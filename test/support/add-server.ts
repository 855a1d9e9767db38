// A process of its own that takes uploads, to be killed: two providers on disk, the second of which fails now and then.
// Arguments: the data folder. It says its port in one line, and `idle` on each SIGUSR2 when nothing is left to be done.
import { join } from 'node:path'
import { createEmbedded } from '../../backends/pinning/embedded.ts'
import { systemClock } from '../../src/core/clock.ts'
import { Failure } from '../../src/core/failure.ts'
import { silentLog } from '../../src/core/log.ts'
import { processFolders } from '../../src/data-folder/folder.ts'
import { idle, startAdding } from './adding.ts'

const data = process.argv[2] as string
const context = { userAgent: 'test', data, folders: processFolders, log: silentLog, clock: systemClock }
const store = createEmbedded({ path: join(data, 'second') }, { ...context, name: 'second' })
const second = {
  ...store,
  traits: { takesBytes: true, local: false },
  pin(...[upload, signal]: Parameters<typeof store.pin>) {
    if (Math.random() < 0.15)
      throw new Failure('upstream-error', 'not now', { source: 'provider', facts: { class: 'transient' } })
    return store.pin(upload, signal)
  },
}
const adding = await startAdding({ data, others: [second], maxBytes: 64 * 1024 * 1024, random: () => 0 })
process.on('SIGUSR2', () => {
  idle(adding, 300_000).then(
    () => process.stdout.write('idle\n'),
    () => process.stdout.write('busy\n'),
  )
})
// Last: who reads this may send the signal at once.
process.stdout.write(`${adding.port}\n`)
