// The startup banner on a terminal: the configuration, the data folder, the backends, and who may
// upload.
import type { Config } from '../../config/load.ts'
import { version } from '../../config/package.ts'

export function banner(file: string, config: Config): string {
  const { data, cache, retrieval } = config
  const lines: readonly (readonly [what: string, said: string])[] = [
    ['version', `${version}, Node ${process.versions.node}`],
    ['configuration', file],
    ['data', data],
    ['tiers', listed(cache.tiers)],
    ['upstreams', listed(retrieval.upstreams)],
    [
      'providers',
      config.upload.forwardTo ? 'none: uploads go on to another service' : listed(config.pinning.providers),
    ],
    ['uploads', whoMayUpload(config)],
  ]
  return lines.map(([what, said]) => `  ${what.padEnd(14)} ${said}\n`).join('')
}

const listed = (entries: readonly { readonly name: string }[]): string =>
  entries.length === 0 ? 'none' : entries.map(({ name }) => name).join(', ')

function whoMayUpload({ upload: { auth, forwardTo: through }, pinning }: Config): string {
  if (!through && pinning.providers.length === 0) return 'nobody: there is no provider'
  if (auth === 'none') return 'every client of this machine, without a token'
  if (auth === 'open') return 'every client, without a token'
  return `clients with a token (${auth.tokens.length} of them)`
}
