// What systemd is told of a gateway, by a stand-in for its program.
import assert from 'node:assert/strict'
import { chmod, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, describe, test } from 'node:test'
import { systemClock } from '../../src/core/clock.ts'
import { createNotifier, type RunNotify } from '../../src/server/notify.ts'
import { createFakeClock } from '../support/fake-clock.ts'

const socket = { NOTIFY_SOCKET: '/run/systemd/notify' }

function stage(more: Record<string, string> = {}, run?: RunNotify) {
  const said: string[] = []
  const warned: string[] = []
  const clock = createFakeClock()
  const notifier = createNotifier({
    environment: { ...socket, ...more },
    log: (_level, event, facts) => void warned.push(`${event} ${facts?.['why']}`),
    clock,
    run: async (args, withinMs) => {
      said.push(args.join(' ').replace(/USEC=\d+/, 'USEC=…'))
      await run?.(args, withinMs)
    },
  })
  return { notifier: notifier ?? assert.fail('there is none'), said, warned, clock }
}

const readyAs = (status: string) => `READY=1 MAINPID=${process.pid} STATUS=${status}`

describe('service manager', () => {
  test('notification not requested → none sent', () => {
    assert.equal(createNotifier({ environment: {}, log: () => {}, clock: createFakeClock() }), undefined)
  })

  test('start, reload, stop in order; nothing after stop', async () => {
    const { notifier, said, warned } = stage()
    notifier.ready('here')
    await notifier.close()
    notifier.reloading()
    notifier.ready('there')
    await notifier.close()
    notifier.stopping()
    notifier.reloading()
    notifier.ready('too late')
    await notifier.close()
    assert.deepEqual(said, [
      readyAs('here'),
      'RELOADING=1 MONOTONIC_USEC=… STATUS=reloading the configuration',
      readyAs('there'),
      'STOPPING=1 STATUS=answering requests in progress',
    ])
    assert.deepEqual(warned, [])
  })

  test('watchdog: twice per interval until stop', async () => {
    const { notifier, said, clock } = stage({ WATCHDOG_USEC: '10000000', WATCHDOG_PID: String(process.pid) })
    notifier.ready('here')
    await clock.advance(16_000)
    assert.deepEqual(said, [`${readyAs('here')} WATCHDOG=1`, 'WATCHDOG=1', 'WATCHDOG=1', 'WATCHDOG=1'])
    await notifier.close()
    await clock.advance(60_000)
    assert.equal(said.length, 4)
  })

  test('watchdog for another process → none', async () => {
    const { notifier, said, clock } = stage({ WATCHDOG_USEC: '10000000', WATCHDOG_PID: '1999999999' })
    notifier.ready('here')
    await clock.advance(60_000)
    assert.deepEqual(said, [readyAs('here')])
  })

  test('slow → newest message of each kind', async () => {
    const first = Promise.withResolvers<void>()
    const { notifier, said } = stage({}, () => first.promise)
    for (let turn = 0; turn < 50; turn++) {
      notifier.reloading()
      notifier.ready(`turn ${turn}`)
    }
    first.resolve()
    await notifier.close()
    assert.equal(said.length, 3)
    assert.equal(said.at(-1), readyAs('turn 49'))
  })

  test('unreachable → one warning until it recovers', async () => {
    let isBroken = true
    const { notifier, warned } = stage({}, async () => {
      if (isBroken) throw new Error('Connection refused')
    })
    const tell = async () => {
      notifier.ready('here')
      await notifier.close()
    }
    await tell()
    await tell()
    isBroken = false
    await tell()
    isBroken = true
    await tell()
    assert.deepEqual(warned, Array(2).fill('notify.failed systemd-notify: Connection refused'))
  })
})

describe('systemd-notify', () => {
  let folder = ''
  before(async () => {
    folder = await mkdtemp(join(tmpdir(), 'cidgate-notify-'))
  })
  after(() => rm(folder, { recursive: true }))

  async function tell(script: string | undefined): Promise<string[]> {
    const warned: string[] = []
    const file = join(folder, 'systemd-notify')
    await rm(file, { force: true })
    if (script !== undefined) {
      await writeFile(file, `#!/bin/sh\n${script}\n`)
      await chmod(file, 0o755)
    }
    const notifier = createNotifier({
      environment: { ...socket, PATH: folder, SAID: join(folder, 'said') },
      log: (_level, event, facts) => void warned.push(`${event} ${facts?.['why']}`),
      clock: systemClock,
    })
    notifier?.ready('answers at http://127.0.0.1:8080')
    await notifier?.close()
    notifier?.stopping()
    await notifier?.close()
    return warned
  }

  test('runs from PATH with the message', async () => {
    assert.deepEqual(await tell('echo "$NOTIFY_SOCKET $*" >> "$SAID"'), [])
    assert.deepEqual((await readFile(join(folder, 'said'), 'utf8')).split('\n'), [
      `${socket.NOTIFY_SOCKET} ${readyAs('answers at http://127.0.0.1:8080')}`,
      `${socket.NOTIFY_SOCKET} STOPPING=1 STATUS=answering requests in progress`,
      '',
    ])
  })

  test('missing → one warning with a hint', async () => {
    const [why = '', ...more] = await tell(undefined)
    assert.match(why, /^notify\.failed systemd-notify is not installed; install it, or set Type=exec/)
    assert.deepEqual(more, [])
  })

  test('fails → output quoted', async () => {
    assert.deepEqual(await tell('echo "No status data could be sent" >&2; exit 1'), [
      'notify.failed systemd-notify: No status data could be sent',
    ])
  })
})
