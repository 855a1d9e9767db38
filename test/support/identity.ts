// The identity of a peer with a fixed seed, for golden vectors.
import { createPrivateKey } from 'node:crypto'
import { base36 } from 'multiformats/bases/base36'
import { CID } from 'multiformats/cid'
import { decode } from 'multiformats/hashes/digest'
import { type Identity, identityWith } from '../../src/announce/advertisement.ts'

const pkcs8 = Buffer.from('302e020100300506032b657004220420', 'hex')

export const identityOf = (seed: Uint8Array): Identity =>
  identityWith(createPrivateKey({ key: Buffer.concat([pkcs8, seed]), format: 'der', type: 'pkcs8' }))

/** `k51…`: the peer ID as a CID. */
export const peerCid = ({ publicKey }: Identity): string =>
  CID.createV1(0x72, decode(publicKey.multihash)).toString(base36)
