// What one client asks for, so that others might wait or the process might end.
import { Agent, get } from 'node:http'
import { connect, type Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { CarBlockIterator } from '@ipld/car'
import { addBlock, addDirectory, addFile, type BlockMap, noise, text } from '../../../support/fixtures.ts'
import { type Fetched, fetchAll, inParallel } from '../../../support/gateway.ts'
import { addEmptyLists, addUnfolding } from '../bombs/content.ts'
import { inMs } from '../rows.ts'
import { askAgainAtOnce, coldFiles } from './heedless.ts'

export type Attack = {
  readonly name: string
  /** Beside what is promised to others. */
  readonly promised?: string
  /** Most that a hot answer waits, for 99 of 100. */
  readonly hotMs: number
  /** What it asks for: CIDs. */
  readonly prepare: (blocks: BlockMap) => Promise<readonly string[]>
  readonly run: (target: Target) => Promise<Met | undefined>
  readonly responses?: 'web'
  /** Most that is in progress at once. */
  readonly inFlight?: number
  /** Its upstream speaks no CAR: what is a bomb would unfold in this process. */
  readonly isByBlock?: true
}
export type Target = {
  readonly url: string
  readonly port: number
  readonly hotPath: string
  readonly content: readonly string[]
}
/** What the client of the attack itself met. */
export type Met = { readonly note?: string; readonly broken?: readonly string[] }

export const siteHost = 'gate.example'
const attackMs = 8000
const mib = 1024 * 1024
const nothing = async () => []

/** Reads what comes, for as long as the attack lasts, as fast as it can. */
async function download(url: string): Promise<void> {
  const endsAt = performance.now() + attackMs
  while (performance.now() < endsAt) {
    await new Promise<void>((resolve) => {
      const request = get(url, { agent: false }, (response) => void response.resume())
      const timer = setTimeout(() => request.destroy(), endsAt - performance.now())
      request.on('error', () => {})
      request.on('close', () => {
        clearTimeout(timer)
        resolve()
      })
    })
    await sleep(10)
  }
}

const fourTimes =
  (behind: string) =>
  async ({ url, content: [cid] }: Target): Promise<undefined> => {
    await Promise.all(Array.from({ length: 4 }, () => download(`${url}/ipfs/${cid}${behind}`)))
  }

/** Many requests in one piece, and no answer is ever read. */
async function flood({ port, hotPath }: Target): Promise<undefined> {
  const all = Buffer.from(`GET ${hotPath} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n`.repeat(1000))
  const sockets: Socket[] = []
  for (let count = 0; count < 400; count++) {
    const socket = connect(port, '127.0.0.1')
    socket.on('error', () => {})
    socket.pause()
    socket.write(all)
    sockets.push(socket)
  }
  await sleep(attackMs)
  for (const socket of sockets) socket.destroy()
}

const bomb = async (blocks: BlockMap): Promise<string[]> => [String(addUnfolding(blocks))]

const cborDocument = async (blocks: BlockMap): Promise<string[]> => [String(addEmptyLists(blocks))]

const dagJson = async (blocks: BlockMap): Promise<string[]> => [
  String(addBlock(blocks, 0x0129, Buffer.from(`[${'{"a":0},'.repeat(mib / 4 - 2)}0]`))),
]

const documents = 6
const atOnce = 8
const jsonBytes = 8 * mib

/** As large as any that is looked into, and full of small lists; each is judged once. */
async function jsonFiles(blocks: BlockMap): Promise<string[]> {
  const cids: string[] = []
  for (let number = 1; number <= documents; number++) {
    const [begin, end] = [`[${number}`, ']']
    const lists = ',[]'.repeat(Math.floor((jsonBytes - begin.length - end.length) / 3))
    const document = `${begin}${lists}${end}`.padEnd(jsonBytes, ' ')
    cids.push(String((await addFile(blocks, text(document))).cid))
  }
  return cids
}

async function askTogether({ url, content }: Target): Promise<Met> {
  const agent = new Agent({ keepAlive: true, maxSockets: atOnce })
  let wrong = 0
  for (const cid of content) {
    const got = await Promise.all(Array.from({ length: atOnce }, () => fetchAll(`${url}/ipfs/${cid}`, {}, agent)))
    const isRight = ({ status, headers, body }: Fetched) =>
      status === 200 && /^application\/json/.test(String(headers['content-type'])) && body.byteLength === jsonBytes
    wrong += got.filter((one) => !isRight(one)).length
  }
  agent.destroy()
  return { broken: wrong > 0 ? [`${wrong} of ${documents * atOnce} answers are not the document as JSON`] : [] }
}

const spellings = 52_000
const nameChars = 4000
const small = 'a small file'

/** Its name has a letter for each bit of a number, and is long: each of its addresses is. */
const longName = async (blocks: BlockMap): Promise<string[]> => [
  String(await addDirectory(blocks, { ['b'.repeat(nameChars)]: text(small) })),
]

function spelled(number: number): string {
  let name = ''
  for (let bits = number; bits > 0; bits >>= 1) name += bits & 1 ? '%62' : 'b'
  return name + 'b'.repeat(nameChars - number.toString(2).length)
}

async function spellInManyWays({ url, content: [cid] }: Target): Promise<Met> {
  const agent = new Agent({ keepAlive: true, maxSockets: 16 })
  const numbers = Array.from({ length: spellings }, (_, number) => number + 1)
  const statuses = await inParallel(numbers, 16, async (number) => {
    const { status, body } = await fetchAll(`${url}/ipfs/${cid}/${spelled(number)}`, {}, agent)
    return status === 200 && body.toString() !== small ? 0 : status
  })
  agent.destroy()
  const wrong = statuses.filter((status) => status !== 200)
  return { broken: wrong.length > 0 ? [`${wrong.length} of ${spellings} are answered ${[...new Set(wrong)]}`] : [] }
}

const splats = async (blocks: BlockMap): Promise<string[]> => [
  String(await addDirectory(blocks, { _redirects: text(`/a/* /${':splat'.repeat(10_000)} 301\n`) })),
]

/** A path of 7,000 letters, which the rule would repeat ten thousand times. */
async function followRule({ url, content: [cid] }: Target): Promise<Met> {
  const host = { Host: `${cid}.ipfs.${siteHost}` }
  const endsAt = performance.now() + attackMs
  const statuses = new Map<number, number>()
  const agent = new Agent({ keepAlive: true })
  const one = async () => {
    while (performance.now() < endsAt) {
      const { status } = await fetchAll(`${url}/a/${'x'.repeat(7000)}`, host, agent)
      statuses.set(status, (statuses.get(status) ?? 0) + 1)
    }
  }
  await Promise.all(Array.from({ length: 4 }, one))
  agent.destroy()
  const wrong = [...statuses].filter(([status]) => status !== 500)
  const note = [...statuses].map(([status, count]) => `${count} answered ${status}`).join(', ')
  return { note, broken: wrong.map(([status, count]) => `${count} are answered ${status}`) }
}

const exportBytes = 19 * mib
const exportMs = 15_000

const manySmall = async (blocks: BlockMap): Promise<string[]> => [
  String((await addFile(blocks, noise(exportBytes, 19), 'v1', 1024)).cid),
]

async function exportCold({ url, content: [cid] }: Target): Promise<Met> {
  const began = performance.now()
  const { status, body } = await fetchAll(`${url}/ipfs/${cid}?format=car`)
  const ms = performance.now() - began
  let [blocks, bytes] = [0, 0]
  if (status === 200)
    for await (const block of await CarBlockIterator.fromBytes(body)) {
      blocks++
      if (block.cid.code === 0x55) bytes += block.bytes.byteLength
    }
  const broken = [
    ...(status === 200 && bytes === exportBytes ? [] : [`answered ${status} with ${bytes} bytes of ${exportBytes}`]),
    ...(ms > exportMs ? [`it takes ${inMs(ms)}`] : []),
  ]
  return { note: `${blocks} blocks in ${inMs(ms)}`, broken }
}

const inThousands = (count: number): string => count.toLocaleString('en')

export const attacks: readonly Attack[] = [
  {
    name: 'nothing, for comparison',
    hotMs: 100,
    prepare: nothing,
    run: async () => {
      await sleep(attackMs)
      return undefined
    },
  },
  {
    name: '400 connections, 1,000 hot requests in each at once, no answer read',
    hotMs: 500,
    prepare: nothing,
    run: flood,
  },
  { name: '100^30 as TAR, four at once', hotMs: 100, prepare: bomb, run: fourTimes('?format=tar'), isByBlock: true },
  {
    name: '100^30 as CAR with `dups=y`, four at once',
    hotMs: 100,
    prepare: bomb,
    run: fourTimes('?format=car&car-dups=y'),
    isByBlock: true,
  },
  {
    name: '2 MiB of dag-cbor, a path in it, four at once',
    hotMs: 100,
    prepare: cborDocument,
    run: fourTimes('/nowhere'),
    isByBlock: true,
  },
  {
    name: '2 MiB of dag-json as CAR, four at once',
    hotMs: 100,
    prepare: dagJson,
    run: fourTimes('?format=car'),
    isByBlock: true,
  },
  {
    name: `8 MiB of JSON by ${atOnce} clients at once, ${documents} documents one behind the other`,
    promised: 'each is answered as JSON',
    hotMs: 150,
    prepare: jsonFiles,
    run: askTogether,
  },
  {
    name: `one URL of ${inThousands(nameChars)} letters in ${inThousands(spellings)} spellings`,
    promised: 'each is answered',
    hotMs: 100,
    prepare: longName,
    run: spellInManyWays,
  },
  {
    name: 'a rule of `_redirects` with 10,000 `:splat`, four at once',
    promised: 'each is refused with 500',
    hotMs: 100,
    prepare: splats,
    run: followRule,
    responses: 'web',
  },
  {
    name: 'a cold export as CAR, 19 MiB in blocks of 1 KiB',
    promised: `complete within ${inMs(exportMs)}`,
    hotMs: 100,
    prepare: manySmall,
    run: exportCold,
  },
  // The last one: a disk from which tens of thousands of files were deleted just now makes new ones slowly.
  {
    name: '2,000 kept connections that ask for cold files at once, and again at once after a refusal',
    promised: 'they are served or refused with Retry-After',
    hotMs: 100,
    prepare: coldFiles,
    run: askAgainAtOnce,
    inFlight: 100,
  },
]
