// Preloaded into the gateway by `parts.ts`: counts what runs between two SIGUSR2, and writes it to
// COUNT_OUT. Promises and timers are expensive to count, so a process of its own counts them,
// without coverage.
import { createHook } from 'node:async_hooks'
import { writeFileSync } from 'node:fs'
import { Session } from 'node:inspector'
import { isMainThread } from 'node:worker_threads'

const { COUNT_OUT, COUNT_MODE } = process.env

if (isMainThread && COUNT_OUT) {
  const counts = new Map()
  const add = (what) => counts.set(what, (counts.get(what) ?? 0) + 1)
  if (COUNT_MODE === 'objects') {
    createHook({ init: (_id, type) => add(type) }).enable()
    const Own = globalThis.AbortController
    globalThis.AbortController = class AbortController extends Own {
      constructor() {
        super()
        add('AbortController')
      }
    }
  }
  const session = new Session()
  let hasBegun = false
  process.on('SIGUSR2', () => {
    const isFirst = !hasBegun
    hasBegun = true
    if (COUNT_MODE === 'objects') {
      if (isFirst) counts.clear()
      else writeFileSync(COUNT_OUT, JSON.stringify(Object.fromEntries(counts)))
    } else if (isFirst) {
      session.connect()
      session.post('Profiler.enable')
      session.post('Profiler.startPreciseCoverage', { callCount: true, detailed: false })
    } else
      session.post('Profiler.takePreciseCoverage', (_error, { result }) => {
        const own = result.filter(({ url }) => url.startsWith('file:') && !url.includes('node_modules'))
        const functions = own.flatMap(({ url, functions: all }) =>
          all.map(({ ranges: [{ startOffset, count }] }) => ({ url, startOffset, count })),
        )
        writeFileSync(COUNT_OUT, JSON.stringify(functions))
      })
  })
}
