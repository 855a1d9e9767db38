// The conformance suite as a program: what is in it, and what it says of a gateway.
import { execFile } from 'node:child_process'
import { readdirSync, readFileSync, realpathSync, rmSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { runOnce } from '../support/processes.ts'
import { type Counts, readReport } from './report.ts'

/** A case may need several specifications; it stands in the first group that names all of them. */
export const groups = [
  'trustless-block-gateway',
  'trustless-car-gateway',
  'trustless-car-gateway-optional',
  'trustless-ipns-gateway',
  'path-unixfs-gateway',
  'path-ipns-gateway',
  'path-raw-gateway',
  'path-tar-gateway',
  'path-dag-gateway',
  'path-range-gateway,path-unixfs-gateway',
  'path-ipns-gateway,path-unixfs-gateway',
  'path-ipns-gateway,path-dag-gateway',
  'subdomain-ipfs-gateway',
  'subdomain-ipns-gateway',
  'dnslink-gateway',
  'redirects-file,subdomain-ipfs-gateway',
  'redirects-file,subdomain-ipns-gateway',
  'redirects-file,dnslink-gateway',
  'proxy-gateway,subdomain-ipfs-gateway',
] as const

const specsOf = (all: readonly string[]): string => [...new Set(all.flatMap((group) => group.split(',')))].join(',')
export const everything = specsOf(groups)
export const trustlessOnly = specsOf(groups.filter((group) => group.startsWith('trustless-')))

export type Fixtures = {
  readonly cars: readonly string[]
  readonly records: readonly string[]
  /** `name:path` pairs, as Kubo takes them from its environment. */
  readonly namesMap: string
}

export function createSuite(program: string, folder: string) {
  // It reads its own source when it runs.
  const home = process.env['GATEWAY_CONFORMANCE_HOME'] ?? dirname(realpathSync(program))
  return {
    fixtures(): Fixtures {
      const to = join(folder, 'fixtures')
      runOnce(program, ['extract-fixtures', '--directory', to])
      const all = readdirSync(to, { recursive: true, withFileTypes: true })
        .filter((entry) => entry.isFile())
        .map((entry) => join(entry.parentPath, entry.name))
      const map = all.find((file) => file.endsWith('IPFS_NS_MAP'))
      if (map === undefined) throw new Error('the suite has no IPFS_NS_MAP among its fixtures')
      return {
        cars: all.filter((file) => file.endsWith('.car')),
        records: all.filter((file) => file.endsWith('.ipns-record')),
        namesMap: readFileSync(map, 'utf8').trim(),
      }
    },

    async run(url: string, specs: string): Promise<Counts> {
      const json = join(folder, 'report.json')
      rmSync(json, { force: true })
      const urls = ['--gateway-url', url, '--subdomain-url', `http://example.com:${new URL(url).port}`]
      const command = ['test', ...urls, '--json', json, '--specs', specs, '--', '-timeout', '10m']
      const env = { ...process.env, GATEWAY_CONFORMANCE_HOME: home }
      // Cases that fail end it with 1; the report says which.
      await new Promise<void>((resolve) => execFile(program, command, { env, maxBuffer: 1 << 28 }, () => resolve()))
      return readReport(readFileSync(json, 'utf8'))
    },
  }
}
