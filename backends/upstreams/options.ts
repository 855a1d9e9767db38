// Options of every upstream that speaks HTTP, and what all of them share: connections, URLs,
// probes.
import { base36 } from 'multiformats/bases/base36'
import { CID } from 'multiformats/cid'
import { z } from 'zod'
import { codec, textOf } from '../../src/core/cid.ts'
import { Failure, isFailure, isUnreachable } from '../../src/core/failure.ts'
import { duration, serviceUrl } from '../../src/core/units.ts'
import { asPlain, type HttpQuestion, type Redirects } from './ask.ts'
import { createAgent } from './connect.ts'
import type { ProbeReport, UpstreamContext } from './contract.ts'

export const httpOptions = {
  url: serviceUrl().describe('Its address; paths such as /ipfs/<cid> are added.'),
  headers: z.record(z.string(), z.string()).default({}).describe('Sent with every request, such as an API key.'),
  connectTimeout: duration().prefault('3s').describe('Time to connect.'),
  firstByteTimeout: duration().prefault('5s').describe('Time to the first byte.'),
  bodyTimeout: duration().prefault('5s').describe('Longest time without a byte in the middle of a response.'),
  maxConnections: z
    .int()
    .min(1)
    .default(32)
    .describe('Requests at once: on a connection each, or on one that speaks HTTP/2.'),
  allowPrivate: z
    .boolean()
    .default(false)
    .describe(
      'Whether its name may resolve to a private or loopback address. An address in the url itself always may.',
    ),
} as const

export const gatewayOptions = {
  ...httpOptions,
  redirects: z
    .enum(['site', 'subdomains'])
    .default('site')
    .describe(
      'Redirects that are followed. site: on the same host. subdomains: also to <cid>.ipfs.<host> of the same CID.',
    ),
} as const

type HttpSettings = z.output<z.ZodObject<typeof httpOptions>> & { readonly redirects?: Redirects }

/** The connections to an upstream, and what all questions to it have in common. */
export function connected(
  settings: HttpSettings,
  { name, userAgent, isFound, clock, trace }: UpstreamContext,
): {
  readonly close: () => Promise<void>
  readonly question: Pick<HttpQuestion, 'name' | 'agent' | 'clock' | 'redirects' | 'firstByteTimeout' | 'bodyTimeout'>
  readonly headers: (accept?: string) => HttpQuestion['headers']
} {
  const { firstByteTimeout, bodyTimeout, redirects = 'site' } = settings
  const agent = createAgent({ ...settings, isFound, trace })
  return {
    close: () => agent.destroy(),
    question: { name, agent, clock, redirects: isFound ? 'none' : redirects, firstByteTimeout, bodyTimeout },
    headers: (accept) =>
      asPlain({ ...settings.headers, ...(accept !== undefined && { accept }), 'user-agent': userAgent }),
  }
}

/** The empty identity CID: every gateway and node has it, at no cost. */
export const emptyCid = CID.parse('bafkqaaa')

/** Asks for the empty block and, where the upstream serves them, for a CAR. */
export async function probed(
  { clock }: Pick<UpstreamContext, 'clock'>,
  block: () => Promise<Uint8Array | undefined>,
  car?: () => Promise<void>,
): Promise<ProbeReport> {
  const began = clock.monotonic()
  const findings: string[] = []
  let hasFalseBytes = false
  const raw = await finding(findings, 'raw blocks', async () => {
    const bytes = await block()
    hasFalseBytes = bytes !== undefined && bytes.byteLength > 0
    if (hasFalseBytes)
      throw new Failure('hash-mismatch', 'it sent wrong bytes for the empty CID', { source: 'upstream' })
  })
  const hasCar = car ? await finding(findings, carQuestion, car) : false
  const ms = Math.round(clock.monotonic() - began)
  const report = { usable: raw, raw, car: hasCar, findings, ms }
  return hasFalseBytes ? { ...report, hasFalseBytes } : report
}

/** An upstream that says in its words that it lacks the empty block answers. */
export function nothingIfAbsent(error: unknown): undefined {
  if (!isFailure(error, 'not-found')) throw error
}

const carQuestion = 'CAR'

/**
 * Rate limits, timeouts and 5xx say nothing about the abilities of the upstream. Except for CAR: some
 * upstreams without it respond with 5xx.
 */
async function finding(findings: string[], what: string, question: () => Promise<void>): Promise<boolean> {
  try {
    await question()
    return true
  } catch (error) {
    if (isFailure(error, 'throttled') || isFailure(error, 'cancelled') || isFailure(error, 'timeout')) throw error
    if (isFailure(error) && (isUnreachable(error) || (what !== carQuestion && error.facts.isIll === true))) throw error
    findings.push(`${what}: ${error instanceof Error ? error.message : String(error)}`)
    return false
  }
}

/** Builds `/ipfs/…` below the operator's URL from a parsed CID and names, never from a request. */
export function contentUrl(
  base: string,
  cid: string,
  segments: readonly string[],
  query: Readonly<Record<string, string>>,
): string {
  const url = new URL(base)
  const path = ['ipfs', cid, ...segments.map(encodeURIComponent)].join('/')
  url.pathname = `${url.pathname.replace(/\/+$/, '')}/${path}`
  for (const [name, value] of Object.entries(query)) url.searchParams.set(name, value)
  return url.href
}

/** Builds the URL once as a template for many CIDs without names. */
export function contentUrls(base: string, query: Readonly<Record<string, string>>): (cid: CID) => string {
  const place = 'the-cid'
  const href = contentUrl(base, place, [], query)
  const at = href.indexOf(`/ipfs/${place}`, new URL(base).pathname.replace(/\/+$/, '').length) + '/ipfs/'.length
  const [before, after] = [href.slice(0, at), href.slice(at + place.length)]
  return (cid) => before + textOf(cid) + after
}

/** Spells a key as every gateway does, so that none of them redirects. */
export const keyText = ({ multihash }: CID): string => CID.createV1(codec.libp2pKey, multihash).toString(base36)

export function recordUrl(base: string, key: CID): string {
  const url = new URL(base)
  url.pathname = `${url.pathname.replace(/\/+$/, '')}/ipns/${keyText(key)}`
  url.searchParams.set('format', 'ipns-record')
  return url.href
}
