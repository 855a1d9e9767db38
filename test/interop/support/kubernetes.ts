// Checks manifests against Kubernetes' own definitions and those of the Prometheus operator, as the package kubernetes-models
// brings them: its validators know types, patterns and what is required, and its types know which fields there are.
import { spawnSync } from 'node:child_process'
import { existsSync } from 'node:fs'
import { symlink, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { tempFolder } from './processes.ts'

const packages = fileURLToPath(new URL('../clients/node_modules', import.meta.url))
const compiler = fileURLToPath(new URL('../../../node_modules/.bin/tsc', import.meta.url))

export type Manifest = { readonly apiVersion: string; readonly kind: string; readonly [key: string]: unknown }

const sourceOf = ({ apiVersion }: Manifest): string =>
  `${apiVersion.startsWith('monitoring.coreos.com/') ? '@kubernetes-models/prometheus-operator' : 'kubernetes-models'}/${apiVersion}`

/** A literal must not have a field that its type lacks: the validators let those pass, and a cluster drops them. */
const literals = (manifests: readonly Manifest[]): string =>
  manifests
    .map((one, index) => {
      const type = `import(${JSON.stringify(sourceOf(one))}).I${one.kind}`
      return `export const manifest${index}: ${type} = ${JSON.stringify(one, null, 1)}\n`
    })
    .join('')

const validators = (manifests: readonly Manifest[]): string =>
  manifests
    .map((one, index) => {
      const known = `known${index}`
      return `import { ${one.kind} as ${known} } from ${JSON.stringify(sourceOf(one))}
try { new ${known}(${JSON.stringify(one)}).validate() } catch (error) { console.log(error.message); process.exitCode = 1 }\n`
    })
    .join('')

/** What a cluster would refuse or drop; '' when there is nothing. */
export async function faultsOf(manifests: readonly Manifest[]): Promise<string> {
  if (!existsSync(join(packages, 'kubernetes-models')))
    throw new Error('kubernetes-models is not installed: run npm ci --ignore-scripts --prefix test/interop/clients')
  const folder = await tempFolder()
  try {
    await symlink(packages, join(folder.path, 'node_modules'))
    await writeFile(join(folder.path, 'literals.mts'), literals(manifests))
    await writeFile(join(folder.path, 'validators.mjs'), validators(manifests))
    const kinds = ['--noEmit', '--strict', '--skipLibCheck', '--module', 'nodenext', '--target', 'esnext']
    return [[compiler, ...kinds, 'literals.mts'], ['validators.mjs']]
      .map((args) => {
        const { status, stdout, stderr } = spawnSync(process.execPath, args, { cwd: folder.path, encoding: 'utf8' })
        return status === 0 ? '' : `${stdout}${stderr}`
      })
      .join('')
  } finally {
    await folder.remove()
  }
}
