// A list of backends in the configuration: `use` selects the kind from the registry, whose schema
// validates the options. Every entry becomes a kind, a name and options.
import { z } from 'zod'

export type Kind = { readonly use: string; readonly options: z.ZodType }
type Kinds = Readonly<Record<string, Kind>>
type BackendEntry = { readonly use: string; readonly name: string; readonly options: unknown }

/** The input type of an entry, discriminated by `use`, which is optional for the assumed kind. */
type BackendInput<All extends Kinds, Shared = unknown, Assumed extends string = never> = {
  [Use in keyof All & string]: z.input<All[Use]['options']> &
    Shared & { name?: string | undefined } & (Use extends Assumed ? { use?: Use | undefined } : { use: Use })
}[keyof All & string]

type UnnamedEntry = { readonly use: string; readonly options: unknown }

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

function one<Shared extends z.ZodRawShape>(kind: Kind, shared: Shared, isDefault: boolean) {
  if (!(kind.options instanceof z.ZodObject)) throw new TypeError(`the options of ${kind.use} must be a zod object`)
  const { shape } = kind.options
  const taken = ['use', 'name', ...Object.keys(shared)].filter((key) => key in shape)
  if (taken.length > 0) throw new TypeError(`${kind.use} has options that are not its own: ${taken.join(', ')}`)
  const use = isDefault ? z.literal(kind.use).optional() : z.literal(kind.use)
  return kind.options.safeExtend({ use, name: nameOf().optional(), ...shared })
}

/**
 * The schema of a list for one registry. `All`: its kinds with their options, for the input type.
 */
export function entries<All extends Kinds>(kinds: Kinds): z.ZodType<BackendEntry[], BackendInput<All>[]> {
  const list = listOf(kinds, {}, undefined).transform((all): BackendEntry[] =>
    all.map(({ use, name, ...options }) => ({ use: use ?? '', name: name ?? '', options })),
  )
  return list as unknown as z.ZodType<BackendEntry[], BackendInput<All>[]>
}

/**
 * The schema of a list whose entries also have keys of the list itself, which appear next to
 * `options`. Without `use`, an entry has the kind `assume`.
 */
export function entriesWith<All extends Kinds, Shared extends z.ZodRawShape, Assumed extends string>(
  kinds: Kinds,
  shared: Shared,
  assume: Assumed,
) {
  type Own = z.output<z.ZodObject<Shared>>
  const list = listOf(kinds, shared, assume).transform((entries): (BackendEntry & Own)[] =>
    entries.map(({ use, name, ...rest }) => {
      const all = Object.entries(rest)
      const own = Object.fromEntries(all.filter(([key]) => key in shared)) as Own
      const options = Object.fromEntries(all.filter(([key]) => !(key in shared)))
      return { use: use ?? assume, name: name ?? '', options, ...own }
    }),
  )
  return list as unknown as z.ZodType<
    (BackendEntry & Own)[],
    BackendInput<All, z.input<z.ZodObject<Shared>>, Assumed>[]
  >
}

/** The schema of a single backend, without a name. */
export function entry<All extends Kinds>(kinds: Kinds): z.ZodType<UnnamedEntry, UnnamedInput<All>> {
  const all = Object.values(kinds).map(({ use, options }) => {
    if (!(options instanceof z.ZodObject)) throw new TypeError(`the options of ${use} must be a zod object`)
    return options.safeExtend({ use: z.literal(use) })
  })
  const union = z.discriminatedUnion('use', all as unknown as [z.ZodObject<{ use: z.ZodLiteral<string> }>])
  const one = union.transform(({ use, ...options }): UnnamedEntry => ({ use, options }))
  return one as unknown as z.ZodType<UnnamedEntry, UnnamedInput<All>>
}

function listOf(kinds: Kinds, shared: z.ZodRawShape, assume: string | undefined) {
  const all = Object.values(kinds).map((kind) => one(kind, shared, kind.use === assume))
  const union = z.discriminatedUnion('use', all as unknown as [z.ZodObject<{ use: z.ZodLiteral<string> }>])
  return z.array(union as unknown as z.ZodType<ParsedEntry, ParsedEntry>).transform((list, context) => {
    const named = list.map((entry) => ({ ...entry, name: entry.name ?? defaultName(entry, assume) }))
    const seen = new Set<string>()
    for (const [index, { name }] of named.entries()) {
      const message = `${JSON.stringify(name)} is used twice (expected a unique \`name\`)`
      if (seen.has(name)) context.addIssue({ code: 'custom', path: [index, 'name'], message })
      seen.add(name)
    }
    return named as (ParsedEntry & { readonly name: string })[]
  })
}

function defaultName({ use, url }: ParsedEntry, assume: string | undefined): string {
  const host = assume !== undefined && typeof url === 'string' && URL.canParse(url) ? new URL(url).host : ''
  return host || (use ?? assume ?? '')
}
