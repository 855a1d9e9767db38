// Rows of the fault matrix: what happens to the disk under a gateway that runs. It is a process of its own; where a fault needs a
// file system of its own, that is one in memory which only this process sees, and nobody has to be root for it. Linux alone.

import { execFile } from 'node:child_process'
import { appendFile, mkdir, mkdtemp, readdir, readFile, rename, rm, truncate, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { promisify } from 'node:util'
import { type GatewayProcess, startGateway } from '../../soak/gateway-process.ts'
import { type Answer, multipart, post } from '../../support/adding.ts'
import { addFile, type BlockMap, type FileFixture, noise } from '../../support/fixtures.ts'
import { fetchAll } from '../../support/gateway.ts'
import { keptIn } from '../../support/kept.ts'
import { startUpstream } from '../../support/upstream.ts'
import type { Need } from './needs.ts'
import { read } from './reading.ts'
import { type Cell, type Form, inMs, type Row } from './rows.ts'

const run = promisify(execFile)
const mib = 1024 * 1024

/** What a row needs of its gateway. */
type Running = Pick<GatewayProcess, 'url' | 'pid' | 'handles' | 'ended' | 'stop'>
type Ill = { readonly gateway: Running /** The data folder, as this process sees it. */; readonly data: string }

export type DiskFault = {
  readonly name: string
  /** The data folder is a file system of its own. */
  readonly isMounted?: true
  /** Beside Linux, and a file system of its own where it is mounted. */
  readonly needs?: readonly Need[]
  readonly make: (ill: Ill) => Promise<unknown>
  readonly mend: (ill: Ill) => Promise<unknown>
  /** Statuses of an upload meanwhile. */
  readonly upload: readonly (number | 'cut')[]
  /** It is made when half of the upload has come. */
  readonly isHalfway?: true
  /** Statuses of what was uploaded before: meanwhile, and afterwards. */
  readonly kept: readonly (number | 'cut' | 'false')[]
  readonly keptAfter?: readonly (number | 'cut' | 'false')[]
  /** It is in `npm test`, with a gateway in that process. */
  readonly isQuick?: true
}

const ballast = (data: string) => join(data, 'ballast')

async function fill({ data }: Ill): Promise<void> {
  for (let bytes = mib; bytes >= 1; bytes = bytes >> 1)
    while (await appendFile(ballast(data), Buffer.alloc(bytes)).then(yes, no));
}

const yes = () => true
const no = () => false

async function fillNames({ data }: Ill): Promise<void> {
  await mkdir(ballast(data))
  for (let at = 0; await writeFile(join(ballast(data), String(at)), '').then(yes, no); at++);
}

const lighten = ({ data }: Ill) => rm(ballast(data), { recursive: true })

/** What is open stays open for writing: each path goes through a second mount, over the first one. */
const readOnly = {
  make: async (ill: Ill) => {
    await inside(ill, 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0"')
  },
  mend: async (ill: Ill) => {
    await inside(ill, 'umount -l "$0"')
  },
}

async function inside({ gateway, data }: Ill, script: string): Promise<void> {
  const own = data.slice(`/proc/${gateway.pid}/root`.length)
  await run('nsenter', ['-t', String(gateway.pid), '-U', '-m', '--preserve-credentials', 'sh', '-c', script, own])
}

const limit = (what: string, most: (ill: Ill) => number | string) => async (ill: Ill) => {
  await run('prlimit', ['--pid', String(ill.gateway.pid), `--${what}=${most(ill)}:`])
}

const eachFile =
  (folder: string, change: (file: string) => Promise<unknown>) =>
  async ({ data }: Ill) => {
    const entries = await readdir(join(data, folder), { recursive: true, withFileTypes: true })
    for (const entry of entries)
      if (entry.isFile() && !entry.name.endsWith('.tmp')) await change(join(entry.parentPath, entry.name))
  }

async function flip(file: string): Promise<void> {
  const bytes = await readFile(file)
  const at = bytes.length >> 1
  bytes[at] = (bytes[at] ?? 0) ^ 1
  await writeFile(file, bytes)
}

const halve = async (file: string) => truncate(file, (await readFile(file)).length >> 1)
const away =
  (folder: string) =>
  ({ data }: Ill) =>
    rm(join(data, folder), { recursive: true, maxRetries: 20 })
const nothing = async () => {}

const inTheWay = (folder: string) => ({
  make: async ({ data }: Ill) => {
    await rename(join(data, folder), join(data, 'aside'))
    await writeFile(join(data, folder), 'no folder')
  },
  mend: async ({ data }: Ill) => {
    await rm(join(data, folder))
    await rename(join(data, 'aside'), join(data, folder))
  },
})

export const diskFaults: readonly DiskFault[] = [
  { name: 'full', isMounted: true, make: fill, mend: lighten, upload: [507], kept: [200] },
  {
    name: 'full in the middle of an upload',
    isMounted: true,
    make: fill,
    mend: lighten,
    upload: [507],
    isHalfway: true,
    kept: [200],
  },
  { name: 'no room for another name', isMounted: true, make: fillNames, mend: lighten, upload: [507], kept: [200] },
  { name: 'read-only', isMounted: true, needs: ['nsenter'], ...readOnly, upload: [500, 503], kept: [200] },
  {
    name: 'no file may pass 64 KiB (EFBIG, as `ulimit -f` does)',
    needs: ['prlimit'],
    make: limit('fsize', () => 65536),
    mend: limit('fsize', () => 'unlimited'),
    upload: [500],
    kept: [200],
  },
  {
    name: 'no file can be opened (EMFILE)',
    needs: ['prlimit'],
    make: limit('nofile', ({ gateway }) => gateway.handles() + 1),
    mend: limit('nofile', () => 8192),
    upload: [502, 503, 'cut'],
    kept: [200, 503, 'cut'],
  },
  {
    name: 'a byte of each file of the tier is another',
    make: eachFile('cache', flip),
    mend: nothing,
    upload: [200],
    kept: [200],
    isQuick: true,
  },
  {
    name: 'each file of the tier is cut in half',
    make: eachFile('cache', halve),
    mend: nothing,
    upload: [200],
    kept: [200],
    isQuick: true,
  },
  { name: 'the folder of the tier is removed', make: away('cache'), mend: nothing, upload: [200], kept: [200] },
  { name: 'a file where the folder of the tier was', ...inTheWay('cache'), upload: [200], kept: [200] },
  {
    name: 'a byte of each CAR file is another',
    make: eachFile('uploads', flip),
    mend: eachFile('uploads', flip),
    upload: [200],
    kept: [404, 503],
  },
  {
    name: 'each CAR file is cut in half',
    make: eachFile('uploads', halve),
    mend: nothing,
    upload: [200],
    kept: [404, 503],
    keptAfter: [404, 503],
  },
  { name: 'a file where the folder of uploads was', ...inTheWay('uploads'), upload: [500, 503], kept: [200, 404, 503] },
  {
    name: 'an empty folder where the data folder was',
    make: async ({ data }) => {
      await rename(data, `${data}.aside`)
      await mkdir(data)
    },
    mend: async ({ data }) => {
      await rm(data, { recursive: true, maxRetries: 20 })
      await rename(`${data}.aside`, data)
    },
    upload: [500],
    kept: [404, 503],
  },
]

export const needsOf = ({ isMounted, needs = [] }: DiskFault): readonly Need[] => [
  'linux',
  ...(isMounted ? (['mount'] as const) : []),
  ...needs,
]

const mounting = (data: string): readonly string[] => [
  'unshare',
  '-Urm',
  'sh',
  '-c',
  'mount -t tmpfs -o size=64m,nr_inodes=20000 none "$0" && exec "$@"',
  data,
]

const fileBytes = 100_000
const uploadBytes = 2 * mib
/** What an operator can do, in any words that the gateway has for it. */
const nextStep = /free space|read-only|ulimit|raise the limit|in the place of the folder|put it back/

type Told = { readonly path: string; readonly body: Uint8Array }

/** Starts a gateway with this configuration. */
export type Start = (
  folder: string,
  config: Readonly<Record<string, unknown>>,
  under: readonly string[],
) => Promise<Running>

const asProcess: Start = (folder, config, under) => startGateway(folder, config, [], { under, isMute: true })

export async function diskRow(fault: DiskFault, form: Form, start = asProcess): Promise<Row> {
  const folder = await mkdtemp(join(tmpdir(), 'cidgate-faults-'))
  const own = join(folder, 'data')
  await mkdir(own)
  const blocks: BlockMap = new Map()
  const known: FileFixture[] = []
  const fresh: FileFixture[] = []
  for (let at = 1; at <= form.files; at++) known.push(await addFile(blocks, noise(fileBytes, at)))
  for (let at = 1; at <= form.spareFiles; at++) fresh.push(await addFile(blocks, noise(fileBytes, 100 + at)))
  const upstream = await startUpstream({ blocks })
  const config = {
    listen: '127.0.0.1:0',
    admin: '127.0.0.1:0',
    data: own,
    log: { level: 'error' },
    limits: { perClient: { perMinute: 10_000_000 } },
    retrieval: { timeout: '2s', upstreams: [{ name: 'well', url: upstream.url }] },
    cache: { responses: { maxBytes: 0 }, tiers: [{ use: 'disk', path: join(own, 'cache'), maxBytes: '32MiB' }] },
    pinning: { providers: [{ name: 'local', use: 'embedded' }] },
  }
  const gateway = await start(folder, config, fault.isMounted ? mounting(own) : [])
  const ill: Ill = { gateway, data: fault.isMounted ? `/proc/${gateway.pid}/root${own}` : own }
  let made = 1000
  try {
    for (const file of known) await read(gateway.url, file)
    const body = noise(300_000, 999)
    const { json } = await send(body)
    const kept = { path: (json['cids'] as [string])[0], body }
    const cells = [await illCell(kept), await besideCell(), await afterCell(kept)]
    const within = fault.keptAfter ? '' : ', and what was there before'
    const promised = `upload ${fault.upload.join(' or ')}; ${fault.kept.join(' or ')}; as good as new${within} within ${inMs(form.recoveredWithinMs)}`
    return { fault: fault.name, promised, cells }
  } finally {
    await gateway.stop()
    await upstream.close()
    await rm(folder, { recursive: true, force: true, maxRetries: 20 })
  }

  function send(body: Uint8Array): Promise<Answer> {
    return post(`${gateway.url}/add`, multipart([{ fileName: 'a', body }]))
  }

  /** Half of it, the fault, and the rest. */
  async function* inHalves(body: Buffer): AsyncGenerator<Uint8Array> {
    const middle = body.length >> 1
    for (let at = 0; at < body.length; at += 65536) {
      if (at >= middle && at < middle + 65536) await fault.make(ill)
      yield body.subarray(at, at + 65536)
    }
  }

  async function illCell(kept: Told): Promise<Cell> {
    const large = multipart([{ fileName: 'a', body: Buffer.from(noise(uploadBytes, made++)) }])
    if (!fault.isHalfway) await fault.make(ill)
    const began = performance.now()
    const sent = await post(`${gateway.url}/add`, fault.isHalfway ? inHalves(large) : large).catch(() => undefined)
    const ms = performance.now() - began
    const here = await outcomeOf(kept)
    const status = sent?.status ?? 'cut'
    const hasNext = status === 200 || status === 'cut' || nextStep.test(JSON.stringify(sent?.json))
    const broken = [
      ...(fault.upload.includes(status) ? [] : [`an upload is ${status}`]),
      ...(hasNext ? [] : ['the refusal names no next step']),
      ...(ms > form.deadlineMs ? [`an upload is answered after ${inMs(ms)}`] : []),
      ...(fault.kept.includes(here) ? [] : [`what was uploaded before is ${here}`]),
    ]
    return { measured: `${status}, ${inMs(ms)}; ${here}`, broken }
  }

  /** Whole, and no other bytes. */
  async function outcomeOf({ path, body }: Told): Promise<number | 'cut' | 'false'> {
    const got = await fetchAll(gateway.url + path).catch(() => undefined)
    if (got?.status !== 200) return got?.status ?? 'cut'
    return got.body.equals(body) ? 200 : 'false'
  }

  /** One that the tier had, and one that it never had, in turn. */
  async function besideCell(): Promise<Cell> {
    let worst = 0
    const broken: string[] = []
    for (let count = 0; count < form.files; count++) {
      const { outcome, ms } = await read(gateway.url, (count % 2 ? fresh : known).pop() as FileFixture)
      worst = Math.max(worst, ms)
      if (outcome !== 'complete') broken.push(`before a healthy upstream: ${outcome}`)
    }
    const complete = form.files - broken.length
    if (worst > form.maxMs) broken.push(`before a healthy upstream: ${inMs(worst)}`)
    return { measured: `${complete} of ${form.files} complete, at most ${inMs(worst)}`, broken }
  }

  async function afterCell(kept: Told): Promise<Cell> {
    await fault.mend(ill)
    const began = performance.now()
    const isLate = () => performance.now() - began > form.recoveredWithinMs
    const [after, tier] = [fault.keptAfter ?? [200], { isUsed: false }]
    let [sent, here]: [number | undefined, number | 'cut' | 'false'] = [undefined, 0]
    for (; !isLate(); await sleep(20)) {
      if (sent !== 200) sent = await uploadAndRead()
      here = await outcomeOf(kept)
      tier.isUsed ||= await isReadFromTier()
      if (sent === 200 && after.includes(here) && tier.isUsed) break
    }
    const ms = performance.now() - began
    const strays = async () => (await keptIn(ill.data)).strays.length
    while (!isLate() && (await strays()) > 0) await sleep(20)
    const left = await strays()
    const broken = [
      ...(sent === 200 ? [] : [`an upload is ${sent}`]),
      ...(after.includes(here) ? [] : [`what was uploaded before is ${here}`]),
      ...(tier.isUsed ? [] : ['the tier is not used']),
      ...(left > 0 ? [`${left} files of refused uploads are left`] : []),
      ...(gateway.ended === undefined ? [] : [`it ended: ${gateway.ended}`]),
    ]
    return { measured: `upload 200, ${here}, and the tier is used after ${inMs(ms)}`, broken }
  }

  async function uploadAndRead(): Promise<number | undefined> {
    const body = noise(uploadBytes, made++)
    const sent = await send(body).catch(() => undefined)
    if (sent?.status !== 200) return sent?.status
    const outcome = await outcomeOf({ path: (sent.json['cids'] as [string])[0], body })
    return outcome === 200 ? 200 : undefined
  }

  /** The second time, the upstream is asked for nothing. */
  async function isReadFromTier(): Promise<boolean> {
    const file = fresh.pop()
    if (!file || (await read(gateway.url, file)).outcome !== 'complete') return false
    const before = upstream.asked.length
    const { outcome } = await read(gateway.url, file)
    return outcome === 'complete' && upstream.asked.length === before
  }
}
