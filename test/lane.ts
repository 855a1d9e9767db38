// One process of `npm test`: it takes the next file that no other one has taken, until there is none. Each is a suite, and
// its hooks are its own.
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { after, describe } from 'node:test'
import { pathToFileURL } from 'node:url'

const { folder, files } = JSON.parse(process.env['CIDGATE_TEST_QUEUE'] ?? '') as { folder: string; files: string[] }
delete process.env['CIDGATE_TEST_QUEUE']

for (const [index, file] of files.entries()) {
  if (!take(index)) continue
  await new Promise<void>((done) => {
    describe(file, () => {
      after(() => {
        writeFileSync(join(folder, `${index}.done`), '')
        done()
      })
      return import(pathToFileURL(file).href)
    })
  })
}

function take(index: number): boolean {
  try {
    writeFileSync(join(folder, `${index}.taken`), '', { flag: 'wx' })
    return true
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'EEXIST') return false
    throw error
  }
}
