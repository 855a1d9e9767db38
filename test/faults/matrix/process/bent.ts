// Loaded before a gateway by `--import`, for the fault matrix: at SIGUSR2 the process reads from a file what becomes of it. `{"aheadMs"}`
// sets its dates that far from those of the machine, ahead or back, while timers and monotonic clocks run on, as when the clock of a
// machine is set; dates of files stay those of the machine. `{"blockMs"}` holds its event loop for so long.
import { readFileSync } from 'node:fs'

export type Bend = { readonly aheadMs?: number; readonly blockMs?: number }

/** Names the file. */
export const bentBy = 'CIDGATE_TEST_BENT_BY'

const file = process.env[bentBy]
if (file !== undefined) {
  const RealDate = Date
  const realNow = Date.now
  let ahead = 0
  const now = (): number => realNow() + ahead
  globalThis.Date = class extends RealDate {
    constructor(...given: unknown[]) {
      super(...((given.length === 0 ? [now()] : given) as [number]))
    }
    static override now = now
  } as DateConstructor
  process.on('SIGUSR2', () => {
    const { aheadMs, blockMs = 0 } = JSON.parse(readFileSync(file, 'utf8')) as Bend
    if (aheadMs !== undefined) ahead = aheadMs
    const until = performance.now() + blockMs
    while (performance.now() < until);
  })
}
