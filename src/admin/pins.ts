// Pins on the admin address: lists them page by page, deletes, verifies, and sends them to
// providers that lack them.
import { type Request, type Response, Router } from 'express'
import { parseCid } from '../core/cid.ts'
import { size } from '../core/units.ts'
import type { Asked } from '../store/store.ts'
import type { Standing } from '../upload/api-types.ts'
import type { Pins } from '../upload/pins.ts'
import { answerFailures, cidIn, refuse, untilLeft, Wrong } from './requests.ts'

const defaultPage = 100
const maxOnPage = 1000
const standings: ReadonlySet<string> = new Set<Standing>(['pinned', 'pending', 'abandoned', 'missing'])

export function createPinRoutes(pins: Pins): Router {
  const router = Router()

  router.get('/pins', async (request, response) => {
    const asked = askedBy(request)
    const cid = asked.name === undefined ? undefined : parseCid(asked.name)
    if (!cid) return void response.json(await pins.list(asked))
    const pin = await pins.find(cid)
    response.json({ pins: pin ? [pin] : [], next: undefined })
  })
  router.get('/pins/:cid', async (request, response) => {
    const pin = await pins.find(cidIn(request))
    if (pin) response.json(pin)
    else unknown(request, response)
  })
  router.delete('/pins/:cid', async (request, response) => {
    const removal = await pins.remove(cidIn(request))
    if (removal === 'unknown') return unknown(request, response)
    if (removal !== 'busy') return void response.json(removal)
    response.set('Retry-After', '1')
    refuse(response, 409, `${request.params['cid']} is being uploaded now; delete it when its client has an answer`)
  })
  router.post('/pins/:cid/verify', async (request, response) => {
    const verification = await pins.verify(cidIn(request), untilLeft(response))
    if (verification === 'unknown') unknown(request, response)
    else response.json(verification)
  })
  router.post('/pins/:cid/sync', async (request, response) => {
    const brought = await pins.bring(cidIn(request))
    if (brought === 'unknown') return unknown(request, response)
    if (brought !== 'not-here') return void response.status(brought.to.length > 0 ? 202 : 200).json(brought)
    refuse(
      response,
      409,
      `the blocks of ${request.params['cid']} are not on this machine, so they cannot be sent from it`,
    )
  })
  router.use(answerFailures)
  return router
}

const unknown = ({ params }: Request, response: Response): void =>
  refuse(response, 404, `${params['cid']} is not pinned; GET /pins lists what is`)

function askedBy({ query }: Request): Asked {
  const text = (name: string): string | undefined => {
    const value = query[name]
    if (value === undefined || value === '') return undefined
    if (typeof value !== 'string') throw new Wrong(`${name} is there twice`)
    return value
  }
  const read = <T>(name: string, expected: string, parse: (value: string) => T | undefined): T | undefined => {
    const value = text(name)
    if (value === undefined) return undefined
    const parsed = parse(value)
    if (parsed === undefined) throw new Wrong(`${name}=${value.slice(0, 100)} is not ${expected}`)
    return parsed
  }
  const time = (value: string) => (Number.isNaN(Date.parse(value)) ? undefined : Date.parse(value))
  const count = (value: string) =>
    /^[1-9]\d{0,3}$/.test(value) && Number(value) <= maxOnPage ? Number(value) : undefined
  const after = (value: string) => (/^\d{1,15}$/.test(value) ? Number(value) : undefined)
  const odd = Object.keys(query).find((name) => !asked.has(name))
  if (odd !== undefined) throw new Wrong(`${odd.slice(0, 100)} is not one of ${[...asked].join(', ')}`)
  return {
    limit: read('limit', `a number from 1 to ${maxOnPage}`, count) ?? defaultPage,
    after: read('after', 'the `next` of a page', after),
    name: text('name'),
    holder: text('provider'),
    state: read('state', `one of ${[...standings].join(', ')}`, (one) =>
      standings.has(one) ? (one as Standing) : undefined,
    ),
    since: read('since', 'a time such as 2026-01-31', time),
    until: read('until', 'a time such as 2026-01-31', time),
    minBytes: read('min', 'a size such as 10MiB', bytesOf),
    maxBytes: read('max', 'a size such as 10MiB', bytesOf),
  }
}

const bytesOf = (text: string): number | undefined => (/^\d+$/.test(text) ? Number(text) : size().safeParse(text).data)

const asked: ReadonlySet<string> = new Set([
  'limit',
  'after',
  'name',
  'provider',
  'state',
  'since',
  'until',
  'min',
  'max',
])
