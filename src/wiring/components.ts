// The parts of a gateway. They outlive reloads: each is identified by what it is made of,
// so the next gateway gets the same part if that is unchanged; it is closed when no gateway uses it.
import type { Provider } from '../../backends/pinning/contract.ts'
import type { Tier } from '../../backends/tiers/contract.ts'
import type { Upstream } from '../../backends/upstreams/contract.ts'
import type { Config } from '../config/load.ts'
import type { Clock } from '../core/clock.ts'
import type { FolderRole } from '../core/disk/files.ts'
import type { Log } from '../core/log.ts'
import type { Trace } from '../core/wire/trace.ts'
import type { DataFolders } from '../data-folder/folder.ts'
import type { SpanExporter } from '../observe/tracing.ts'
import { createLoopScheduler, type LoopScheduler } from '../retrieval/loop-scheduler.ts'
import type { Team } from '../team/team.ts'

/** A program's own backends, in addition to the configured ones. Never closed here. */
export type Own = {
  readonly tiers: readonly Tier[]
  readonly upstreams: readonly Upstream[]
  readonly providers: readonly Provider[]
}

export const nothingOfItsOwn: Own = { tiers: [], upstreams: [], providers: [] }

export type WiringContext = {
  readonly config: Config
  readonly userAgent: string
  readonly clock: Clock
  /** The log of the newest gateway: parts made with it may outlive this one. */
  readonly log: Log
  readonly lease: Lease
  /** Shared by this gateway and its successors. */
  readonly turns: LoopScheduler
  /** Shared by the process, so that its gateways do not work against each other in one folder. */
  readonly folders: DataFolders
  readonly own: Own
  /** The processes of this gateway; undefined if there is one. */
  readonly team?: Team | undefined
  /** The role of this process in the folders of the team. */
  readonly role?: FolderRole | undefined
  readonly trace: Trace
  /** The span exporter; undefined if spans are off. */
  readonly spans?: SpanExporter | undefined
}

/**
 * Every gateway takes this part, even if it creates nothing new, because work begun by the previous
 * gateway continues in it.
 */
export const takeScheduler = (lease: Lease, clock: Clock): LoopScheduler =>
  lease.take('turns', [], () => createLoopScheduler(clock))

export type ComponentRegistry = ReturnType<typeof createComponentRegistry>
export type Lease = ReturnType<ComponentRegistry['lease']>

type RegisteredPart = { readonly kind: string; readonly part: object; readonly close: () => unknown; users: number }

export function createComponentRegistry() {
  const parts = new Map<string, RegisteredPart>()
  const { spell, number } = createValueSpelling()

  /** The lease of one gateway, from its creation to its end. */
  function lease() {
    const taken = new Map<string, RegisteredPart>()
    let ending: Promise<void> | undefined

    async function letGo(): Promise<void> {
      const unused = [...taken].reverse().flatMap(([key, kept]) => {
        kept.users--
        if (kept.users > 0) return []
        parts.delete(key)
        return [kept]
      })
      taken.clear()
      const failed: unknown[] = []
      for (const alike of runs(unused)) {
        const outcomes = await Promise.allSettled(alike.map(async ({ close }) => close()))
        for (const one of outcomes) if (one.status === 'rejected') failed.push(one.reason)
      }
      if (failed.length > 0) throw failed[0]
    }

    /**
     * Returns the part of this kind with equal `of`, or a new one. `of` holds configuration values,
     * compared by value, and parts, compared by identity.
     */
    function take<Part extends object>(
      kind: string,
      of: readonly unknown[],
      make: () => Part,
      close: (part: Part) => unknown = () => {},
    ): Part {
      if (ending !== undefined) throw new Error(`a ${kind} is taken for a gateway that has ended`)
      const key = `${kind} ${spell(of)}`
      let kept = parts.get(key)
      if (!kept) {
        const part = make()
        number(part)
        kept = { kind, part, close: () => close(part), users: 0 }
        parts.set(key, kept)
      }
      if (!taken.has(key)) {
        taken.set(key, kept)
        kept.users++
      }
      return kept.part as Part
    }

    return {
      take,
      /** The same for a part that is closed when no gateway uses it. */
      open: <Part extends { close(): unknown }>(kind: string, of: readonly unknown[], make: () => Part): Part =>
        take(kind, of, make, (part) => part.close()),
      /**
       * The part that this function makes of equal options, closed as with `open` if it can be. An
       * option that each gateway makes anew, such as a closure, makes a new part at each reload.
       */
      make: <Options extends object, Part extends object & { close?(): unknown }>(
        create: (options: Options) => Part,
        options: Options,
      ): Part =>
        take(
          create.name,
          [create, ...Object.entries(options)],
          () => create(options),
          (part) => part.close?.(),
        ),
      /**
       * Releases every part of this lease. Parts that no other gateway uses are closed in reverse
       * order, those of one kind concurrently. A failure does not keep the others open; this rejects
       * with the first one.
       */
      end(): Promise<void> {
        ending ??= letGo()
        return ending
      },
    }
  }

  return { lease }
}

/** Groups consecutive parts of one kind, which are closed concurrently. */
function runs(parts: readonly RegisteredPart[]): RegisteredPart[][] {
  const all: RegisteredPart[][] = []
  for (const kept of parts) {
    const last = all.at(-1)
    if (last?.[0]?.kind === kept.kind) last.push(kept)
    else all.push([kept])
  }
  return all
}

type ValueSpelling = {
  /** One text for equal values, in any order of their keys; a part is represented by a number. */
  spell(value: unknown): string
  number(part: object): void
}

function createValueSpelling(): ValueSpelling {
  const numbers = new WeakMap<object, number>()
  let count = 0

  const number = (part: object): number => {
    const known = numbers.get(part) ?? ++count
    numbers.set(part, known)
    return known
  }

  function spell(value: unknown): string {
    if (typeof value === 'string') return JSON.stringify(value)
    if (value === null || (typeof value !== 'object' && typeof value !== 'function')) return String(value)
    if (numbers.has(value)) return `#${number(value)}`
    if (Array.isArray(value)) return `[${value.map(spell).join()}]`
    if (!isPlain(value)) return `#${number(value)}`
    const said = Object.entries(value).filter(([, one]) => one !== undefined)
    return `{${said
      .map(([key, one]) => `${JSON.stringify(key)}:${spell(one)}`)
      .sort()
      .join()}}`
  }

  return { spell, number }
}

/** An object with functions is a part, not a configuration value. */
const isPlain = (value: object): boolean =>
  Object.getPrototypeOf(value) === Object.prototype && !Object.values(value).some((one) => typeof one === 'function')
