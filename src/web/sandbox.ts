// What a file may do in a browser. On an origin of its own it may do everything: nobody else is there. On the shared one,
// what a browser could run is put into a sandbox without scripts, in an origin that is nobody's.

// Everything that is not known to be harmless is sandboxed, not the other way round: a type nobody thought of is closed.
const harmless =
  /^(?:image\/(?!svg)|video\/|audio\/|font\/|text\/(?:plain|css|csv|javascript|markdown|calendar|vcard|vtt|tab-separated-values)(?:;|$)|application\/(?:json|pdf|wasm|zip|gzip|x-tar|octet-stream|cbor|yaml|toml)$|application\/vnd\.ipld\.)/

// Links of such a page may still be followed and its files saved.
export const sandbox = 'sandbox allow-downloads allow-popups allow-popups-to-escape-sandbox'

/** Undefined: nothing has to be said. A PDF viewer, for one, refuses to work in a sandbox. */
export function policyFor(type: string, { own }: { readonly own: boolean }): string | undefined {
  return own || harmless.test(type) ? undefined : sandbox
}
