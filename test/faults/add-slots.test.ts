// Fault: one address opens as many uploads as there are slots, and sends a little of each at a time. An honest upload gets in at
// once, from another address and from the same one.
import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { request as httpRequest } from 'node:http'
import { after, before, describe, it } from 'node:test'
import { setTimeout as sleep } from 'node:timers/promises'
import { boundary, multipart, post } from '../support/adding.ts'
import { startGateway, type TestGateway } from '../support/gateway.ts'

const slots = 64
const pieceMs = 100
const pieceBytes = 205 // 2 KiB a second

/** One upload that goes on for as long as it may, and then again. */
async function drip(url: string, client: string, isOver: () => boolean): Promise<void> {
  while (!isOver()) {
    const headers = { 'Content-Type': `multipart/form-data; boundary=${boundary}`, 'X-Forwarded-For': client }
    const asked = httpRequest(`${url}/add`, { method: 'POST', headers, agent: false })
    let isEnded = false
    const ended = () => {
      isEnded = true
    }
    asked.on('error', ended)
    asked.on('close', ended)
    asked.on('response', (response) => {
      ended()
      response.resume()
    })
    asked.write(`--${boundary}\r\nContent-Disposition: form-data; name="data"; filename="f"\r\n\r\n`)
    while (!isEnded && !isOver()) {
      asked.write(randomBytes(pieceBytes))
      await sleep(pieceMs)
    }
    asked.destroy()
    if (isEnded) await sleep(pieceMs)
  }
}

async function add(url: string, client: string): Promise<number> {
  const { status } = await post(`${url}/add`, multipart([{ fileName: 'a', body: randomBytes(20_000) }]), {
    'X-Forwarded-For': client,
  })
  return status
}

describe(`${slots} uploads of 2 KiB a second from one address`, () => {
  let gateway: TestGateway
  let isOver = false
  let drips: Promise<void>[]
  before(async () => {
    gateway = await startGateway({
      config: { trustedProxies: ['127.0.0.1'], upload: { concurrency: slots, auth: 'open' } },
    })
    drips = Array.from({ length: slots }, () => drip(gateway.url, '203.0.113.1', () => isOver))
    // Each of them has been at it for long enough to be known.
    await sleep(4000)
  })
  after(async () => {
    isOver = true
    await Promise.all(drips)
    await gateway.close()
  })

  for (const [who, client] of [
    ['elsewhere', '203.0.113.2'],
    ['the same address', '203.0.113.1'],
  ] as const)
    it(`an honest upload from ${who} → accepted`, async () => {
      const statuses: number[] = []
      for (let turn = 0; turn < 20; turn++) statuses.push(await add(gateway.url, client))
      assert.deepEqual(
        statuses.filter((status) => status !== 200),
        [],
      )
    })
})
