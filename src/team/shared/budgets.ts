// Rate limits shared by all processes: token buckets in slots of a shared file. Two concurrent
// requests of one client at two processes may cost one token.
import type { Budget } from '../../core/counting/budget.ts'
import { marksOf, type Slots } from './slots.ts'

export const budgetSlots = { count: 2 ** 16, bytes: 24 } as const

/** `now`: a clock that all processes share. */
export function createSharedBudgets(
  slots: Slots,
  { size, perSecond, now }: { readonly size: number; readonly perSecond: number; readonly now: () => number },
): (client: string) => Budget {
  return (client) => {
    const { place: at, mark } = marksOf(client)
    const place = at % slots.count

    function refilled(): { readonly view: DataView; readonly tokens: number } {
      const view = slots.read(place)
      const ms = now()
      const isOwn = view.getUint32(0) === mark
      const before = isOwn ? view.getFloat64(8) : size
      const since = isOwn ? Math.max(0, ms - view.getFloat64(16)) : 0
      const tokens = Math.min(size, before + (since / 1000) * perSecond)
      view.setUint32(0, mark)
      view.setFloat64(16, ms)
      view.setFloat64(8, tokens)
      return { view, tokens }
    }

    function keep({ view }: { readonly view: DataView }, tokens: number): void {
      view.setFloat64(8, tokens)
      slots.write(place)
    }

    return {
      take() {
        const found = refilled()
        if (found.tokens < 1) return false
        keep(found, found.tokens - 1)
        return true
      },
      earn(more) {
        const found = refilled()
        keep(found, Math.min(size, found.tokens + more))
      },
      get waitMs() {
        const { tokens } = refilled()
        return tokens >= 1 ? 0 : Math.ceil(((1 - tokens) / perSecond) * 1000)
      },
    }
  }
}
