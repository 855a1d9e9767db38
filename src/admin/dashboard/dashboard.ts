// The dashboard: its page, and its requests for the status (GET /status), the explanation of a
// response (GET /why), and the location of blocks (GET /blocks).
import { createHash } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { type Request, Router } from 'express'
import { style } from '../../web/page.ts'
import { answerFailures, untilLeft, Wrong } from '../routes.ts'
import type { Blocks, Status, Why } from './shape.ts'

export type DashboardDeps = {
  readonly status: () => Promise<Status>
  readonly why: (path: string, signal: AbortSignal) => Promise<Why>
  readonly blocks: (path: string, signal: AbortSignal) => Promise<Blocks>
}

const types = {
  'index.html': 'text/html; charset=utf-8',
  'style.css': 'text/css; charset=utf-8',
  'icon.svg': 'image/svg+xml',
  'main.js': 'text/javascript; charset=utf-8',
  'client.js': 'text/javascript; charset=utf-8',
  'sections.js': 'text/javascript; charset=utf-8',
  'pins.js': 'text/javascript; charset=utf-8',
  'upload.js': 'text/javascript; charset=utf-8',
  'why.js': 'text/javascript; charset=utf-8',
  'folds.js': 'text/javascript; charset=utf-8',
  'elements.js': 'text/javascript; charset=utf-8',
  'plot.js': 'text/javascript; charset=utf-8',
  'words.js': 'text/javascript; charset=utf-8',
} as const

/**
 * The files of the page reveal nothing about this gateway, so they need no token; the page then
 * asks for one.
 */
export const isOfThePage = (path: string): boolean => path === '/' || path.startsWith(prefix)

/** Relative to this file: the build copies the folder to the same place. */
const folder = new URL('page/', import.meta.url)
const prefix = '/dashboard/'
const longestPath = 4096
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

export function createDashboard({ status, why, blocks }: DashboardDeps): Router {
  const router = Router({ strict: true })
  for (const [name, type] of Object.entries(types)) {
    const own = readFileSync(new URL(name, folder))
    const bytes = name === 'style.css' ? Buffer.concat([Buffer.from(`${style}\n`), own]) : own
    router.get(name === 'index.html' ? '/' : prefix + name, (_request, response) => {
      response.set(pageHeaders).set('Content-Type', type).send(bytes)
    })
  }
  // Polled each second: an ETag saves sending an unchanged status.
  router.get('/status', async (request, response) => {
    const text = JSON.stringify(await status())
    const tag = `"${createHash('sha256').update(text).digest('base64url').slice(0, 22)}"`
    response.set('ETag', tag)
    if (request.headers['if-none-match'] === tag) return void response.status(304).end()
    response.type('application/json').send(text)
  })
  router.get('/why', async (request, response) => {
    response.json(await why(pathIn(request), untilLeft(response)))
  })
  router.get('/blocks', async (request, response) => {
    response.json(await blocks(pathIn(request), untilLeft(response)))
  })
  router.use(answerFailures)
  return router
}

function pathIn({ path: route, query: { path } }: Request): string {
  if (typeof path === 'string' && path !== '' && path.length <= longestPath) return path
  throw new Wrong(`name one path, as in ${route}?path=/ipfs/bafk… (at most ${longestPath} characters)`)
}

const pageHeaders: Readonly<Record<string, string>> = {
  'Content-Security-Policy': policy,
  'X-Content-Type-Options': 'nosniff',
  'Referrer-Policy': 'no-referrer',
  'Cross-Origin-Opener-Policy': 'same-origin',
  'Cross-Origin-Resource-Policy': 'same-origin',
}
