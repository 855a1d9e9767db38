// What large files are measured against where no peer is installed: blocks of 1 MiB read into one buffer and hashed, and nothing
// else. It goes over the files of a folder for so many seconds and prints the MiB that it did in a second of its processor time.
import { hash } from 'node:crypto'
import { closeSync, openSync, readdirSync, readSync } from 'node:fs'
import { join } from 'node:path'

const [folder = '', seconds = '1'] = process.argv.slice(2)
const files = readdirSync(folder).map((name) => join(folder, name))
const buffer = Buffer.allocUnsafeSlow(1024 * 1024)
const began = process.cpuUsage()
const stopAt = performance.now() + Number(seconds) * 1000
let bytes = 0
while (performance.now() < stopAt)
  for (const file of files) {
    const fd = openSync(file, 'r')
    const read = readSync(fd, buffer, 0, buffer.byteLength, 0)
    closeSync(fd)
    hash('sha256', buffer.subarray(0, read))
    bytes += read
  }
const { user, system } = process.cpuUsage(began)
process.stdout.write(`${JSON.stringify(bytes / 2 ** 20 / ((user + system) / 1e6))}\n`)
