// The samplers of the OpenTelemetry specification. All services with the same ratio select the same
// traces, because the trace id alone decides.
import { isSampledBy } from '../../core/wire/trace.ts'

export const samplers = [
  'always_on',
  'always_off',
  'traceidratio',
  'parentbased_always_on',
  'parentbased_always_off',
  'parentbased_traceidratio',
] as const

export type SamplerName = (typeof samplers)[number]
export type IsSampled = (traceId: string, parentFlags: string | undefined) => boolean

/**
 * The last 52 bits of a trace id are its random number: more would not fit into a JavaScript
 * number.
 */
const digits = 13
const range = 2 ** 52

const roots: Readonly<Record<string, (ratio: number) => (traceId: string) => boolean>> = {
  always_on: () => () => true,
  always_off: () => () => false,
  traceidratio: (ratio) => (traceId) => Number.parseInt(traceId.slice(-digits), 16) >= (1 - ratio) * range,
}

export function createSampler(name: SamplerName, ratio: number): IsSampled {
  const isChosen = (roots[name.replace('parentbased_', '')] as (typeof roots)[string])(ratio)
  if (!name.startsWith('parentbased_')) return isChosen
  return (traceId, parentFlags) => (parentFlags === undefined ? isChosen(traceId) : isSampledBy(parentFlags))
}
