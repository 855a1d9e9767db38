// Wrong usage of a command.
import { nearest } from '../config/complaints.ts'

export class UsageError extends Error {}

/** The suggestion at the end of an error about an unknown word. */
export function meant(typed: string, known: readonly string[]): string {
  const word = nearest(typed, known, Math.min(2, typed.length - 1))
  return word === undefined ? '' : `; did you mean ${word}?`
}

/** The single file argument, or undefined; `config` is an alternative to it. */
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
