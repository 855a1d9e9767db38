// Secrets as an operator writes them in a configuration.

/** A name from the environment that nobody has put in: it would be the secret itself, known to everybody. */
export const isUnfilled = (text: string): boolean => /^\$\(?\w+\)?$/.test(text)

export const unfilled = 'expected the secret itself, or $' + '{NAME} to take it from the environment'
