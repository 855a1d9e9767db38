// CIDs and keys as one DNS label: lower case, since browsers change the case, and at most 63
// characters.
import { base32 } from 'multiformats/bases/base32'
import { base36 } from 'multiformats/bases/base36'
import { CID } from 'multiformats/cid'
import { codec } from '../../core/cid.ts'
import { Failure } from '../../core/failure.ts'

const mostChars = 63

/**
 * Encodes in base32, or in base36 if that is too long; IPNS keys always in base36. Throws if
 * neither fits.
 */
export function labelOf(cid: CID, namespace: 'ipfs' | 'ipns'): string {
  const code = namespace === 'ipns' ? codec.libp2pKey : cid.code
  const canonical = cid.version === 1 && cid.code === code ? cid : CID.createV1(code, cid.multihash)
  if (namespace === 'ipfs') {
    const text = canonical.toString(base32)
    if (text.length <= mostChars) return text
  }
  const text = canonical.toString(base36)
  if (text.length <= mostChars) return text
  throw new Failure('malformed', `CID incompatible with DNS label length limit of ${mostChars}: ${cid}`, {
    source: 'client',
  })
}

/**
 * Inlines `my.v-long.example.com` as `my-v--long-example-com`, so that one wildcard certificate
 * covers every name.
 */
export const inlined = (domain: string): string => domain.replaceAll('-', '--').replaceAll('.', '-')

/** Reverses `inlined`: `--` is a dash, `-` a dot. */
export const uninlined = (label: string): string => label.replace(/--|-/g, (dashes) => (dashes === '--' ? '-' : '.'))
