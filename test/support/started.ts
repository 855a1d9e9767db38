// What a test starts is closed behind it, the last first, also after a failed test.
import { afterEach } from 'node:test'

export type Closes = { close(): Promise<void> }

/** For one file of tests: takes what is being started, and gives it back. */
export function closingAfterEach(): <T extends Closes>(starting: Promise<T> | T) => Promise<T> {
  const open: Closes[] = []
  afterEach(async () => {
    for (const one of open.splice(0).toReversed()) await one.close()
  })
  return async (starting) => {
    const one = await starting
    open.push(one)
    return one
  }
}
