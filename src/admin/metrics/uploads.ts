// Metrics of uploads, of providers, and of deliveries to them.
import type { Clock } from '../../core/clock.ts'
import type { Reading } from '../../observe/metrics.ts'
import type { UploadCounts } from '../../observe/requests.ts'
import type { Waiting } from '../../store/store.ts'
import type { WaitingUpload } from '../../upload/api-types.ts'
import type { PinCount } from '../../upload/pins.ts'
import type { Quota } from '../../upload/quotas.ts'
import type { Check } from '../checks.ts'

/** The daily quota (UTC) of a token, and its use today. */
export type QuotaState = {
  readonly token: string
  readonly quota: Quota
  readonly used: { readonly uploads: number; readonly bytes: number }
  readonly refused: number
}

export type UploadParts = {
  readonly uploads: UploadCounts
  readonly quotas: () => readonly QuotaState[]
  /** Pending deliveries to providers and shared tiers; undefined if nothing is stored. */
  readonly waiting?: (() => Promise<Waiting>) | undefined
  /** The pending uploads, oldest first. */
  readonly waitingPage?: ((limit: number) => Promise<readonly WaitingUpload[]>) | undefined
  readonly pins: () => PinCount | undefined
  readonly checks: () => readonly Check[]
  readonly disk: () => Promise<{ readonly freeBytes: number; readonly bytes: number } | undefined>
  readonly clock: Clock
}

export const nothingWaits: Waiting = { uploads: 0, bytes: 0, oldestAt: undefined, holders: [] }

export function uploadMetrics(parts: UploadParts): readonly Reading[] {
  const { uploads, quotas, pins, checks, disk, clock } = parts
  let asked: Promise<Waiting> | undefined
  /** Queried once for all series of a scrape. */
  const waiting = (): Promise<Waiting> => {
    asked ??= (parts.waiting?.() ?? Promise.resolve(nothingWaits)).finally(() => {
      asked = undefined
    })
    return asked
  }
  return [
    {
      name: 'cidgate_uploads_total',
      labels: ['outcome'],
      kind: 'counter',
      help: 'Uploads by outcome: accepted, or the kind of the failure. One with a wrong token or a wrong form is in cidgate_http_requests_total alone.',
      read: uploads.outcomes,
    },
    {
      name: 'cidgate_uploaded_files_total',
      kind: 'counter',
      help: 'Files and DAGs of accepted uploads.',
      read: uploads.files,
    },
    {
      name: 'cidgate_uploaded_bytes_total',
      kind: 'counter',
      help: 'Bytes of their blocks.',
      read: uploads.bytes,
    },
    ...quotaMetrics(quotas),
    {
      name: 'cidgate_provider_requests_total',
      labels: ['provider', 'outcome'],
      kind: 'counter',
      help: 'Requests to keep an upload, by provider and outcome: pinned, or the class of the failure.',
      read: uploads.attempts,
    },
    {
      name: 'cidgate_provider_request_duration_seconds',
      labels: ['provider'],
      kind: 'histogram',
      help: 'How long a provider took to answer them.',
      read: () => uploads.took.read(),
    },
    {
      name: 'cidgate_provider_up',
      labels: ['provider'],
      kind: 'gauge',
      help: 'Whether the last check of a provider went well: 1, or 0.',
      read: () =>
        checks().flatMap(({ name, ok }) => {
          const [, provider] = /^(?:provider|through) (.+)$/.exec(name) ?? []
          return provider === undefined ? [] : [{ labels: { provider }, value: ok ? 1 : 0 }]
        }),
    },
    {
      name: 'cidgate_journal_uploads',
      kind: 'gauge',
      help: 'Uploads that some provider or shared tier lacks.',
      read: async () => [{ value: (await waiting()).uploads }],
    },
    {
      name: 'cidgate_journal_bytes',
      kind: 'gauge',
      help: 'Their bytes.',
      read: async () => [{ value: (await waiting()).bytes }],
    },
    {
      name: 'cidgate_journal_waiting_uploads',
      labels: ['provider'],
      kind: 'gauge',
      help: 'Uploads that a provider is still to get.',
      read: async () => {
        const { holders } = await waiting()
        return holders.flatMap(({ holder: provider, kind, uploads: value }) =>
          kind === 'tier' ? [] : [{ labels: { provider }, value }],
        )
      },
    },
    {
      name: 'cidgate_journal_oldest_seconds',
      kind: 'gauge',
      help: 'The age of the oldest upload in the journal; 0: it is empty.',
      read: async () => {
        const now = clock.now()
        return [{ value: Math.max(0, now - ((await waiting()).oldestAt ?? now)) / 1000 }]
      },
    },
    {
      name: 'cidgate_pins',
      kind: 'gauge',
      help: 'Pins, by the last count. Many are counted rarely, behind the scrapes; absent until the first count is over.',
      read: () => gauge(pins()?.pins),
    },
    {
      name: 'cidgate_pins_bytes',
      kind: 'gauge',
      help: 'Their bytes. What several pins have in common counts for each.',
      read: () => gauge(pins()?.bytes),
    },
    {
      name: 'cidgate_provider_pins',
      labels: ['provider'],
      kind: 'gauge',
      help: 'Those of them that a provider holds.',
      read: () => [...(pins()?.pinned ?? [])].map(([provider, value]) => ({ labels: { provider }, value })),
    },
    {
      name: 'cidgate_data_free_bytes',
      kind: 'gauge',
      help: 'Room for this user on the disk of the data folder.',
      read: async () => (await disk().then((one) => one && [{ value: one.freeBytes }])) ?? [],
    },
    {
      name: 'cidgate_data_size_bytes',
      kind: 'gauge',
      help: 'The size of that disk.',
      read: async () => (await disk().then((one) => one && [{ value: one.bytes }])) ?? [],
    },
  ]
}

const gauge = (value: number | undefined) => (value === undefined ? [] : [{ value }])

function quotaMetrics(quotas: () => readonly QuotaState[]): readonly Reading[] {
  const each = (value: (state: QuotaState) => number | undefined) => () =>
    quotas().flatMap((state) => gauge(value(state)).map((one) => ({ labels: { token: state.token }, ...one })))
  const one = (name: string, help: string, value: (state: QuotaState) => number | undefined): Reading => ({
    ...{ name: `cidgate_token_${name}`, labels: ['token'], kind: 'gauge', help, read: each(value) },
  })
  return [
    one('used_uploads', 'Accepted uploads of today (UTC) with a token that has a quota.', ({ used }) => used.uploads),
    one('limit_uploads', 'The most of a day (quota.uploads).', ({ quota }) => quota.uploads),
    one(
      'used_bytes',
      'Bytes of accepted uploads of today (UTC) with a token that has a quota.',
      ({ used }) => used.bytes,
    ),
    one('limit_bytes', 'The most of a day (quota.bytes).', ({ quota }) => quota.bytes),
    {
      name: 'cidgate_token_quota_refusals_total',
      labels: ['token'],
      kind: 'counter',
      help: 'Uploads that were answered with 429 because the quota of their token was used up.',
      read: each(({ refused }) => refused),
    },
  ]
}
