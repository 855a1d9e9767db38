#!/usr/bin/env node
// Starts the command line with a Node that can run it: the compiled program where there is one, else the sources as they
// are. A clone brings its own Node in node_modules, for machines that have an older one.
import { spawn } from 'node:child_process'
import { existsSync } from 'node:fs'
import { fileURLToPath, pathToFileURL } from 'node:url'

const at = (path) => fileURLToPath(new URL(path, import.meta.url))
const isSource = existsSync(at('../src/main.ts'))
const program = isSource ? at('../src/main.ts') : at('../dist/src/main.js')

const [major = 0, minor = 0] = process.versions.node.split('.').map(Number)
const isOldNode = major < 22 || (major === 22 && minor < 19)
const brought = [at('../node_modules/.bin/node'), at('../../.bin/node')].find(existsSync)

if (!isOldNode) {
  await import(pathToFileURL(program).href)
} else if (brought && process.env.CIDGATE_NODE !== 'brought') {
  // The marker ends the search when the Node that was brought is too old as well.
  const env = { ...process.env, CIDGATE_NODE: 'brought' }
  const child = spawn(brought, [program, ...process.argv.slice(2)], { stdio: 'inherit', env })
  for (const signal of ['SIGTERM', 'SIGINT', 'SIGHUP']) process.on(signal, () => child.kill(signal))
  child.on('error', (error) => {
    process.stderr.write(`cidgate: ${brought} cannot be started: ${error.message}\n`)
    process.exitCode = 1
  })
  child.on('exit', (code, signal) => {
    process.exitCode = code ?? (signal ? 1 : 0)
  })
} else {
  process.stderr.write(
    `cidgate: Node ${process.versions.node} is too old (expected 22.19 or later; npm i node brings one)\n`,
  )
  process.exitCode = 1
}
