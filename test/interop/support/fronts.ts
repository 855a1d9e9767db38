// nginx, Varnish and Caddy before a gateway, with the configurations that deploy/ ships: only addresses and folders are put in.
import assert from 'node:assert/strict'
import { mkdir, readFile, writeFile } from 'node:fs/promises'
import { connect } from 'node:net'
import { join } from 'node:path'
import { connect as connectSecurely } from 'node:tls'
import { freePort, run, tempFolder } from './processes.ts'

export type Front = { readonly url: string; stop(): Promise<void> }

/** Replaces a text that stands there exactly once, so that an edited file fails the test loudly. */
export function replaced(text: string, from: string, to: string): string {
  assert.equal(text.split(from).length, 2, `the configuration does not say ${from} once`)
  return text.replace(from, to)
}

const shipped = (file: string): Promise<string> => readFile(new URL(`../../../deploy/${file}`, import.meta.url), 'utf8')

/** The shipped file inside an nginx.conf that keeps everything in one folder. */
async function nginxConfiguration(behind: string, port: number, folder: string): Promise<string> {
  let shown = replaced(await shipped('nginx/cidgate.conf'), '/var/cache/nginx/cidgate', join(folder, 'cache'))
  const server = behind.startsWith('unix:') ? behind : new URL(behind).host
  shown = replaced(shown, 'server 127.0.0.1:8080;', `server ${server};`)
  shown = replaced(shown, 'listen 80;', `listen 127.0.0.1:${port};`)
  const temp = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi']
    .map((kind) => `${kind}_temp_path ${join(folder, kind)};`)
    .join('\n')
  return `${process.getuid?.() === 0 ? 'user root;' : ''}
daemon off; worker_processes 1; pid ${join(folder, 'pid')}; error_log stderr warn;
events { worker_connections 256; }
http { access_log off; ${temp}
${shown}}`
}

const answers = (port: number): Promise<boolean> =>
  new Promise((resolve) => {
    const socket = connect(port, '127.0.0.1', () => resolve(true)).once('error', () => resolve(false))
    socket.once('connect', () => socket.destroy())
  })

/** An authority's first certificate is made a moment after the port is open. */
const hasCertificate = (port: number, servername: string): Promise<boolean> =>
  new Promise((resolve) => {
    const options = { port, host: '127.0.0.1', servername, rejectUnauthorized: false }
    const socket = connectSecurely(options, () => resolve(true)).once('error', () => resolve(false))
    socket.once('secureConnect', () => socket.destroy())
  })

/** `change`: for a test that shows what the shipped configuration is there for. */
export async function startNginx(behind: string, change = (shown: string) => shown): Promise<Front> {
  const folder = await tempFolder()
  await mkdir(join(folder.path, 'cache'))
  const port = await freePort()
  const file = join(folder.path, 'nginx.conf')
  await writeFile(file, change(await nginxConfiguration(behind, port, folder.path)))
  const server = await run({ command: 'nginx', args: ['-p', folder.path, '-c', file], isReady: () => answers(port) })
  return { url: `http://127.0.0.1:${port}`, stop: () => stopping(server, folder) }
}

export async function startVarnish(behind: string): Promise<Front> {
  const folder = await tempFolder()
  const port = await freePort()
  const host = replaced(
    await shipped('varnish/cidgate.vcl'),
    '.host = "127.0.0.1"',
    `.host = "${new URL(behind).hostname}"`,
  )
  const file = join(folder.path, 'default.vcl')
  await writeFile(file, replaced(host, '.port = "8080"', `.port = "${new URL(behind).port}"`))
  // Without its jail: as root it would become a user who may not read this folder.
  const where = ['-j', 'none', '-F', '-n', join(folder.path, 'work'), '-f', file, '-a', `127.0.0.1:${port}`]
  const small = ['vsl_space=8M', 'thread_pools=1', 'thread_pool_min=10'].flatMap((one) => ['-p', one])
  const args = [...where, '-s', 'malloc,64m', '-T', 'none', ...small]
  const server = await run({ command: 'varnishd', args, isReady: () => answers(port) })
  return { url: `http://127.0.0.1:${port}`, stop: () => stopping(server, folder) }
}

type Stops = { stop(): Promise<void> }
async function stopping(server: Stops, folder: { remove(): Promise<void> }): Promise<void> {
  await server.stop()
  await folder.remove()
}

export type CaddyFront = Front & {
  readonly port: number
  /** Of the authority that signed its certificates. */
  readonly authority: Buffer
}

/** The shipped Caddyfile before an address of cidgate or its socket. */
export async function startCaddy(behind: string, name = 'Caddyfile'): Promise<CaddyFront> {
  const folder = await tempFolder()
  const port = await freePort()
  let site = replaced(
    await shipped(`caddy/${name}`),
    'reverse_proxy 127.0.0.1:8080 {',
    'tls internal\n\treverse_proxy 127.0.0.1:8080 {',
  )
  const address = behind.startsWith('unix:') ? behind.replace(':', '/') : new URL(behind).host
  site = replaced(site, '127.0.0.1:8080', address)
  const file = join(folder.path, 'Caddyfile')
  const ours = `admin off\nskip_install_trust\nauto_https disable_redirects\nhttps_port ${port}\ndefault_bind 127.0.0.1`
  await writeFile(file, `{\n${ours}\nstorage file_system ${folder.path}\n}\n${site}`)
  const args = ['run', '--config', file, '--adapter', 'caddyfile']
  const env = { HOME: folder.path, XDG_CONFIG_HOME: folder.path }
  const server = await run({ command: 'caddy', args, env, isReady: () => hasCertificate(port, 'gw.example.org') })
  const authority = await readFile(join(folder.path, 'pki/authorities/local/root.crt'))
  return { url: `https://gw.example.org:${port}`, port, authority, stop: () => stopping(server, folder) }
}
