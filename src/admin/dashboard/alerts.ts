// Alerts: the current faults of a gateway, worst first, each with the next step. The dashboard and
// `cidgate status` begin with them. No text contains a duration, so that GET /status stays 304
// while nothing changes.
import type { Alert, Provider, Status, Tier, Upstream } from './shape.ts'

type Facts = Omit<Status, 'alerts'>

const doctor = 'run cidgate doctor'
/** Fewer errors than this may be isolated. */
const minFailed = 5
const maxFailedShare = 0.01
const minFreeShare = 0.05
const maxWaitMs = 3_600_000

export function alertsOf(facts: Facts, now: number): readonly Alert[] {
  const all = [
    ...ofProcess(facts),
    ...ofErrors(facts),
    ...ofUploads(facts, now),
    ...ofUpstreams(facts),
    ...facts.tiers.flatMap((tier) => [...ofTier(tier)]),
    ...ofDisk(facts),
    ...ofRouting(facts),
    ...ofOtherChecks(facts),
  ]
  return [...all.filter(({ severity }) => severity === 'bad'), ...all.filter(({ severity }) => severity === 'warn')]
}

function* ofProcess({ draining, ready, processes }: Facts): Generator<Alert> {
  if (draining)
    yield {
      severity: 'warn',
      part: 'requests',
      what: 'This gateway is stopping',
      next: 'send traffic to another instance',
    }
  else if (!ready) yield { severity: 'bad', part: 'requests', what: 'This gateway is not ready', next: doctor }
  if (processes && processes.answering < processes.wanted) {
    const what = `${processes.answering} of ${processes.wanted} processes answer`
    yield {
      severity: 'bad',
      part: 'requests',
      what,
      next: 'it is restarted automatically; if it exits again, read the log',
    }
  }
}

function* ofErrors({ history }: Facts): Generator<Alert> {
  const all = history.reduce((sum, { requests }) => sum + requests, 0)
  const failed = history.reduce((sum, one) => sum + one.failed, 0)
  if (failed < minFailed || failed < all * maxFailedShare) return
  const what = `${((100 * failed) / all).toFixed(1)} % of the requests of the last minutes failed with 5xx`
  yield { severity: 'bad', part: 'failures', what, next: 'see the failures by cause' }
}

function* ofUploads({ uploads, providers, pending }: Facts, now: number): Generator<Alert> {
  const failing = providers.filter(({ ok }) => ok === false)
  if (uploads === false && providers.length > 0) {
    const what = 'Uploads are refused: too few providers passed their last check'
    yield { severity: 'bad', part: 'uploads', what, next: failing.length > 0 ? 'repair the providers below' : doctor }
  }
  for (const one of failing) yield ofProvider(one)
  if (pending.oldestAt !== undefined && now - pending.oldestAt > maxWaitMs) {
    const what = `${pending.open} ${pending.open === 1 ? 'upload waits' : 'uploads wait'} for a provider, the oldest for more than an hour`
    yield {
      severity: 'warn',
      part: 'uploads',
      what,
      next: 'check the reason of each; abandon uploads that a provider refuses permanently',
    }
  }
}

const ofProvider = ({ name, why }: Provider): Alert => ({
  severity: 'bad',
  part: 'uploads',
  what: `Provider ${name} failed its last check${because(why?.replace(`provider ${name}: `, ''))}`,
  next: 'start it, or correct its url and auth; accepted uploads are kept and delivered when it is back',
})

/** The severity of an upstream's state, and the operator's next step. */
const steps: Readonly<Record<string, readonly [severity: Alert['severity'], next: string]>> = {
  quarantined: ['bad', 'if it persists, remove it from retrieval.upstreams: its responses do not match the CIDs'],
  incompatible: ['bad', 'replace it in retrieval.upstreams: it serves neither raw blocks nor CARs'],
  unhealthy: ['warn', 'check its url and the network; it is retried automatically'],
  'rate-limited': ['warn', 'set its perMinute below the limit of its operator, or add another upstream'],
  'budget-exhausted': ['warn', 'raise its perMinute, or add another upstream'],
}

function* ofUpstreams({ upstreams }: Facts): Generator<Alert> {
  const away = upstreams.filter(({ state }) => state !== 'ready')
  if (away.length > 0 && away.length === upstreams.length) {
    const what = 'No upstream can be asked: content that no tier has is 404, or 502 in web mode'
    yield { severity: 'bad', part: 'upstreams', what, next: `check the network of this machine, then ${doctor}` }
  }
  for (const one of away) yield ofUpstream(one)
}

function ofUpstream({ name, state, why }: Upstream): Alert {
  const [severity, next] = steps[state] ?? ['warn', doctor]
  return { severity, part: 'upstreams', what: `Upstream ${name} is ${state}${because(why)}`, next }
}

function* ofTier({ name, isDown, corrupt }: Tier): Generator<Alert> {
  if (isDown) {
    const what = `Tier ${name}: its last calls failed, so its circuit breaker is open`
    yield { severity: 'bad', part: 'tiers', what, next: 'check that it runs and can be reached; reads go without it' }
  }
  if (corrupt > 0) {
    const what = `Tier ${name} returned corrupt blocks (${corrupt}), which were not served`
    yield { severity: 'warn', part: 'tiers', what, next: 'check its disk or its server for errors' }
  }
}

function* ofDisk({ disk }: Facts): Generator<Alert> {
  if (!disk || disk.freeBytes >= disk.bytes * minFreeShare) return
  const what = 'The disk of the data folder is nearly full'
  yield { severity: 'bad', part: 'tiers', what, next: 'free space on it, or lower maxBytes of the disk tier' }
}

function* ofRouting({ routers, announced }: Facts): Generator<Alert> {
  for (const { name, backoffMs, lastFailure } of routers)
    if (backoffMs > 0) {
      const what = `Router ${name} failed${because(lastFailure)}`
      yield { severity: 'warn', part: 'upstreams', what, next: 'check its url; it is retried automatically' }
    }
  if (announced?.lastError !== undefined) {
    const what = `The last batch was not announced${because(announced.lastError)}`
    yield {
      severity: 'warn',
      part: 'upstreams',
      what,
      next: 'it is retried automatically; if it persists, read the log',
    }
  }
  for (const { name, lastError } of announced?.indexers ?? [])
    if (lastError !== undefined)
      yield {
        severity: 'warn',
        part: 'upstreams',
        what: `Indexer ${name} does not accept the announcements${because(lastError)}`,
        next: 'run cidgate reach CID, which names the first fault',
      }
}

/** Checks of parts that have no alert of their own above: the data folder, and damage. */
function* ofOtherChecks({ checks }: Facts): Generator<Alert> {
  for (const { name, ok, why } of checks)
    if (!ok && !/^(provider|through|tier|upstream) /.test(name))
      yield { severity: 'bad', part: 'uploads', what: `The check of ${name} failed${because(why)}`, next: doctor }
}

const because = (why: string | undefined): string => (why === undefined ? '' : `: ${why}`)
