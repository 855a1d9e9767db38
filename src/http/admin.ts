// The admin address: is it alive, is it ready, what does it count. Never mounted on the public one.
import express, { type Express } from 'express'
import type { Metrics } from '../observe/metrics.ts'

export type ReadyCheck = { readonly name: string; readonly ok: boolean; readonly detail?: string }

export type AdminDeps = {
  readonly metrics: Metrics
  /** Draining, or a part that nothing works without is out: a load balancer should look elsewhere. */
  readonly ready: () => { readonly ready: boolean; readonly checks: readonly ReadyCheck[] }
}

export function createAdmin({ metrics, ready }: AdminDeps): Express {
  const app = express()
  app.disable('x-powered-by')
  app.disable('etag')
  app.use((_request, response, next) => {
    response.set('Cache-Control', 'no-store')
    next()
  })
  app.get('/healthz', (_request, response) => {
    response.json({ status: 'alive' })
  })
  app.get('/readyz', (_request, response) => {
    const state = ready()
    response.status(state.ready ? 200 : 503).json(state)
  })
  app.get('/metrics', (_request, response) => {
    response.type('text/plain; version=0.0.4').send(metrics.render())
  })
  return app
}
