// What the processes of `npm test` share: the files of tests, and a folder in which each file is taken once.

export type Queue = {
  readonly folder: string
  readonly quick: readonly string[]
  /** They wait for programs that they start, more than they work. */
  readonly slow: readonly string[]
  /** Processes that run none but those. */
  readonly ofWaiting: number
}

/** In the folder. */
export const nameIn = (file: string, state: 'taken' | 'done'): string => `${file.replaceAll('/', '+')}.${state}`
