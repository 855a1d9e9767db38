// Secrets as an operator writes them in a configuration.

/** A variable of the environment that was not filled in: the secret would be its name, which everyone can guess. */
export const isUnfilled = (text: string): boolean => /^\$\(?\w+\)?$/.test(text)

export const unfilled = 'expected the secret itself, or $' + '{NAME} to take it from the environment'
