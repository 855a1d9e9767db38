// The threads of V8 where there is one core: a process of its own, since a priority that was lowered is not raised again.
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { it } from 'node:test'

const module = new URL('../../src/cli/helper-threads.ts', import.meta.url).href

const isHelper = (name: string): boolean => /^(?:node-)?V8Worker$/.test(name)

/** The priority of each thread, by its name. */
function prioritiesWith(cores: number): readonly (readonly [name: string, priority: number])[] {
  const program = `
    import { readdirSync, readFileSync } from 'node:fs'
    import { getPriority } from 'node:os'
    import { lowerHelperPriority } from ${JSON.stringify(module)}
    lowerHelperPriority(${cores})
    const of = (thread) => [readFileSync('/proc/self/task/' + thread + '/comm', 'utf8').trim(), getPriority(Number(thread))]
    console.log(JSON.stringify(readdirSync('/proc/self/task').map(of)))`
  return JSON.parse(execFileSync(process.execPath, ['--input-type=module', '-e', program], { encoding: 'utf8' }))
}

it('helper threads: lower priority on one core only', {
  skip:
    (process.platform !== 'linux' && 'Linux alone has priorities for threads') ||
    (process.versions.node.startsWith('22.') && 'Node 22 gives its threads no names'),
}, () => {
  const [own = 0] = prioritiesWith(2).map(([, priority]) => priority)
  for (const [cores, helpers] of [
    [1, Math.min(19, own + 5)],
    [2, own],
  ] as const) {
    const threads = prioritiesWith(cores)
    assert.ok(
      threads.some(([name]) => isHelper(name)),
      'V8 has helpers',
    )
    for (const [name, priority] of threads) assert.equal(priority, isHelper(name) ? helpers : own, name)
  }
})
