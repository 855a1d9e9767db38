// Real stores for the shared tiers: Redis, and S3 servers over a folder.
import { mkdir } from 'node:fs/promises'
import { connect } from 'node:net'
import { join } from 'node:path'
import { freePort, type Program, run, tempFolder } from './processes.ts'

/** A server that can be taken away, brought back at the same address, and made to say nothing. */
async function startStore(program: Program, folder: { remove(): Promise<void> }) {
  let server = await run(program)
  return {
    outage: {
      begin: () => server.stop(),
      async end() {
        server = await run(program)
      },
    },
    silence: () => server.pause(),
    async stop() {
      await server.stop()
      await folder.remove()
    },
  }
}

const accepts = (port: number): Promise<boolean> =>
  new Promise((resolve) => {
    const socket = connect(port, '127.0.0.1')
    socket.once('connect', () => {
      socket.destroy()
      resolve(true)
    })
    socket.once('error', () => resolve(false))
  })

export async function startRedis() {
  const folder = await tempFolder()
  const port = await freePort()
  const server = {
    command: 'redis-server',
    args: ['--port', String(port), '--bind', '127.0.0.1', '--dir', folder.path, '--save', '', '--appendonly', 'no'],
    isReady: (output: string) => output.includes('Ready to accept connections'),
  }
  return { url: `redis://127.0.0.1:${port}`, ...(await startStore(server, folder)) }
}

type S3Program = (at: {
  port: number
  folder: string
  key: string
  secret: string
}) => Pick<Program, 'command' | 'args'>

/** Two that have nothing in common but the protocol; both keep buckets as folders and objects as files. */
const s3Programs = {
  versitygw: ({ port, folder, key, secret }) => ({
    command: 'versitygw',
    args: ['--port', `127.0.0.1:${port}`, '--access', key, '--secret', secret, 'posix', folder],
  }),
  rclone: ({ port, folder, key, secret }) => ({
    command: 'rclone',
    args: ['serve', 's3', '--addr', `127.0.0.1:${port}`, '--auth-key', `${key},${secret}`, '--config', '', folder],
  }),
} satisfies Record<string, S3Program>

export async function startS3(program: keyof typeof s3Programs = 'versitygw') {
  const folder = await tempFolder()
  const port = await freePort()
  const credentials = { accessKeyId: 'interop', secretAccessKey: 'interop-secret' }
  const { accessKeyId: key, secretAccessKey: secret } = credentials
  const bucket = 'blocks'
  // With the folder of the prefix: rclone loses objects when two requests make their folder at the same time.
  await mkdir(join(folder.path, bucket, 'blocks'), { recursive: true })
  const server = {
    ...s3Programs[program]({ port, folder: folder.path, key, secret }),
    isReady: () => accepts(port),
  }
  return {
    endpoint: `http://127.0.0.1:${port}`,
    region: 'us-east-1',
    bucket,
    ...credentials,
    /** Where the objects of the bucket lie as files. */
    folder: join(folder.path, bucket),
    ...(await startStore(server, folder)),
  }
}
