// Directories as blocks: the CIDs that Kubo gives them, in whatever order their files come, and the paths that are refused.
import assert from 'node:assert/strict'
import { describe, it } from 'node:test'
import type { CID } from 'multiformats/cid'
import { profiles, type Shape, shapes } from '../../backends/pinning/contract.ts'
import { blockKey } from '../../src/core/cid.ts'
import { isFailure } from '../../src/core/failure.ts'
import {
  createTree,
  type DirectoryNode,
  importFile,
  maxEntries,
  putDirectory,
  putTree,
} from '../../src/upload/import.ts'
import { type DirectoryFiles, directoryRows } from '../support/directory-shapes.ts'
import { made } from '../support/made.ts'

const nothing = async () => {}

async function* each(bytes: number): AsyncGenerator<Uint8Array> {
  yield* made(bytes)
}

async function rootOf(files: DirectoryFiles, shape: Shape): Promise<CID | undefined> {
  const imports = new Map<number, Promise<DirectoryNode>>()
  const tree = createTree()
  for (const [path, bytes] of files) {
    if (path.endsWith('/')) tree.folder(path.slice(0, -1))
    else {
      const imported = imports.get(bytes) ?? importFile(each(bytes), shape, nothing)
      imports.set(bytes, imported)
      tree.file(path).entry = await imported
    }
  }
  return (await putTree(tree.root, { ...shape, put: nothing })).at(-1)?.cid
}

for (const profile of profiles) {
  describe(`directory under ${profile} has Kubo's CID`, () => {
    for (const { what, files, cids } of directoryRows)
      it(what, async () => {
        assert.equal(String(await rootOf(files(), shapes[profile])), cids[profile])
      })

    it('any order of files', async () => {
      for (const { what, files, cids } of directoryRows.filter((row) => row.files().length < 100))
        assert.equal(String(await rootOf(files().toReversed(), shapes[profile])), cids[profile], what)
    })
  })
}

describe('size of a directory link', () => {
  it('sum of all blocks, duplicates counted', async () => {
    const shape = shapes['unixfs-v1-2025']
    const blocks = new Map<string, number>()
    const put = async (cid: CID, bytes: Uint8Array) => void blocks.set(blockKey(cid), bytes.byteLength)
    const file = await importFile(each(12), shape, put)
    const entries = ['a', 'b'].map((name) => ({ ...file, name }))
    const { dagBytes } = await putDirectory(entries, { ...shape, put })
    const all = [...blocks.values()].reduce((sum, bytes) => sum + bytes, 0)
    assert.equal(dagBytes, all + file.dagBytes)
  })
})

describe('failed write of a directory', () => {
  it('fails once all writes have ended', async () => {
    const shape = shapes['unixfs-v1-2025']
    const tree = createTree()
    const entry = await importFile(each(1), shape, nothing)
    for (let at = 0; at < 40; at++) tree.file(`${at}/a`).entry = entry
    let writing = 0
    const put = async () => {
      writing++
      await new Promise(setImmediate)
      writing--
      throw new Error('the disk is full')
    }
    await assert.rejects(putTree(tree.root, { ...shape, put }), /the disk is full/)
    assert.equal(writing, 0)
  })
})

describe('directory paths', () => {
  const refused: readonly (readonly [why: RegExp, ...paths: string[]])[] = [
    [/it has \.\. in it/, '../a'],
    [/it has \.\. in it/, 'a/../../b'],
    [/it has \. in it/, 'a/./b'],
    [/it has \. in it/, '././a'],
    [/not relative/, '/a'],
    [/not relative, or has an empty name/, 'a//b'],
    [/an empty name/, 'a/'],
    [/an empty name/, ''],
    [/an empty name/, './'],
    [/backslash/, 'a\\b'],
    [/a control character/, '..\0/x'],
    [/a control character/, 'a\u001b[2J'],
    [/more than 64 levels/, 'a/'.repeat(64).concat('a')],
    [/longer than 4096 bytes/, 'ä'.repeat(2049)],
    [/a name in it has more than 255 bytes/, 'ä'.repeat(128)],
    [/another part of the upload has the same path/, 'a', 'a'],
    [/another part of the upload has the same path/, './a', 'a'],
    [/another part of the upload has the same path/, 'a/b', 'a'],
    [/"a" is a file in the same upload/, 'a', 'a/b'],
    [/"a" is a file in the same upload/, 'a', 'a/b/c'],
  ]
  for (const [why, ...paths] of refused)
    it(`${paths.map((path) => JSON.stringify(path.slice(0, 20))).join(' and then ')} → refused`, () => {
      const tree = createTree()
      for (const path of paths.slice(0, -1)) tree.file(path)
      assert.throws(
        () => tree.file(paths.at(-1) as string),
        (error: unknown) => isFailure(error, 'malformed') && error.source === 'client' && why.test(error.message),
      )
    })

  it('directory listed before or after its files → accepted', () => {
    const tree = createTree()
    for (const path of ['a', 'a', 'b/c']) tree.folder(path)
    tree.file('a/file')
    tree.folder('b')
    assert.deepEqual([...tree.root.entries.keys()], ['a', 'b'])
  })

  it('entries of a directory → limited, directories included', () => {
    const tree = createTree()
    for (let at = 0; at < maxEntries / 2; at++) tree.file(`${at}/a`)
    assert.throws(() => tree.file('one more'), /more than 16384 files and directories/)
  })

  it('long → shortened in messages', () => {
    assert.throws(
      () => createTree().file(`${'a'.repeat(250)}/../b`),
      ({ message }: Error) => message.length < 300,
    )
  })
})
