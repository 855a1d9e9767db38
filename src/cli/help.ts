// The text of `--help`, made from the table of commands.
import { type Command, commonOptions, meant, type Options, UsageError } from './command.ts'

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

export function completionFor(shell: string, commands: readonly Command[]): string {
  switch (shell) {
    case 'bash':
      return bash(commands)
    case 'zsh':
      return `autoload -U +X bashcompinit && bashcompinit\n${bash(commands)}`
    case 'fish':
      return fish(commands)
    default:
      throw new UsageError(`completion knows bash, zsh and fish, not ${shell}${meant(shell, ['bash', 'zsh', 'fish'])}`)
  }
}

const optionNames = ({ options }: Command): string[] => Object.keys({ ...options, ...commonOptions })

function bash(commands: readonly Command[]): string {
  const names = commands.map(({ name }) => name).join(' ')
  const cases = commands.map(
    (one) =>
      `      ${one.name}) words="${optionNames(one)
        .map((name) => `--${name}`)
        .join(' ')}"${one.words ? ` first="${one.words.join(' ')}"` : ''} ;;`,
  )
  return `_cidgate() {
  local word="\${COMP_WORDS[COMP_CWORD]}" words="${names}" first=""
  if [ "$COMP_CWORD" -gt 1 ]; then
    case "\${COMP_WORDS[1]}" in
${cases.join('\n')}
    esac
    if [ "$COMP_CWORD" -eq 2 ] && [ -n "$first" ] && [ "\${word#-}" = "$word" ]; then
      words="$first"
    elif [ "\${word#-}" = "$word" ]; then
      COMPREPLY=($(compgen -f -- "$word"))
      return
    fi
  fi
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}
complete -o filenames -F _cidgate cidgate
`
}

function fish(commands: readonly Command[]): string {
  const quote = (text: string): string => `'${text.replaceAll("'", "\\'")}'`
  const lines = commands.flatMap((one) => [
    `complete -c cidgate -n __fish_use_subcommand -a ${one.name} -d ${quote(one.what)}`,
    ...(one.words ?? []).map(
      (word) => `complete -c cidgate -f -n '__fish_seen_subcommand_from ${one.name}' -a ${word}`,
    ),
    ...Object.entries({ ...one.options, ...commonOptions }).map(
      ([name, option]) =>
        `complete -c cidgate -n '__fish_seen_subcommand_from ${one.name}' -l ${name} -d ${quote(option.what)}`,
    ),
  ])
  return `${lines.join('\n')}\n`
}
