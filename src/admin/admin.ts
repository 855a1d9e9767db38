// The admin address: liveness, readiness, metrics, uploads in progress, pins, and the dashboard. Never mounted on the public address.
import express, { type Express, type Router } from 'express'
import { CID } from 'multiformats/cid'
import type { Metrics } from '../observe/metrics.ts'
import type { Confirmation } from '../upload/confirm/confirm.ts'
import type { Pins } from '../upload/pins/pins.ts'
import { type AdminAccess, createAdminAccess } from './access.ts'
import { createPinRoutes } from './pins.ts'
import type { Readiness } from './readiness.ts'
import { createTakedownRoute, type Takedown } from './takedown.ts'

export type AdminDeps = {
  readonly access: AdminAccess
  readonly metrics: Metrics
  readonly ready: () => Readiness
  readonly dashboard: Router
  /** None in thin mode. */
  readonly uploads?: Pick<Confirmation, 'open' | 'giveUp'> | undefined
  readonly takedown: Takedown
  /** None in thin mode. */
  readonly pins?: Pins | undefined
}

const mostListed = 1000

export function createAdmin({ access, metrics, ready, dashboard, takedown, uploads, pins }: AdminDeps): Express {
  const app = express()
  app.disable('x-powered-by')
  app.disable('etag')
  app.use((_request, response, next) => {
    response.set('Cache-Control', 'no-store')
    next()
  })
  app.use(createAdminAccess(access))
  app.use(dashboard)
  app.get('/healthz', (_request, response) => {
    response.json({ status: 'alive' })
  })
  app.get('/readyz', (request, response) => {
    const state = ready()
    const isWanted = state.ready && (request.query['for'] !== 'uploads' || state.uploads !== false)
    response.status(isWanted ? 200 : 503).json(state)
  })
  app.get('/metrics', async (_request, response) => {
    response.type('text/plain; version=0.0.4').send(await metrics.render())
  })
  app.use(createTakedownRoute(takedown))
  if (pins) app.use(createPinRoutes(pins))
  if (!uploads) return app
  app.get('/uploads', (_request, response) => {
    const open = uploads.open()
    response.json({ open: open.length, uploads: open.slice(0, mostListed) })
  })
  // DELETE and not POST: a page of another origin needs a preflight for it, which is never allowed.
  app.delete('/uploads/:cid/:provider', async (request, response) => {
    const { cid, provider } = request.params
    const asked = uploads.open().find((one) => one.cid === cid)
    const outcome = asked && (await uploads.giveUp(CID.parse(asked.cid), provider, request.query['losing'] === 'true'))
    if (outcome === 'given-up') return void response.status(204).end()
    if (outcome === 'only-copy') {
      const detail = `only this gateway holds ${cid}, which would be lost; add ?losing=true to give it up anyway`
      return void response.status(409).json({ status: 409, detail })
    }
    response
      .status(404)
      .json({ status: 404, detail: `no upload ${cid} waits for a provider ${provider}; see /uploads` })
  })
  return app
}
