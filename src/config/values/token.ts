// A token that clients send in a header: a token with a space would never match, and a short one could be guessed.
import { z } from 'zod'
import { isUnfilled, unfilled } from '../../core/units.ts'

const leastCharacters = 16

export const token = () =>
  z
    .string()
    .refine((text) => !isUnfilled(text), { error: unfilled, abort: true })
    .refine((text) => /^[\x21-\x7e]*$/.test(text), 'expected a token without spaces or other than ASCII characters')
    .refine((text) => text.length >= leastCharacters, `expected a token of at least ${leastCharacters} characters`)
