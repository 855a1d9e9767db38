// What strangers write, in any form: parsers answer or refuse, and never break.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { CID } from 'multiformats/cid'
import { create } from 'multiformats/hashes/digest'
import { parseEntityBytes, placeEntityBytes } from '../../src/content/formats/car.ts'
import { parsePath } from '../../src/content/resolve.ts'
import { codec, hash } from '../../src/core/cid.ts'
import { isFailure } from '../../src/core/failure.ts'
import { createDenylist, createDenylists, readList } from '../../src/deny/denylist.ts'
import { formatFor, formatNames, parseRange } from '../../src/http/content/negotiate.ts'
import { createTree, type FileInTree, type Folder } from '../../src/upload/import.ts'
import { parseRedirects, redirect } from '../../src/web/site.ts'
import { anyText } from '../support/any-text.ts'
import { runs } from '../support/property.ts'

/** The answer, or undefined where it was refused as a Failure. Anything else fails the test. */
function answerOf<Answer>(ask: () => Answer): Answer | undefined {
  try {
    return ask()
  } catch (error) {
    assert.ok(isFailure(error) && error.kind !== 'internal', String(error))
    return undefined
  }
}

test('any Range → first satisfiable range, clamped to the file', () => {
  const spec = fc.oneof(
    fc.tuple(fc.nat(60), fc.nat(60)).map(([first, more]) => ({ first, last: first + more })),
    fc.nat(60).map((first) => ({ first, last: undefined })),
    fc.nat(60).map((last) => ({ first: undefined, last })),
  )
  type Spec = { readonly first: number | undefined; readonly last: number | undefined }
  const offsets = ({ first, last }: Spec, size: number): number[] =>
    Array.from({ length: size }, (_, at) => at).filter((at) =>
      first === undefined ? at >= size - (last ?? 0) : at >= first && at <= (last ?? size),
    )
  fc.assert(
    fc.property(fc.array(spec, { minLength: 1, maxLength: 4 }), fc.integer({ min: 1, max: 50 }), (specs, size) => {
      const header = `bytes=${specs.map(({ first = '', last = '' }) => `${first}-${last}`).join(', ')}`
      const wanted = specs.map((one) => offsets(one, size)).find((all) => all.length > 0)
      assert.deepEqual(parseRange(header, size), wanted ? { from: wanted[0], to: wanted.at(-1) } : 'unsatisfiable')
    }),
    runs(500),
  )
})

const someCid = CID.createV1(codec.raw, create(hash.sha256, new Uint8Array(32).fill(1)))
const odd = fc.string({ unit: fc.constantFrom(...'/:*%?# \n\r\t\0.aA0é;=,qb', 'http://a', ':splat', '301', 'ipfs') })

test('any `_redirects` → refused, or targets valid in a header', () => {
  const rule = fc
    .tuple(odd, odd, fc.constantFrom('', ' 200', ' 301', ' 404'))
    .map(([from, to, status]) => `/${from} /${to}${status}`)
  fc.assert(
    fc.property(fc.array(fc.oneof(rule, odd), { maxLength: 5 }), odd, odd, (lines, path, query) => {
      const rules = answerOf(() => parseRedirects(lines.join('\n')))
      const led = rules && answerOf(() => redirect(rules, `/${path}`, query))
      if (led?.kind === 'redirect') assert.match(led.location, /^[^\0\r\n]*$/)
      if (led?.kind === 'rewrite') assert.match(led.path, /^\/[^?#]*$/)
    }),
    runs(1000),
  )
})

test('any denylist → parsed, invalid lines reported', async () => {
  await fc.assert(
    fc.asyncProperty(
      fc.array(
        fc.oneof(
          odd,
          odd.map((rest) => `/ipfs/${rest}`),
          odd.map((rest) => `//${rest}`),
        ),
      ),
      async (lines) => {
        const { list, faultCount } = await readList('any', lines.join('\n'))
        assert.ok(faultCount <= list.lines)
      },
    ),
    runs(300),
  )
})

test('any denylist header → parsed, or refused with a reason', async () => {
  const words = [
    'version',
    'hints',
    'name',
    ': ',
    ':\n  ',
    '\n',
    '1',
    '- ',
    '[',
    ']',
    '{',
    '}',
    '&a',
    '*a',
    '<<',
    '!!set',
    '"',
    "'",
    '|',
    '%',
    '\t',
    '? ',
  ]
  const header = fc.array(fc.oneof(fc.constantFrom(...words), odd), { maxLength: 12 }).map((all) => all.join(''))
  let read = 0
  const property = fc.asyncProperty(header, async (text) => {
    const rule = `/ipfs/${someCid}`
    const given = await readList('any', `${text}\n---\n${rule}\n`).catch((error: unknown) => {
      assert.ok(error instanceof Error && error.message !== '' && !(error instanceof TypeError), String(error))
    })
    if (!given) return
    read++
    assert.ok(given.list.rules > 0 || given.faultCount > 0)
  })
  await fc.assert(property, runs(150))
  assert.ok(read > 20, `${read} were read`)
})

test('denylist header that expands too far → refused', async () => {
  const aliases = Array.from({ length: 30 }, (_, at) => `k${at}: &a${at} [${`*a${at - 1}, `.repeat(at === 0 ? 0 : 4)}]`)
  for (const header of [`${'? '.repeat(60)}a`, [...aliases, 'hints: {reason: *a29}'].join('\n')])
    await assert.rejects(readList('any', `${header}\n---\n`), /is no text/)
})

test('denylist → the last rule for a path decides', () => {
  const cids = [someCid, CID.createV1(codec.raw, create(hash.sha256, new Uint8Array(32).fill(2)))]
  const path = fc.array(fc.constantFrom('a', 'b', 'ab', 'é', 'a b', '100%'), { maxLength: 3 })
  const rule = fc.record({ of: fc.nat(1), path, isPrefix: fc.boolean(), isSlashed: fc.boolean(), allows: fc.boolean() })
  fc.assert(
    fc.property(fc.array(rule, { maxLength: 6 }), fc.nat(1), path, (rules, of, asked) => {
      const lines = rules.map(({ of: at, path: below, isPrefix, isSlashed, allows }) => {
        const text = ['', 'ipfs', `${at === 0 ? cids[at] : cids[at]?.toV1()}`, ...below.map(encodeURIComponent)].join(
          '/',
        )
        return `${allows ? '!' : ''}${text}${isPrefix ? (isSlashed || below.length === 0 ? '/*' : '*') : ''}`
      })
      const list = createDenylist('any')
      assert.deepEqual(list.add(lines.join('\n')), [])
      const matching = rules.findLast(({ of: at, path: below, isPrefix }) => {
        const [text, wanted] = [below.join('/'), asked.join('/')]
        return at === of && (isPrefix ? wanted.startsWith(text) : wanted === text)
      })
      const denial = createDenylists(() => [list]).path(cids[of] as CID, asked)
      assert.equal(denial !== undefined, matching?.allows === false, lines.join('\n'))
    }),
    runs(300),
  )
})

test('any Accept → one of the formatNames', () => {
  const type = fc.constantFrom(
    'application/vnd.ipld.car',
    'application/vnd.ipld.raw',
    'text/html',
    '*/*',
    'application/json',
  )
  const header = fc.array(
    fc.oneof(
      odd,
      fc.tuple(type, odd).map(([name, more]) => `${name};${more}`),
      type,
    ),
    { maxLength: 5 },
  )
  fc.assert(
    fc.property(header, (all) => {
      const choice = answerOf(() => formatFor(all.join(',')))
      assert.ok(choice === undefined || choice === 'file' || formatNames.has(choice), choice)
    }),
    runs(1000),
  )
})

test('any path → split or refused', () => {
  const root = fc.oneof(
    odd,
    fc
      .uint8Array({ minLength: 32, maxLength: 32 })
      .map((digest) => CID.createV1(codec.raw, create(hash.sha256, digest)).toString()),
  )
  fc.assert(
    fc.property(root, odd, (first, rest) => {
      const path = answerOf(() => parsePath(`${first}/${rest}`))
      if (path) assert.equal(path.segments.length, path.encoded.length)
    }),
    runs(1000),
  )
})

test('any file paths → a storable directory, or refused', () => {
  const name = fc.oneof(
    fc.constantFrom('a', 'b', '.', '..', '', '...', 'c:', 'a\\b', '\0', 'x'.repeat(256), '\ud800'),
    anyText({ maxLength: 5 }),
  )
  const path = fc.array(name, { maxLength: 4 }).map((names) => names.join('/'))
  const namesIn = (node: Folder | FileInTree): string[] =>
    'entries' in node ? [...node.entries].flatMap(([own, inner]) => [own, ...namesIn(inner)]) : []
  fc.assert(
    fc.property(fc.array(path, { maxLength: 5 }), (paths) => {
      const tree = createTree()
      const taken = paths.filter((one) => answerOf(() => tree.file(one)))
      const names = namesIn(tree.root)
      for (const one of names) {
        assert.match(one, /^(?!\.{1,2}$)[^/\\]{1,255}$/)
        assert.ok([...one].every((letter) => letter >= ' ' && letter !== '\u007f'))
      }
      assert.equal(new Set(taken).size, taken.length)
    }),
    runs(300),
  )
})

test('any entity-bytes → inside the file, or refused', () => {
  const end = fc.oneof(
    fc.integer({ min: -60, max: 60 }).map(String),
    fc.constantFrom('*', '', '-0', '00', '9'.repeat(19), `-${'9'.repeat(19)}`, '1e3'),
  )
  fc.assert(
    fc.property(
      fc.oneof(
        fc.tuple(end, end).map((both) => both.join(':')),
        odd,
      ),
      fc.nat(50),
      (text, size) => {
        const parsed = answerOf(() => parseEntityBytes(text))
        const place = parsed && placeEntityBytes(parsed, size)
        if (place) assert.ok(place.from >= 0 && place.from < place.to && place.to <= size, `${text} of ${size}`)
      },
    ),
    runs(500),
  )
})
