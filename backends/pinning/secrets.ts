// Removes secrets from errors. A service's messages reach clients, the log and /readyz, and some
// services repeat the header that they refuse. Every error of every provider passes through here.
import { Failure, isFailure } from '../../src/core/failure.ts'
import { isSecretName } from '../../src/core/log.ts'
import type { Provider, ProviderKind } from './contract.ts'

const hidden = '[hidden]'
// A shorter text is no secret, and would occur in every other sentence.
const minChars = 3
// Services truncate what they repeat: this many characters at its beginning identify a secret. A
// shorter one must occur completely. One that could be a word or number is not searched within
// other words, and if it is short too, only where secrets stand.
const knownBy = 8
const plain = /^(?:[A-Za-z]{1,15}|\d{1,15})$/
const inWord = /[A-Za-z0-9]/
const escaped = /%[0-9A-Fa-f]{2}$/
const sentWithin = 20
const sent = /\b(?:Bearer|Basic)(?: +|%20)$/i
const maxCauses = 5

export const withoutSecrets = (kind: ProviderKind): ProviderKind => ({
  ...kind,
  create: (options, context) =>
    quiet(kind.create(options, context), {
      forms: formsOf(secretsIn(options, [])),
      begins: `provider ${context.name}:`,
    }),
})

type Hiding = {
  readonly forms: readonly string[]
  /**
   * The prefix of our own messages, which is skipped, because a provider may have the name that is
   * its secret.
   */
  readonly begins: string
}

function quiet(provider: Provider, hiding: Hiding): Provider {
  if (hiding.forms.length === 0) return provider
  const hushed = async <T>(work: () => Promise<T>): Promise<T> => {
    try {
      return await work()
    } catch (error) {
      throw errorWithout(error, hiding, maxCauses)
    }
  }
  return {
    name: provider.name,
    traits: provider.traits,
    pin: (upload, signal) => hushed(() => provider.pin(upload, signal)),
    unpin: (cid, signal) => hushed(() => provider.unpin(cid, signal)),
    status: (cid, signal) => hushed(() => provider.status(cid, signal)),
    probe: (signal) => hushed(() => provider.probe(signal)),
    ...(provider.store && { store: provider.store }),
    close: () => hushed(() => provider.close()),
  }
}

function secretsIn(value: unknown, path: readonly string[]): string[] {
  if (typeof value === 'string') return path.some(isSecretName) ? [value] : inAddress(value)
  if (typeof value !== 'object' || value === null) return []
  return Object.entries(value).flatMap(([key, inner]) => secretsIn(inner, [...path, key]))
}

function inAddress(text: string): string[] {
  if (!/^https?:/i.test(text) || !URL.canParse(text)) return []
  const { username, password, searchParams } = new URL(text)
  const asked = [...searchParams].flatMap(([key, value]) => (isSecretName(key) ? [value] : []))
  return [...(password === '' ? [] : [`${username}:${password}`, password, decodeURIComponent(password)]), ...asked]
}

/**
 * Each secret as configured, without the auth scheme of a header or the user before a password, and
 * as encoded on the wire.
 */
function formsOf(secrets: readonly string[]): string[] {
  const parts = secrets.flatMap((secret) => [
    secret,
    secret.replace(/^[A-Za-z]+ +/, ''),
    ...(secret.includes(':') ? [secret.slice(secret.indexOf(':') + 1)] : []),
  ])
  const forms = parts.flatMap((part) => [
    part,
    Buffer.from(part).toString('base64'),
    encodeURIComponent(part),
    JSON.stringify(part).slice(1, -1),
  ])
  return [...new Set(forms.filter((form) => form.length >= minChars))]
}

function errorWithout(error: unknown, hiding: Hiding, depth: number): unknown {
  if (!(error instanceof Error)) return typeof error === 'string' ? textWithout(error, hiding) : error
  const cause = depth > 0 ? errorWithout(error.cause, hiding, depth - 1) : undefined
  const message = textWithout(error.message, hiding)
  const stack = textWithout(error.stack ?? '', hiding)
  if (cause === error.cause && message === error.message && stack === (error.stack ?? '')) return error
  const { source, retryAfterMs, facts } = error as Partial<Failure>
  const cleaned = isFailure(error)
    ? new Failure(error.kind, message, { source: source ?? 'provider', retryAfterMs, facts, cause })
    : new Error(message, { cause })
  cleaned.name = textWithout(error.name, hiding)
  cleaned.stack = stack
  return cleaned
}

function textWithout(text: string, { forms, begins }: Hiding): string {
  const pieces: string[] = []
  let from = 0
  for (let at = 0; at < text.length; ) {
    if (text.startsWith(begins, at)) {
      at += begins.length
      continue
    }
    const length = Math.max(...forms.map((form) => known(text, at, form)))
    if (length === 0) {
      at += 1
      continue
    }
    pieces.push(text.slice(from, at), hidden)
    at += length
    from = at
  }
  return from === 0 ? text : [...pieces, text.slice(from)].join('')
}

/** The number of characters of the secret found here: all of them, or enough of its beginning. */
function known(text: string, at: number, form: string): number {
  let length = 0
  while (length < form.length && text[at + length] === form[length]) length += 1
  if (length < Math.min(knownBy, form.length)) return 0
  const isShort = form.length < knownBy
  const isPlain = plain.test(form)
  if ((isShort || isPlain) && !standsAlone(text, at, length)) return 0
  return isShort && isPlain && !sent.test(text.slice(Math.max(0, at - sentWithin), at)) ? 0 : length
}

function standsAlone(text: string, at: number, length: number): boolean {
  if (inWord.test(text[at + length] ?? '')) return false
  return !inWord.test(text[at - 1] ?? '') || escaped.test(text.slice(Math.max(0, at - 3), at))
}
