// `cidgate import`: uploads CARs and keeps their CIDs.
import { basename } from 'node:path'
import type { Given } from '../command.ts'
import { connect } from './connection.ts'
import { createProgress } from './progress.ts'
import { opened, upload } from './upload.ts'

export async function importCommand(given: Given): Promise<number> {
  const { values, positionals, io } = given
  const connection = connect(given)
  const progress = createProgress(io.stderr)
  try {
    for (const name of positionals) {
      progress.say(`${name} is on its way`)
      const files = [{ name: basename(name), content: await opened(name) }]
      const paths = await upload(connection, {
        name,
        files,
        token: io.environment['CIDGATE_TOKEN'],
        as: 'format=car',
        progress,
      })
      progress.end()
      for (const path of paths)
        io.stdout.write(values['json'] ? `${JSON.stringify({ name, path })}\n` : `${path}  ${name}\n`)
    }
    return 0
  } finally {
    progress.end()
    await connection.close()
  }
}
