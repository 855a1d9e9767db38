// Shell completion, made from the table of commands.
import { type Command, commonOptions } from './command.ts'
import { meant, UsageError } from './usage.ts'

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

const optionsOf = ({ options }: Command): string[] => Object.keys({ ...options, ...commonOptions })

function bash(commands: readonly Command[]): string {
  const names = commands.map(({ name }) => name).join(' ')
  const cases = commands.map(
    (one) =>
      `      ${one.name}) words="${optionsOf(one)
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
