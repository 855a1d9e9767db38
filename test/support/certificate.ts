// A certificate that a test makes itself, for one host and any time, signed by its own key: Node's crypto makes none.
import { generateKeyPairSync, randomBytes, sign } from 'node:crypto'

export type Certificate = { readonly cert: string; readonly key: string }

const der = (tag: number, ...parts: readonly Uint8Array[]): Buffer => {
  const body = Buffer.concat(parts)
  const { length } = body
  const head =
    length < 128 ? [tag, length] : length < 256 ? [tag, 0x81, length] : [tag, 0x82, length >> 8, length & 255]
  return Buffer.concat([Buffer.from(head), body])
}

const sequence = (...parts: readonly Uint8Array[]): Buffer => der(0x30, ...parts)
const time = (at: Date): Buffer => der(0x18, Buffer.from(`${at.toISOString().replace(/[-:T]/g, '').slice(0, 14)}Z`))
/** ecdsa-with-SHA256, commonName and subjectAltName, by their numbers. */
const algorithm = sequence(der(0x06, Buffer.from('2a8648ce3d040302', 'hex')))
const commonName = der(0x06, Buffer.from('550403', 'hex'))
const alternativeName = der(0x06, Buffer.from('551d11', 'hex'))

export function selfSigned(host: string, from: Date, to: Date): Certificate {
  const { privateKey, publicKey } = generateKeyPairSync('ec', { namedCurve: 'prime256v1' })
  const name = sequence(der(0x31, sequence(commonName, der(0x0c, Buffer.from(host)))))
  const names = sequence(der(0x82, Buffer.from(host)))
  const serial = Buffer.concat([Buffer.of(1), randomBytes(8)])
  const signed = sequence(
    der(0xa0, der(0x02, Buffer.of(2))),
    der(0x02, serial),
    algorithm,
    name,
    sequence(time(from), time(to)),
    name,
    publicKey.export({ type: 'spki', format: 'der' }),
    der(0xa3, sequence(sequence(alternativeName, der(0x04, names)))),
  )
  const signature = der(0x03, Buffer.of(0), sign('sha256', signed, privateKey))
  const cert = sequence(signed, algorithm, signature)
    .toString('base64')
    .match(/.{1,64}/g) as string[]
  return {
    cert: `-----BEGIN CERTIFICATE-----\n${cert.join('\n')}\n-----END CERTIFICATE-----\n`,
    key: privateKey.export({ type: 'pkcs8', format: 'pem' }).toString(),
  }
}
