// Fault: kill -9 at random moments while uploads come in, and a restart. The client writes down each CID that got a 200; in the
// end each of them is whole at every provider, and nothing is half there or left over. CIDGATE_UPLOADS, CIDGATE_KILLS and CIDGATE_CLIENTS set how many.
import assert from 'node:assert/strict'
import { type ChildProcess, spawn } from 'node:child_process'
import { createHash, randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface, type Interface } from 'node:readline'
import { it } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { decode } from '@ipld/dag-pb'
import { CID } from 'multiformats/cid'
import { proves } from '../../src/core/cid.ts'
import type { Store } from '../../src/store/store.ts'
import { multipart, post } from '../support/adding.ts'
import { keptIn } from '../support/kept.ts'
import { openStore } from '../support/stores.ts'

const uploads = Number(process.env['CIDGATE_UPLOADS'] ?? 30)
const kills = Number(process.env['CIDGATE_KILLS'] ?? 3)
const clients = Number(process.env['CIDGATE_CLIENTS'] ?? 4)

type Process = { readonly child: ChildProcess; readonly lines: Interface; readonly port: number }

async function start(data: string): Promise<Process> {
  const server = fileURLToPath(new URL('../support/add-server.ts', import.meta.url))
  const child = spawn(process.execPath, [server, data], { stdio: ['ignore', 'pipe', 'inherit'] })
  const lines = createInterface({ input: child.stdout as NonNullable<typeof child.stdout> })
  const line = await nextLine(child, lines)
  return { child, lines, port: Number(line) }
}

async function nextLine(child: ChildProcess, lines: Interface): Promise<string> {
  const gone = once(child, 'exit').then(() => assert.fail('the server ended by itself'))
  gone.catch(() => {})
  const [line] = (await Promise.race([once(lines, 'line'), gone])) as [string]
  return line
}

/** The file behind a root; undefined when a block is missing or wrong. */
async function fileIn({ blocks }: Store, root: CID): Promise<Buffer | undefined> {
  const bytes = await blocks.get(root)
  if (!bytes || !proves(root, bytes)) return undefined
  if (root.code !== 0x70) return Buffer.from(bytes)
  const parts: Buffer[] = []
  for (const { Hash } of decode(bytes).Links) {
    const part = await fileIn({ blocks } as Store, Hash as CID)
    if (!part) return undefined
    parts.push(part)
  }
  return Buffer.concat(parts)
}

it(`${uploads} uploads, ${kills} kill -9 → acknowledged uploads complete, others gone`, {
  timeout: Math.max(600_000, kills * 15_000),
}, async (context) => {
  const data = await mkdtemp(join(tmpdir(), 'cidgate-killed-'))
  let running = await start(data)
  try {
    const acknowledged = new Map<string, string>()
    let begun = 0
    let killed = 0
    const client = async () => {
      while (acknowledged.size < uploads || killed < kills) {
        const isLarge = begun++ % 5 === 0 && acknowledged.size < uploads
        const body = randomBytes(isLarge ? 2_500_000 : 1 + Math.floor(Math.random() * 5000))
        // A third of them come as directories: by their links in order they read as the file does.
        const half = Math.ceil(body.byteLength / 2)
        const isDirectory = begun % 3 === 0
        const parts = isDirectory
          ? [
              { fileName: 'a', body: body.subarray(0, half) },
              { fileName: 'b/c', body: body.subarray(half) },
            ]
          : [{ fileName: 'a', body }]
        const message = multipart(parts)
        for (;;) {
          try {
            const { status, json } = await post(`http://127.0.0.1:${running.port}/add?wrap=${isDirectory}`, message)
            if (status !== 200) throw new Error(`answered ${status}`)
            const cid = String((json['cids'] as string[]).at(-1)).slice('/ipfs/'.length)
            acknowledged.set(cid, createHash('sha256').update(body).digest('hex'))
            break
          } catch {
            // Killed in the middle: some give up on it, some send it again.
            await sleep(20)
            if (Math.random() < 0.3) break
          }
        }
      }
    }
    const killer = async () => {
      while (killed < kills) {
        await sleep(30 + Math.random() * 250)
        running.child.kill('SIGKILL')
        await once(running.child, 'exit')
        killed++
        running = await start(data)
      }
    }
    const killing = killer()
    await Promise.all(Array.from({ length: clients }, client))
    await killing

    running.child.kill('SIGUSR2')
    const line = await nextLine(running.child, running.lines)
    assert.equal(line, 'idle')

    context.diagnostic(`${killed} kills, ${acknowledged.size} acknowledged`)
    assert.ok(acknowledged.size >= uploads && killed === kills)
    running.child.kill('SIGKILL')
    await once(running.child, 'exit')
    for (const folder of [data, join(data, 'second')]) {
      const store = openStore(folder)
      await store.ready
      for (const [cid, sha] of acknowledged) {
        const file = await fileIn(store, CID.parse(cid))
        assert.ok(file, `${cid} is not whole in ${folder}`)
        assert.equal(createHash('sha256').update(file).digest('hex'), sha)
      }
      const { uploads: all, waiting } = await keptIn(folder)
      for (const cid of all) assert.ok(await fileIn(store, CID.parse(cid)), `${cid} is half there`)
      assert.deepEqual(waiting, [])
      await store.close()
      assert.deepEqual((await keptIn(folder)).strays, [])
    }
  } finally {
    running.child.kill('SIGKILL')
    await rm(data, { recursive: true, force: true })
  }
})
