// The status of a gateway on which much goes on, and goes wrong: for pictures of the dashboard in each of its states.
import { alertsOf } from '../../../src/admin/dashboard/alerts.ts'
import type { HistorySpan, Status, Upstream } from '../../../src/admin/dashboard/shape.ts'

const cid = 'bafybeigdyrzt5sfp7udm7hu76uh7y26nf3efuylqabf3oclgtqy55fbzdi'
const minute = 60_000

const upstream = (name: string, state: string, more: Partial<Upstream> = {}): Upstream => ({
  ...{ name, state, asked: 12_345, won: 9876, lost: 321, notFound: 45, throttled: 0, failed: 0, hashMismatch: 0 },
  ...{ pending: 2, bytes: 5e9, firstByte: { p50Ms: 84, p95Ms: 812 } },
  ...more,
})

export function busyStatus(now: number): Status {
  const history = Array.from({ length: 120 }, (_, index): HistorySpan => {
    const isQuiet = index > 40 && index < 70
    const requests = isQuiet ? 0 : Math.round(4000 + 1500 * Math.sin(index / 9))
    const failed = index > 100 ? Math.round(requests / 40) : 0
    return {
      ...{ at: now - (120 - index) * 5000, seconds: 5, requests, failed, refused: failed + Math.round(requests / 20) },
      ...{ content: Math.round(requests * 0.9), hits: Math.round(requests * 0.84) },
      ...(!isQuiet && { p50Ms: 12 + 3 * Math.sin(index / 5), p95Ms: 140 + 60 * Math.sin(index / 7) }),
    }
  })
  const failure = {
    ...{ request: '01HF8Z6Q2J', client: '203.0.113.7', method: 'GET', route: 'ipfs', isCut: false, ms: 5012 },
  }
  const attempts = [
    { upstream: 'trustless', outcome: 'not-found', ms: 212 },
    { upstream: 'dweb', outcome: 'timeout', ms: 5000 },
  ]
  const facts: Omit<Status, 'alerts'> = {
    ...{ version: '0.1.0', startedAt: now - 5 * 24 * 60 * minute, ready: true, draining: false, uploads: true },
    takes: { maxBytes: 100 * 1024 ** 2 },
    checks: [{ name: 'data folder', ok: true }],
    processes: { wanted: 4, answering: 4, restarts: 1 },
    requests: {
      ...{ total: 48_123_456, inProgress: 37, shed: 12, rateLimited: 1234, bytesOut: 3.2e12, bytesIn: 5e10 },
      byStatus: { '2xx': 47e6, '3xx': 5e5, '4xx': 6e5, '5xx': 2345 },
      bySource: { hot: 30e6, memory: 9e6, local: 5e6, s3: 1e6, upstream: 2e6, none: 1e5 },
    },
    history,
    upstreams: [
      upstream('trustless-gateway.link', 'ready', { budget: { perMinute: 600, used: 123 } }),
      upstream('a-gateway-with-a-long-name.example.com', 'rate-limited', { throttled: 77, until: now + 12_000 }),
      upstream('liar', 'quarantined', {
        ...{ hashMismatch: 3, until: now + 4 * minute },
        why: `2 blocks do not hash to their CID, the last of them ${cid}`,
        lastError: { at: now - 12_000, why: `block ${cid} does not hash to its CID` },
      }),
    ],
    found: [upstream('gw.example.net via cid.contact', 'ready', { asked: 3, won: 2, lost: 0, notFound: 0 })],
    routers: [{ name: 'cid.contact', lookups: 1200, named: 340, failures: 2, lastFailure: 'timeout', backoffMs: 0 }],
    announced: {
      ...{ peerId: '12D3KooW', head: 'baguqeera', advertisements: 12, contexts: 12, roots: 345 },
      indexers: [{ name: 'cid.contact', announcedAt: now - 70_000, lagMs: 0 }],
    },
    tiers: [
      {
        ...{ name: 'memory', bytes: 60 * 1024 ** 2, limitBytes: 64 * 1024 ** 2, blocks: 812, hits: 9e6, misses: 8e6 },
        ...{ outages: 0, queued: 0, dropped: 0, failedWrites: 0, corrupt: 0, isDown: false, reads: {} },
      },
      {
        ...{
          name: 'local',
          bytes: 7e9,
          limitBytes: 10 * 1024 ** 3,
          blocks: 123_456,
          hits: 5e6,
          misses: 3e6,
          outages: 0,
        },
        ...{ queued: 12, dropped: 0, failedWrites: 0, corrupt: 2, isDown: false, reads: { p50Ms: 0.8, p95Ms: 7 } },
      },
      {
        ...{ name: 's3', hits: 1e6, misses: 2e6, outages: 345, queued: 0, dropped: 23, failedWrites: 4, corrupt: 0 },
        ...{ isDown: true, reads: { p50Ms: 45, p95Ms: 320 } },
      },
    ],
    responses: { bytes: 200 * 1024 ** 2, limitBytes: 256 * 1024 ** 2, items: 34_567 },
    providers: [
      { name: 'local', ok: true, pinned: 345, failed: {}, waiting: 0, took: { p50Ms: 4, p95Ms: 12 } },
      {
        ...{
          name: 'kubo',
          ok: false,
          pinned: 340,
          failed: { transient: 12 },
          waiting: 2,
          took: { p50Ms: 24, p95Ms: 212 },
        },
        why: 'provider kubo: cannot be reached (ECONNREFUSED 127.0.0.1:5001)',
      },
    ],
    pending: {
      ...{ open: 2, bytes: 5_300_000, oldestAt: now - 2 * 60 * minute },
      uploads: [1, 2].map((size) => ({
        ...{ cid, at: new Date(now - size * 60 * minute).toISOString(), bytes: size * 1_000_000 },
        providers: {
          local: { state: 'pinned', tries: 1 },
          kubo: {
            state: 'pending',
            tries: 7,
            why: 'cannot be reached (ECONNREFUSED 127.0.0.1:5001)',
            notBefore: now + 20_000,
          },
        },
      })),
    },
    pins: { pins: 12_345, bytes: 6.7e10 },
    disk: { freeBytes: 120e9, bytes: 500e9 },
    failures: Array.from({ length: 100 }, (_, index) => ({
      ...failure,
      at: now - index * 4000,
      path: index % 3 === 0 ? `/ipfs/${cid}/images/${index}.jpg` : `/ipfs/${cid}`,
      ...(index % 3 === 0
        ? { status: 404, kind: 'not-found', why: `no upstream has ${cid}`, attempts }
        : index % 7 === 0
          ? { status: 502, kind: 'upstream-error', why: 'every upstream failed', attempts, isCut: true }
          : { status: 400 + (index % 13), kind: 'malformed', why: 'this is not a CID' }),
    })),
  }
  return { ...facts, alerts: alertsOf(facts, now) }
}
