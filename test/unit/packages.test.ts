import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { rm, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { describe, it } from 'node:test'
import { fileURLToPath } from 'node:url'
import { packageOf } from '../../src/core/packages.ts'
import { tempFolder } from '../support/gateway.ts'

const program = fileURLToPath(new URL('../../src/cli/main.ts', import.meta.url))
/** What comes after it finds none of these packages. */
const without = `data:text/javascript,${encodeURIComponent(`import { registerHooks } from 'node:module'
registerHooks({ resolve(name, context, next) {
  if (name !== '@smithy/signature-v4' && name !== '@keyv/redis') return next(name, context)
  throw Object.assign(new Error('Cannot find package'), { code: 'ERR_MODULE_NOT_FOUND' })
} })`)}`

describe('missing package', () => {
  it('named with its install command; other errors unchanged', async () => {
    const missing = packageOf('of-nobody', () => import('of-nobody' as string))
    await assert.rejects(missing, { kind: 'unsupported', message: 'of-nobody is not installed; npm install of-nobody' })
    const wrong = new SyntaxError('what it says')
    await assert.rejects(
      packageOf('of-nobody', () => Promise.reject(wrong)),
      wrong,
    )
    assert.equal(await packageOf('of-nobody', async () => 1), 1)
  })

  it('doctor names it for each backend that needs it', async () => {
    const folder = await tempFolder()
    const file = join(folder, 'my.json')
    const key = { accessKeyId: 'an-access-key-id', secretAccessKey: 'a-secret-access-key' }
    const endpoint = 'http://127.0.0.1:9'
    const config = {
      ...{ data: join(folder, 'data'), retrieval: { upstreams: [] } },
      cache: {
        tiers: [
          { use: 's3', bucket: 'blocks', endpoint, ...key },
          { use: 'redis', url: 'redis://127.0.0.1:9' },
        ],
      },
      pinning: { providers: [{ use: 'filebase', name: 'filebase', bucket: 'pins', endpoint, ...key }] },
    }
    await writeFile(file, JSON.stringify(config))
    const said = await new Promise<string>((resolve) => {
      execFile(process.execPath, ['--import', without, program, 'doctor', file], (_error, out) => resolve(out))
    })
    await rm(folder, { recursive: true, force: true })
    for (const [what, name] of [
      ['tier s3', '@smithy/signature-v4'],
      ['tier redis', '@keyv/redis'],
      ['provider filebase', '@smithy/signature-v4'],
    ])
      assert.match(said, new RegExp(`^bad +${what}\\b.*: .*${name} is not installed; npm install ${name}$`, 'm'))
  })
})
