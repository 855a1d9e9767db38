// A list of backends in the configuration: `use` selects the kind from the registry, whose schema
// validates the options. Every entry becomes a kind, a name and options.
import { z } from 'zod'

export type Kind = { readonly use: string; readonly options: z.ZodType }
type Kinds = Readonly<Record<string, Kind>>
type BackendEntry = { readonly use: string; readonly name: string; readonly options: unknown }

/** The input type of an entry, discriminated by `use`, which is optional for the assumed kind. */
type BackendInput<All extends Kinds, Shared, Assumed extends string> = {
  [Use in keyof All & string]: z.input<All[Use]['options']> &
    Shared & { name?: string | undefined } & (Use extends Assumed ? { use?: Use | undefined } : { use: Use })
}[keyof All & string]

type UnnamedEntry = Omit<BackendEntry, 'name'>

type UnnamedInput<All extends Kinds> = {
  [Use in keyof All & string]: z.input<All[Use]['options']> & { use: Use }
}[keyof All & string]

type ParsedEntry = { readonly use?: string; readonly name?: string } & Readonly<Record<string, unknown>>

const nameOf = () =>
  z
    .string()
    .regex(/^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$/, {
      error: 'expected up to 64 letters, digits, dots, dashes or underscores',
    })
    .describe('What it is called in logs, metrics and answers. By default its `use`, or the host of its `url`.')

function one(kind: Kind, shared: z.ZodRawShape) {
  if (!(kind.options instanceof z.ZodObject)) throw new TypeError(`the options of ${kind.use} must be a zod object`)
  const { shape } = kind.options
  const taken = Object.keys(shared).filter((key) => key in shape)
  if (taken.length > 0) throw new TypeError(`${kind.use} has options that are not its own: ${taken.join(', ')}`)
  return kind.options.safeExtend(shared)
}

const unionOf = (all: readonly z.ZodObject[]) =>
  z.discriminatedUnion('use', all as unknown as [z.ZodObject<{ use: z.ZodLiteral<string> }>])

/**
 * The schema of a list for one registry. `All`: its kinds with their options, for the input type.
 * Entries may also have keys of the list itself, `shared`, which appear next to `options`. Without
 * `use`, an entry has the kind `assume`.
 */
export function entries<All extends Kinds, Shared extends z.ZodRawShape = never, Assumed extends string = never>(
  kinds: Kinds,
  shared?: Shared,
  assume?: Assumed,
) {
  type Entry = BackendEntry & ([Shared] extends [never] ? unknown : z.output<z.ZodObject<Shared>>)
  const all = Object.values(kinds).map((kind) => {
    const use = kind.use === assume ? z.literal(kind.use).optional() : z.literal(kind.use)
    return one(kind, { use, name: nameOf().optional(), ...shared })
  })
  const list = z.array(unionOf(all) as unknown as z.ZodType<ParsedEntry, ParsedEntry>).transform((given, context) => {
    const seen = new Set<string>()
    return given.map((entry, index) => {
      const { use = assume ?? '', name = defaultName(entry, assume), ...rest } = entry
      const message = `${JSON.stringify(name)} is used twice (expected a unique \`name\`)`
      if (seen.has(name)) context.addIssue({ code: 'custom', path: [index, 'name'], message })
      seen.add(name)
      const isShared = ([key]: readonly [string, unknown]) => shared !== undefined && key in shared
      const { true: own = [], false: options = [] } = Object.groupBy(Object.entries(rest), (one) => `${isShared(one)}`)
      return { use, name, options: Object.fromEntries(options), ...Object.fromEntries(own) }
    })
  })
  return list as unknown as z.ZodType<
    Entry[],
    BackendInput<All, [Shared] extends [never] ? unknown : z.input<z.ZodObject<Shared>>, Assumed>[]
  >
}

/** The schema of a single backend, without a name. */
export function entry<All extends Kinds>(kinds: Kinds): z.ZodType<UnnamedEntry, UnnamedInput<All>> {
  const all = Object.values(kinds).map((kind) => one(kind, { use: z.literal(kind.use) }))
  const single = unionOf(all).transform(({ use, ...options }): UnnamedEntry => ({ use, options }))
  return single as unknown as z.ZodType<UnnamedEntry, UnnamedInput<All>>
}

function defaultName({ use, url }: ParsedEntry, assume: string | undefined): string {
  const host = assume !== undefined && typeof url === 'string' && URL.canParse(url) ? new URL(url).host : ''
  return host || (use ?? assume ?? '')
}
