// The servers of the bench: this gateway and its alternatives. Each is a process of its own, on the
// first core if possible; the load comes from the second.
import { spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { existsSync } from 'node:fs'
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { CID } from 'multiformats/cid'
import { create as createDigest } from 'multiformats/hashes/digest'
import { codec, hash } from '../../src/core/cid.ts'
import { carHeader, carSection } from '../../src/ipld/car.ts'
import { startKubo } from '../../test/interop/support/kubo.ts'
import { freePort } from '../../test/interop/support/processes.ts'
import { type Child, start, usageOf } from './child.ts'
import type { Content, Made } from './content.ts'

export type Server = Pick<Child, 'cpuSeconds' | 'cpuOfEach' | 'resident' | 'peak'> & {
  readonly url: string
  stop(): Promise<void>
}

const hasTaskset = spawnSync('taskset', ['--version']).status === 0
export const pinned = (core: number | string, command: string, args: readonly string[]): [string, string[]] =>
  hasTaskset ? ['taskset', ['-c', String(core), command, ...args]] : [command, [...args]]

const file = (name: string): string => fileURLToPath(new URL(name, import.meta.url))
const bin = fileURLToPath(new URL('../../bin/cidgate.mjs', import.meta.url))
/** `CIDGATE_BENCH_PEERS=none`: only those in this repository. */
export const isInstalled = (command: string): boolean =>
  process.env['CIDGATE_BENCH_PEERS'] !== 'none' && spawnSync('sh', ['-c', `command -v ${command}`]).status === 0

export async function tempFolder(): Promise<string> {
  return mkdtemp(join(tmpdir(), 'cidgate-bench-'))
}

async function script(name: string, args: readonly string[], core: number): Promise<Server> {
  const child = start(...pinned(core, process.execPath, [file(name), ...args]))
  return { ...child, url: await child.line }
}

/** Serves the content as an upstream. */
export const startOrigin = (contents: readonly Content[]): Promise<Server> =>
  script('origin.ts', [JSON.stringify(contents)], 1)

export type Upstreams = {
  readonly urls: readonly string[]
  readonly files: readonly { readonly cid: string; readonly bytes: number }[]
}

/** Upstreams with the same files, in one process, each with limited bandwidth. */
export async function startPacedUpstreams(
  count: number,
  sizesMib: readonly number[],
  bytesPerSecond: number,
): Promise<Server & Upstreams> {
  const args = [file('paced-upstreams.ts'), ...[count, bytesPerSecond, ...sizesMib].map(String)]
  const child = start(...pinned(1, process.execPath, args))
  return { ...child, url: '', ...(JSON.parse(await child.line) as Upstreams) }
}

export async function startHasher(files: readonly Made[]): Promise<Server> {
  const folder = await tempFolder()
  for (const { cid, bytes } of files) await writeFile(join(folder, cid), bytes)
  const server = await script('hasher.ts', [folder], 0)
  return {
    ...server,
    async stop() {
      await server.stop()
      await rm(folder, { recursive: true, force: true })
    },
  }
}

export const startPassThrough = (origin: Server): Promise<Server> => script('pass-through.ts', [origin.url], 0)

/** Sends the gateway's response to that path. */
export const startBare = (of: string, etag = ''): Promise<Server> => script('bare.ts', [of, etag], 0)

export async function startCidgate(config: object, core: number | string = 0): Promise<Server> {
  const data = await tempFolder()
  const path = join(data, 'config.yaml')
  const own = { listen: '127.0.0.1:0', admin: false, data: join(data, 'data'), log: { level: 'error' }, ...config }
  await writeFile(path, JSON.stringify(own))
  const profiles = process.env['CIDGATE_BENCH_PROFILE']
  const flags = profiles === undefined ? [] : ['--cpu-prof', `--cpu-prof-dir=${profiles}`]
  const child = start(...pinned(core, process.execPath, [...flags, bin, 'serve', '-c', path]))
  const line = await child.line
  return {
    ...child,
    url: /http:\/\/\S+/.exec(line)?.[0] ?? '',
    async stop() {
      await child.stop()
      await rm(data, { recursive: true, force: true })
    },
  }
}

/** Serves files at the paths of the gateway, unverified. */
export async function startNginx(files: readonly Made[]): Promise<Server> {
  const folder = await tempFolder()
  await mkdir(join(folder, 'root/ipfs'), { recursive: true })
  for (const { cid, bytes } of files) await writeFile(join(folder, 'root/ipfs', cid), bytes)
  return startNginxWith(folder, 'open_file_cache max=10000;', `root ${join(folder, 'root')};`)
}

/**
 * Caches responses of the origin. Evicts by time, or when its index is full: a file takes 128 bytes
 * there.
 */
export async function startNginxCache({ url }: Pick<Server, 'url'>, files: number): Promise<Server> {
  const folder = await tempFolder()
  const zone = `keys_zone=one:${Math.ceil((files * 128) / 1024) + nginxZoneKib}k`
  const path = `proxy_cache_path ${join(folder, 'cache')} ${zone} use_temp_path=off;`
  const upstream = `upstream origin { server ${new URL(url).host}; keepalive 16; }`
  return startNginxWith(
    folder,
    `${path} ${upstream}`,
    'location / { proxy_pass http://origin; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_cache one; }',
  )
}

// nginx's own use of an index.
const nginxZoneKib = 32

async function startNginxWith(folder: string, ofHttp: string, ofServer: string): Promise<Server> {
  const port = await freePort()
  const temp = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi'].map(
    (one) => `${one}_temp_path ${join(folder, one)};`,
  )
  const conf = `${process.getuid?.() === 0 ? 'user root;' : ''} daemon off; worker_processes 1; pid ${join(folder, 'pid')};
error_log ${join(folder, 'error')} crit; events { worker_connections 1024; }
http { access_log off; ${temp.join(' ')} sendfile on; tcp_nopush on; keepalive_requests 1000000000; ${ofHttp}
default_type application/octet-stream; server { listen 127.0.0.1:${port}; ${ofServer} } }`
  await writeFile(join(folder, 'nginx.conf'), conf)
  const child = start(...pinned(0, 'nginx', ['-p', folder, '-c', join(folder, 'nginx.conf')]))
  child.line.catch(() => {})
  const url = `http://127.0.0.1:${port}`
  await reachable(url)
  return {
    ...child,
    url,
    async stop() {
      await child.stop()
      await rm(folder, { recursive: true, force: true })
    },
  }
}

/** Caches responses in memory, unverified. */
export async function startVarnish(origin: Pick<Server, 'url'>, bytes = 256 * 1024 * 1024): Promise<Server> {
  const folder = await tempFolder()
  const { hostname, port } = new URL(origin.url)
  const vcl = join(folder, 'default.vcl')
  await writeFile(vcl, `vcl 4.1; backend default { .host = "${hostname}"; .port = "${port}"; }`)
  const url = `http://127.0.0.1:${await freePort()}`
  // Without its jail, which as root would switch to a user that cannot read this folder.
  const args = [
    '-j',
    'none',
    '-F',
    '-n',
    join(folder, 'work'),
    '-f',
    vcl,
    '-a',
    new URL(url).host,
    '-s',
    `malloc,${bytes}`,
  ]
  const child = start(...pinned(0, 'varnishd', args))
  child.line.catch(() => {})
  await reachable(url)
  return {
    ...child,
    url,
    async stop() {
      await child.stop()
      await rm(folder, { recursive: true, force: true })
    },
  }
}

/** Offline; does not verify what it reads. The same profile gives the same CIDs. */
export async function startKuboWith(files: readonly Made[]): Promise<Server & { readonly rpc: string }> {
  const kubo = await startKubo({ profile: 'unixfs-v1-2025' })
  const folder = await tempFolder()
  for (const { cid, bytes } of files) await writeFile(join(folder, cid), bytes)
  if (files.length > 0) kubo.ipfs(['add', '-r', '-Q', folder])
  await rm(folder, { recursive: true, force: true })
  return { ...usageOf(kubo.pid), url: kubo.gateway, rpc: kubo.rpc, stop: kubo.stop }
}

/** The same from blocks, for content other than files. */
export async function startKuboWithBlocks(contents: readonly Made[]): Promise<Server> {
  // Its default of 30 s is too short for eight large directories at once.
  const kubo = await startKubo({ config: { 'Gateway.RetrievalTimeout': '10m', 'Gateway.MaxRequestDuration': '1h' } })
  const folder = await tempFolder()
  for (const { cid, blocks } of contents) {
    const sections = [carHeader(CID.parse(cid))]
    for (const bytes of blocks.values()) {
      const digest = createDigest(hash.sha256, createHash('sha256').update(bytes).digest())
      sections.push(...carSection({ cid: CID.createV1(codec.dagPb, digest), bytes }))
    }
    await writeFile(join(folder, 'blocks.car'), Buffer.concat(sections))
    kubo.ipfs(['dag', 'import', '--pin-roots=false', join(folder, 'blocks.car')])
  }
  await rm(folder, { recursive: true, force: true })
  return { ...usageOf(kubo.pid), url: kubo.gateway, stop: kubo.stop }
}

const clients = fileURLToPath(new URL('../../test/interop/clients/', import.meta.url))
export const isVerifiedFetchInstalled = (): boolean =>
  process.env['CIDGATE_BENCH_PEERS'] !== 'none' && existsSync(join(clients, 'node_modules/@helia/verified-fetch'))

/** Behind node:http, with the origin as its only source. */
export async function startVerifiedFetch(origin: Server): Promise<Server> {
  const child = start(...pinned(0, process.execPath, [join(clients, 'verified-fetch-server.mjs'), origin.url]))
  return { ...child, url: await child.line }
}

async function reachable(url: string): Promise<void> {
  for (let count = 0; count < 200; count++) {
    if (
      await fetch(url).then(
        () => true,
        () => false,
      )
    )
      return
    await new Promise((resolve) => setTimeout(resolve, 50))
  }
  throw new Error(`${url} does not answer`)
}
