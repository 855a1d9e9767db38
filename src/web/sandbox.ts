// Limits the rights of a file in a browser (Content-Security-Policy). On its own origin it may do everything: no other content
// is there. On the shared origin, types that a browser could run are sandboxed, without scripts and in an opaque
// origin.

// Only known harmless types are free: an unknown type is sandboxed.
const harmless =
  /^(?:image\/(?!svg)|video\/|audio\/|font\/|text\/(?:plain|css|csv|javascript|markdown|calendar|vcard|vtt|tab-separated-values)(?:;|$)|application\/(?:json|pdf|wasm|zip|gzip|x-tar|octet-stream|cbor|yaml|toml)$|application\/vnd\.ipld\.)/

// Links of such a page may still be followed and its files saved.
export const sandbox = 'sandbox allow-downloads allow-popups allow-popups-to-escape-sandbox'

/** Undefined: no policy. A PDF viewer, for one, refuses to work in a sandbox. */
export function policyFor(type: string, { own }: { readonly own: boolean }): string | undefined {
  return own || harmless.test(type) ? undefined : sandbox
}
