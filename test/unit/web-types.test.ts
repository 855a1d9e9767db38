// The media types of web mode: by name, by bytes, by text, and what becomes of a file that lies about itself.
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { fileType, sniffedBytes, typeByName } from '../../src/web/media-types.ts'
import { calmestWorkMs } from '../support/work.ts'

const bytes = (...parts: (string | number[])[]): Uint8Array =>
  Buffer.concat(parts.map((part) => (typeof part === 'string' ? Buffer.from(part) : Buffer.from(part))))
const typeOf = (name: string, start: Uint8Array, size = start.byteLength): string => {
  const { byName, byBytes } = fileType(name)
  return byName ?? byBytes(start, size)
}
const utf8 = 'text/plain; charset=utf-8'

describe('by name', () => {
  const rows: [name: string, type: string | undefined][] = [
    ['index.html', 'text/html'],
    ['A.PNG', 'image/png'],
    ['app.min.mjs', 'text/javascript'],
    ['archive.tar.gz', 'application/gzip'],
    ['.json', 'application/json'],
    ['main.rs', 'text/plain'],
    ['page.mht', undefined],
    ['page.hta', undefined],
    ['README', undefined],
    ['a.', undefined],
    ['a.constructor', undefined],
    ['dir.png/file', undefined],
  ]
  for (const [name, type] of rows) test(`${name} → ${type}`, () => assert.equal(typeByName(name), type))
})

describe('by bytes, if the name is inconclusive', () => {
  const zip = (first: string) => bytes('PK\x03\x04', Array(26).fill(0), first)
  const rows: [type: string, start: Uint8Array][] = [
    ['image/png', bytes([0x89], 'PNG\r\n\x1a\n', [0, 0])],
    ['image/jpeg', bytes([0xff, 0xd8, 0xff, 0xe0])],
    ['image/gif', bytes('GIF89a')],
    ['image/webp', bytes('RIFF', [1, 2, 3, 4], 'WEBPVP8 ')],
    ['image/avif', bytes([0, 0, 0, 0x20], 'ftypavif')],
    ['image/avif', bytes([0, 0, 0, 0x20], 'ftypmif1', [0, 0, 0, 0], 'mif1avifmiaf')],
    ['image/heic', bytes([0, 0, 0, 0x18], 'ftypheic')],
    ['application/pdf', bytes('%PDF-1.7')],
    ['video/mp4', bytes([0, 0, 0, 0x18], 'ftypisom')],
    ['video/quicktime', bytes([0, 0, 0, 0x14], 'ftypqt  ')],
    ['audio/mp4', bytes([0, 0, 0, 0x14], 'ftypM4A ')],
    ['video/webm', bytes([0x1a, 0x45, 0xdf, 0xa3, 0x9f, 0x42, 0x82, 0x84], 'webm')],
    ['video/x-matroska', bytes([0x1a, 0x45, 0xdf, 0xa3, 0x9f, 0x42, 0x82, 0x88], 'matroska')],
    ['audio/mpeg', bytes('ID3', [3, 0])],
    ['audio/mpeg', bytes([0xff, 0xfb, 0x90])],
    ['audio/ogg', bytes('OggS', [0])],
    ['audio/wav', bytes('RIFF', [1, 2, 3, 4], 'WAVEfmt ')],
    ['application/zip', zip('a.txt')],
    ['application/epub+zip', zip('mimetypeapplication/epub+zipPK')],
    ['application/vnd.oasis.opendocument.text', zip('mimetypeapplication/vnd.oasis.opendocument.textPK')],
    ['application/gzip', bytes([0x1f, 0x8b, 8, 0])],
    ['application/wasm', bytes([0], 'asm', [1, 0, 0, 0])],
    ['font/woff2', bytes('wOF2')],
    ['application/x-tar', bytes(Array(257).fill(0x61), 'ustar')],
    ['image/svg+xml', bytes('<svg xmlns="http://www.w3.org/2000/svg"/>')],
    ['image/svg+xml', bytes('\ufeff<?xml version="1.0"?>\n<!-- made by hand -->\n<!DOCTYPE svg PUBLIC "x">\n<svg/>')],
    ['application/xml', bytes('<?xml version="1.0"?><note/>')],
    ['text/html; charset=utf-8', bytes(' \n<!-- a --><!-- b -->\n<!DOCTYPE HTML><p>')],
    ['text/html; charset=utf-8', bytes('<script>alert(1)</script>')],
    [utf8, bytes('<bold claims>')],
    [utf8, bytes('hello, juror\n')],
    [utf8, bytes('grüße, 陪審員')],
    [utf8, new Uint8Array()],
    ['text/plain; charset=utf-16le', bytes([0xff, 0xfe, 0x68, 0])],
    ['application/octet-stream', bytes([0xe4, 0xf6, 0xfc])],
    ['application/octet-stream', bytes('text with a', [0])],
    ['application/octet-stream', bytes([0, 1, 2, 3])],
  ]
  for (const [type, start] of rows) {
    test(`${JSON.stringify(Buffer.from(start).toString('latin1').slice(0, 30))} → ${type}`, () =>
      assert.equal(typeOf('', start), type))
  }
  test('character split at the end of the sample → still text', () => {
    const long = Buffer.from(`x${'ü'.repeat(sniffedBytes)}`)
    assert.equal(typeOf('', long), utf8)
  })
  test('sample size is constant', () => {
    const file = Buffer.concat([Buffer.alloc(sniffedBytes, 0x61), Buffer.from([0, 1, 2])])
    assert.equal(typeOf('', file), typeOf('', file.subarray(0, sniffedBytes), file.byteLength))
  })
  test('hostile markup → bounded time', () => {
    const ms = calmestWorkMs(() => {
      typeOf('', Buffer.from('<!---->'.repeat(1000)))
      typeOf('a.html', Buffer.from('<meta '.repeat(1000)))
    })
    assert.ok(ms < 100, `${ms} ms`)
  })
})

describe('name and bytes together', () => {
  const rows: [why: string, name: string, start: Uint8Array, type: string][] = [
    ['an image that holds a script stays an image', 'a.png', bytes('<script>'), 'image/png'],
    ['text that holds a script stays text', 'a.txt', bytes('<script>'), utf8],
    ['a name of no known ending leaves it to the bytes', 'a.xyz', bytes('%PDF-1'), 'application/pdf'],
    ['UTF-8 is said', 'a.css', bytes('p{}'), 'text/css; charset=utf-8'],
    ['another encoding is left to the page', 'a.html', bytes('<p>', [0xe4]), 'text/html'],
    ['also where it is declared', 'a.html', bytes('<meta charset="iso-8859-1"><p>'), 'text/html'],
    ['UTF-8 that is declared is said too', 'a.html', bytes('<meta charset="UTF-8"><p>'), 'text/html; charset=utf-8'],
    ['an SVG is one by its name', 'a.svg', bytes('anything'), 'image/svg+xml'],
  ]
  for (const [why, name, start, type] of rows) test(why, () => assert.equal(typeOf(name, start), type))
  test('bytes are read only if the name is inconclusive', () => {
    assert.equal(fileType('film.mp4').byName, 'video/mp4')
    assert.equal(fileType('film').byName, undefined)
    assert.equal(fileType('page.html').byName, undefined)
    assert.deepEqual(
      ['a.json', 'a.txt', 'a', 'a.xyz'].map((name) => fileType(name).mayBeJson),
      [false, false, true, true],
    )
  })
})
