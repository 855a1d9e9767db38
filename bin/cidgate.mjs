#!/usr/bin/env node
// Starts the command line with a Node that can run it: the compiled program if there is one,
// otherwise the sources. A clone has its own Node in node_modules, for machines with an older one.
import { spawn } from 'node:child_process'
import { existsSync, readFileSync } from 'node:fs'
import module from 'node:module'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { takeHeapFlags } from './heap-flags.mjs'
import { watchStarter } from './starter.mjs'

const at = (path) => fileURLToPath(new URL(path, import.meta.url))
const isSource = existsSync(at('../src/cli/main.ts'))
const program = isSource ? at('../src/cli/main.ts') : at('../dist/src/cli/main.js')

const numbers = (version) => /(\d+)\.(\d+)/.exec(version).slice(1).map(Number)
const expected = numbers(JSON.parse(readFileSync(at('../package.json'), 'utf8')).engines.node)
const [major, minor] = numbers(process.versions.node)
const isOldNode = major < expected[0] || (major === expected[0] && minor < expected[1])
const brought = [at('../node_modules/.bin/node'), at('../../.bin/node')].find(existsSync)
// The marker ends the search if the Node in node_modules is too old too.
const { CIDGATE_LAUNCHER: launcher, ...env } = process.env

if (!isOldNode) {
  takeHeapFlags()
  delete process.env.CIDGATE_LAUNCHER
  // Caches compiled code in our own folder, because other users may write to a shared temporary
  // one. If it is not writable, each start compiles.
  module.enableCompileCache?.(at('../node_modules/.cache/cidgate'))
  watchStarter(launcher && Number(launcher), () => process.kill(process.pid, 'SIGTERM'))
  await import(pathToFileURL(program).href)
} else if (brought && launcher === undefined) {
  const args = [at('./cidgate.mjs'), ...process.argv.slice(2)]
  const child = spawn(brought, args, { stdio: 'inherit', env: { ...env, CIDGATE_LAUNCHER: String(process.pid) } })
  for (const signal of ['SIGTERM', 'SIGINT', 'SIGHUP']) process.on(signal, () => child.kill(signal))
  watchStarter(undefined, () => child.kill('SIGTERM'))
  child.on('error', (error) => {
    process.stderr.write(`cidgate: ${brought} cannot be started: ${error.message}\n`)
    process.exitCode = 1
  })
  child.on('exit', (code, signal) => {
    process.exitCode = code ?? (signal ? 1 : 0)
  })
} else {
  process.stderr.write(
    `cidgate: Node ${process.versions.node} is too old (expected ${expected.join('.')} or later; install one with npm i node)\n`,
  )
  process.exitCode = 1
}
