// The admin address: is it alive, is it ready, what does it count. Never mounted on the public one.
import express, { type Express } from 'express'
import type { Metrics } from '../observe/metrics.ts'
import type { Readiness } from '../observe/readiness.ts'

export type AdminDeps = {
  readonly metrics: Metrics
  readonly ready: () => Readiness
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
  app.get('/readyz', (request, response) => {
    const state = ready()
    const isWanted = state.ready && (request.query['for'] !== 'uploads' || state.uploads !== false)
    response.status(isWanted ? 200 : 503).json(state)
  })
  app.get('/metrics', (_request, response) => {
    response.type('text/plain; version=0.0.4').send(metrics.render())
  })
  return app
}
