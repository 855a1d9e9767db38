// Content for tests: that of the contract suites, made once in a process, and many files that differ.
import {
  addFile,
  type BlockMap,
  type Content,
  type FileFixture,
  makeContent,
  noise,
  type ProfileName,
} from '../../src/testing/content.ts'

export {
  addBlock,
  addCbor,
  addDagJson,
  addDirectory,
  addFile,
  addNode,
  addSymlink,
  type BlockMap,
  deepChunk,
  type FileFixture,
  noise,
  type ProfileName,
  profileOptions,
  text,
} from '../../src/testing/content.ts'

export type Fixtures = Content

let made: Promise<Fixtures> | undefined

/** One of everything, in a map of the caller's own. They are made once in a process. */
export async function fixtures(): Promise<Fixtures> {
  made ??= makeContent()
  const all = await made
  return { ...all, blocks: new Map(all.blocks) }
}

export async function distinctFiles(
  blocks: BlockMap,
  count: number,
  bytes: number,
  profile: ProfileName = 'v1',
): Promise<FileFixture[]> {
  const files: FileFixture[] = []
  for (let index = 0; index < count; index++) files.push(await addFile(blocks, noise(bytes, index + 1000), profile))
  return files
}
