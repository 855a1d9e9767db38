// What a person typed is not what a command takes.
export class UsageError extends Error {}

/** Exactly one, or none where `config` names it. */
export function oneFile(command: string, named: readonly string[], config: string | undefined): string | undefined {
  const [file = config, ...more] = named
  if (more.length > 0 || (named.length > 0 && config !== undefined)) throw new UsageError(`${command} takes one file`)
  return file
}

export function onlyOne(command: string, what: string, given: readonly string[]): string {
  const [one, ...more] = given
  if (one === undefined || more.length > 0) throw new UsageError(`${command} takes one ${what}`)
  return one
}

export function noneOf(command: string, given: readonly string[]): void {
  if (given.length > 0) throw new UsageError(`${command} takes no ${given[0]}`)
}
