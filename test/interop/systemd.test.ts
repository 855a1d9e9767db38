// A gateway that systemd starts, stops and reloads, as far as it shows in messages: systemd's own program sends them to a
// datagram socket, and Python listens, since Node cannot.
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { test } from 'node:test'
import { fileURLToPath } from 'node:url'
import { require, run, tempFolder } from './support/processes.ts'

const program = fileURLToPath(new URL('../../bin/cidgate.mjs', import.meta.url))
/** A line of JSON for each message. A descriptor that comes with one (BARRIER=1) is closed, as systemd does. */
const listener = `
import json, socket, sys
at = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
at.bind(sys.argv[1])
print("listening", flush=True)
while True: print(json.dumps(at.recv(65536).decode()), flush=True)
`

test('start, reload, refusal, watchdog, stop → reported to systemd', async () => {
  for (const command of ['systemd-notify', 'python3']) require(command)
  const folder = await tempFolder()
  const socket = join(folder.path, 'notify')
  const file = join(folder.path, 'cidgate.yaml')
  const config = { listen: '127.0.0.1:0', admin: false, data: join(folder.path, 'data'), retrieval: { upstreams: [] } }
  await writeFile(file, JSON.stringify(config))
  const python = spawn('python3', ['-c', listener, socket], { stdio: ['ignore', 'pipe', 'inherit'] })
  const lines = createInterface({ input: python.stdout })[Symbol.asyncIterator]()
  const next = async () => {
    const { value } = await lines.next()
    return String(value)
  }
  assert.equal(await next(), 'listening')
  const gateway = await run({
    command: process.execPath,
    args: [program, 'serve', '--config', file],
    env: { NOTIFY_SOCKET: socket, WATCHDOG_USEC: '1000000' },
    isReady: (output) => output.includes('cidgate (pid'),
  })
  /** The variables of the next message that says this. */
  async function told(name: string): Promise<Record<string, string>> {
    for (;;) {
      const message = JSON.parse(await next()) as string
      const pairs = message.split('\n').map((line) => line.split(/=(.*)/s, 2) as [string, string])
      const variables = Object.fromEntries(pairs.filter(([key]) => key))
      if (name in variables) return variables
    }
  }
  try {
    const ready = await told('READY')
    assert.deepEqual([ready['READY'], ready['MAINPID'], ready['WATCHDOG']], ['1', String(gateway.pid), '1'])
    assert.match(String(ready['STATUS']), /^answers at http:\/\/127\.0\.0\.1:\d+$/)
    assert.deepEqual(await told('WATCHDOG'), { WATCHDOG: '1' })
    process.kill(gateway.pid, 'SIGHUP')
    assert.ok(Number((await told('RELOADING'))['MONOTONIC_USEC']) > 0)
    assert.match(String((await told('READY'))['STATUS']), /^answers at/)
    await writeFile(file, 'listen: nowhere')
    process.kill(gateway.pid, 'SIGHUP')
    await told('RELOADING')
    assert.match(String((await told('READY'))['STATUS']), /was refused/)
    process.kill(gateway.pid, 'SIGTERM')
    assert.equal((await told('STOPPING'))['STOPPING'], '1')
  } finally {
    await gateway.stop()
    python.kill()
    if (python.exitCode === null && python.signalCode === null) await once(python, 'exit')
    await folder.remove()
  }
})
