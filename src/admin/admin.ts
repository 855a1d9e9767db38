// The admin address: liveness, readiness, metrics, uploads in progress, pins, and the dashboard.
// Never mounted on the public address.
import express, {
  type Express,
  type NextFunction,
  type Request,
  type RequestHandler,
  type Response,
  type Router,
} from 'express'
import { parseCid } from '../core/cid.ts'
import type { Log } from '../core/log.ts'
import type { Metrics } from '../observe/metrics.ts'
import type { Pins } from '../upload/pins.ts'
import { type AdminAccess, createAdminAccess, type LeaveBody } from './access.ts'
import type { Readiness } from './readiness.ts'
import { createPinRoutes, createTakedownRoute, type Takedown } from './routes.ts'

type AdminDeps = {
  readonly log: Log
  readonly access: AdminAccess
  /** The id of a request, sent as `X-Request-Id`. */
  readonly requestId: (request: Request) => string
  readonly leaveBody: LeaveBody
  readonly metrics: Metrics
  readonly ready: () => Readiness
  readonly dashboard: Router
  readonly takedown: Takedown
  /** POST /add; undefined if uploads go nowhere. */
  readonly add?: RequestHandler | undefined
  /** Undefined in thin mode. */
  readonly pins?: Pins | undefined
}

const maxListed = 1000

export function createAdmin(deps: AdminDeps): Express {
  const { log, access, requestId, leaveBody, metrics, ready, dashboard, takedown, add, pins } = deps
  const app = express()
  app.disable('x-powered-by')
  app.disable('etag')
  app.use((request, response, next) => {
    response.set({ 'Cache-Control': 'no-store', 'X-Request-Id': requestId(request) })
    next()
  })
  app.use(createAdminAccess(access, leaveBody))
  app.use(noting(log))
  // Only uploads have a body that is read; their route refuses it itself.
  app.use((request, response, next) => {
    if (!add || request.path !== '/add') leaveBody(request, response)
    next()
  })
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
  if (add) app.all('/add', add)
  app.use(createTakedownRoute(takedown))
  if (pins) app.use(createPinRoutes(pins))
  if (pins) addUploadRoutes(app, pins)
  app.use((_request, response) => {
    response.status(404).json({ status: 404, detail: 'there is nothing here; the dashboard is at /' })
  })
  app.use(failing(log))
  return app
}

const longestPath = 500

const idOf = (response: Response): string | undefined => response.get('X-Request-Id')

/** Logs who deleted or denied what and when, for questions months later. */
const noting =
  (log: Log) =>
  ({ method, path, originalUrl, socket }: Request, response: Response, next: NextFunction): void => {
    const client = socket.remoteAddress
    if (method === 'DELETE' || (method === 'POST' && path.startsWith('/deny/')))
      response.once('close', () => {
        const { statusCode: status } = response
        const requestId = idOf(response)
        log('info', 'admin.action', { requestId, client, method, path: originalUrl.slice(0, longestPath), status })
      })
    next()
  }

/**
 * Handles failures, and paths that cannot be decoded: Express would send a page that shows the
 * sources.
 */
const failing =
  (log: Log) =>
  (error: unknown, request: Request, response: Response, next: NextFunction): void => {
    const isClients = (error as { readonly status?: unknown }).status === 400
    if (!isClients) {
      const { method, path } = request
      const shown = error instanceof Error ? error.stack : String(error)
      log('error', 'request.error', { requestId: idOf(response), method, path, error: shown })
    }
    if (response.headersSent) return next(error)
    const status = isClients ? 400 : 500
    const detail = isClients ? 'this path cannot be decoded' : 'the gateway failed; its log has the reason'
    response.status(status).json({ status, detail })
  }

function addUploadRoutes(app: Express, pins: Pins): void {
  app.get('/uploads', async (_request, response) => {
    const [{ uploads: open }, uploads] = await Promise.all([pins.waiting(), pins.waitingPage(maxListed)])
    response.json({ open, uploads })
  })
  // DELETE instead of POST, because a page of another origin needs a preflight for it, which is
  // never allowed.
  app.delete('/uploads/:cid/:provider', async (request, response) => {
    const { cid, provider } = request.params
    const parsed = parseCid(cid)
    const outcome = parsed && (await pins.giveUp(parsed, provider, request.query['losing'] === 'true'))
    if (outcome === 'abandoned') return void response.status(204).end()
    if (outcome === 'only-copy') {
      const detail = `only this gateway holds ${cid}, which would be lost; add ?losing=true to give it up anyway`
      return void response.status(409).json({ status: 409, detail })
    }
    response
      .status(404)
      .json({ status: 404, detail: `no upload ${cid} waits for a provider ${provider}; see /uploads` })
  })
}
