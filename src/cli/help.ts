// The text of `--help`, made from the table of commands.
import { type Command, commonOptions, type Options } from './command.ts'

export function helpForAll(commands: readonly Command[]): string {
  const lines = commands.map(({ name, takes, what }) => [`cidgate ${name} ${takes}`.trim(), what] as const)
  return `cidgate: one HTTP address for content-addressed files

${table(lines)}

Without a command it is serve. cidgate COMMAND --help says more, with examples.

${optionsOf({ ...commonOptions })}
`
}

export function helpFor({ name, takes, what, more, options, examples }: Command): string {
  const parts = [
    `cidgate ${name} ${takes}`.trim(),
    what,
    ...(more === undefined ? [] : [more]),
    optionsOf({ ...options, config: commonOptions.config, help: commonOptions.help }),
    examples.map((one) => `  $ ${one}`).join('\n'),
  ]
  return `${parts.join('\n\n')}\n`
}

const optionsOf = (options: Options): string =>
  table(
    Object.entries(options).map(([name, { short, value, what }]) => {
      const spelt = [...(short === undefined ? [] : [`-${short}`]), `--${name}`].join(', ')
      return [value === undefined ? spelt : `${spelt} ${value}`, what]
    }),
  )

function table(rows: readonly (readonly [left: string, right: string])[]): string {
  const width = Math.max(...rows.map(([left]) => left.length))
  return rows.map(([left, right]) => `  ${left.padEnd(width)}   ${right}`).join('\n')
}
