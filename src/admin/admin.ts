// The admin address: liveness, readiness, metrics, uploads in progress, pins, and the dashboard with
// its requests for the status (GET /status), the explanation of a response (GET /why), and the
// location of blocks (GET /blocks). Never mounted on the public address.

import { readFileSync } from 'node:fs'
import express, {
  type Express,
  type IRouter,
  type NextFunction,
  type Request,
  type RequestHandler,
  type Response,
  Router,
} from 'express'
import type { Log } from '../core/log.ts'
import { hashTag } from '../core/wire/http.ts'
import type { Metrics } from '../observe/metrics.ts'
import type { Pins } from '../upload/pins.ts'
import { style } from '../web/page.ts'
import { type AdminAccess, createAdminAccess, type LeaveBody, pagePrefix } from './access.ts'
import type { Blocks, Status, Why } from './dashboard/shape.ts'
import type { Readiness } from './readiness.ts'
import { addPinRoutes, addTakedownRoute, failing, refuse, type Takedown, untilLeft, Wrong } from './routes.ts'

export type AdminDeps = {
  readonly log: Log
  readonly access: AdminAccess
  /** The id of a request, sent as `X-Request-Id`. */
  readonly requestId: (request: Request) => string
  readonly leaveBody: LeaveBody
  readonly metrics: Metrics
  readonly ready: () => Readiness
  readonly status: () => Promise<Status>
  readonly why: (path: string, signal: AbortSignal) => Promise<Why>
  readonly blocks: (path: string, signal: AbortSignal) => Promise<Blocks>
  readonly takedown: Takedown
  /** POST /add; undefined if uploads go nowhere. */
  readonly add?: RequestHandler | undefined
  /** Undefined in thin mode. */
  readonly pins?: Pins | undefined
}

export function createAdmin(deps: AdminDeps): Express {
  const { log, access, requestId, leaveBody, metrics, ready, status, why, blocks, takedown, add, pins } = deps
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
  const page = Router({ strict: true })
  addPage(page)
  app.use(page)
  // Polled each second: an ETag saves sending an unchanged status.
  app.get('/status', async (request, response) => {
    const text = JSON.stringify(await status())
    const tag = hashTag(text)
    response.set('ETag', tag)
    if (request.headers['if-none-match'] === tag) return void response.status(304).end()
    response.type('application/json').send(text)
  })
  app.get('/why', async (request, response) => {
    response.json(await why(pathIn(request), untilLeft(response)))
  })
  app.get('/blocks', async (request, response) => {
    response.json(await blocks(pathIn(request), untilLeft(response)))
  })
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
  addTakedownRoute(app, takedown)
  if (pins) addPinRoutes(app, pins)
  app.use((_request, response) => refuse(response, 404, 'there is nothing here; the dashboard is at /'))
  app.use(failing(log))
  return app
}

const longestPath = 4096
const longestLoggedPath = 500

function pathIn({ path: route, query: { path } }: Request): string {
  if (typeof path === 'string' && path !== '' && path.length <= longestPath) return path
  throw new Wrong(`name one path, as in ${route}?path=/ipfs/bafk… (at most ${longestPath} characters)`)
}

/** Logs who deleted or denied what and when, for questions months later. */
const noting =
  (log: Log) =>
  ({ method, path, originalUrl, socket }: Request, response: Response, next: NextFunction): void => {
    const client = socket.remoteAddress
    if (method === 'DELETE' || (method === 'POST' && path.startsWith('/deny/')))
      response.once('close', () => {
        const { statusCode: status } = response
        const requestId = response.get('X-Request-Id')
        log('info', 'admin.action', {
          requestId,
          client,
          method,
          path: originalUrl.slice(0, longestLoggedPath),
          status,
        })
      })
    next()
  }

/** Relative to this file: the build copies the folder to the same place. */
const folder = new URL('dashboard/page/', import.meta.url)
const script = 'text/javascript; charset=utf-8'
const types: Readonly<Record<string, string>> = {
  'index.html': 'text/html; charset=utf-8',
  'style.css': 'text/css; charset=utf-8',
  'icon.svg': 'image/svg+xml',
  ...Object.fromEntries(
    ['main', 'client', 'sections', 'pins', 'upload', 'why', 'elements', 'plot', 'words'].map((name) => [
      `${name}.js`,
      script,
    ]),
  ),
}
const policy = [
  "default-src 'none'",
  "script-src 'self'",
  "style-src 'self'",
  "connect-src 'self'",
  "img-src 'self' data:",
  "base-uri 'none'",
  "form-action 'none'",
  "frame-ancestors 'none'",
].join('; ')

function addPage(app: IRouter): void {
  for (const [name, type] of Object.entries(types)) {
    const own = readFileSync(new URL(name, folder))
    const bytes = name === 'style.css' ? Buffer.concat([Buffer.from(`${style}\n`), own]) : own
    app.get(name === 'index.html' ? '/' : pagePrefix + name, (_request, response) => {
      response.set(pageHeaders).set('Content-Type', type).send(bytes)
    })
  }
}

const pageHeaders: Readonly<Record<string, string>> = {
  'Content-Security-Policy': policy,
  'X-Content-Type-Options': 'nosniff',
  'Referrer-Policy': 'no-referrer',
  'Cross-Origin-Opener-Policy': 'same-origin',
  'Cross-Origin-Resource-Policy': 'same-origin',
}
