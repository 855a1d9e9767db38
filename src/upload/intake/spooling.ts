// Writes a file, a directory or a DAG into a spool of its own, counted and checked as it arrives. A failed upload leaves nothing behind.
import type { CID } from 'multiformats/cid'
import { type Profile, type Shape, shapes, type Upload } from '../../../backends/pinning/contract.ts'
import { type Block, isIdentity, proves } from '../../core/block.ts'
import { isFailure } from '../../core/failure.ts'
import { createGate } from '../../core/gate.ts'
import type { Log } from '../../core/log.ts'
import { createTree, mostEntries, onlyEntry } from '../directory/paths.ts'
import { putTree } from '../directory/write.ts'
import { busy, malformed, tooLarge } from '../failures.ts'
import type { Spool, Spools } from '../spool/spool.ts'
import { declaresMore, fileBytesOf } from '../spool/stored-upload.ts'
import type { Counter, UploadAdmission, UploadSlot } from './admission.ts'
import { type CarBudget, carBudget, spelledBy, spoolCar } from './car.ts'
import { importFile } from './import.ts'
import { keepText, type TextCheck } from './text-check.ts'

export type SpooledUpload = {
  readonly cid: CID
  /** Bytes of all its blocks; a block that occurs twice counts twice. */
  readonly dagBytes: number
  /** As the client sent it: untrusted, never used as a path. */
  readonly fileName: string | undefined
}

export type SpooledFile = {
  readonly upload: Upload
  readonly id: string
  readonly counter: Counter
  readonly added: SpooledUpload
}

export type SpoolingOptions = {
  readonly spools: Spools
  readonly admission: Pick<UploadAdmission, 'count'>
  readonly admit: (cid: CID) => void
  readonly log: Log
  readonly limits: { readonly maxBytes: number }
  readonly profile: Profile
  readonly closing: AbortSignal
}

export type FileOptions = {
  /** Replaces the shape of the profile. */
  readonly shape?: Shape
  readonly check?: TextCheck | undefined
  /** The slot that `enter` gave it. */
  readonly slot?: UploadSlot
  /** The gateways that it came through (CDN-Loop), for a provider that is a gateway, and for thin mode. */
  readonly via?: string
  /** Sees each block of a CAR. */
  readonly onCarBlock?: (block: Block) => void
}

/** A directory of files, which is one upload. */
export type SpooledDirectory = SpooledFile & {
  /** In the order in which they came. */
  readonly files: readonly SpooledUpload[]
  /** Those below first; the last is the whole. */
  readonly folders: readonly SpooledUpload[]
}

/** Takes the entries of a directory. Throws a Failure for a path that cannot be in it. */
export type DirectoryIntake = {
  file(path: string, source: AsyncIterable<Uint8Array>): Promise<SpooledUpload>
  /** A directory below, which may stay empty. */
  folder(path: string): void
}

export type DirectoryOptions = Pick<FileOptions, 'shape' | 'slot'> & {
  /** The upload is the one directory or file that was sent, and not a directory around that. */
  readonly isBare?: boolean
}

export interface Spooling {
  spoolFile(source: AsyncIterable<Uint8Array>, own: FileOptions, fileName?: string): Promise<SpooledFile>
  /** `bring` adds the files of the directory. */
  spoolDirectory(
    own: DirectoryOptions,
    bring: (intake: DirectoryIntake) => Promise<SpooledUpload[]>,
  ): Promise<SpooledDirectory>
  /** Takes every proved block of the DAG, in any order. */
  spoolDag(root: CID, blocks: AsyncIterable<Block>, slot: UploadSlot | undefined): Promise<SpooledFile>
  /** An upload for each root of a CAR, each of them whole. */
  spoolCar(source: AsyncIterable<Uint8Array>, own: FileOptions, budget: CarBudget): Promise<SpooledFile[]>
  /** For one request. */
  carBudget(): CarBudget
  /** Does not reject. */
  drop(spooled: Pick<SpooledFile, 'id' | 'counter'>): Promise<void>
}

const importsAtOnce = 8

export function createSpooling(options: SpoolingOptions): Spooling {
  const { spools, admission, admit, log, limits, profile: ownProfile, closing } = options

  /** Writes into a new spool and drops it if anything fails. Without a profile, the version of the root decides it. */
  async function spool(
    profile: Profile | undefined,
    slot: UploadSlot | undefined,
    fill: (put: Spool['put'], counter: Counter) => Promise<SpooledUpload & { readonly fileBytes?: number | undefined }>,
  ): Promise<SpooledFile> {
    const spooling = await spools.begin()
    const counter = admission.count(slot)
    const writes = new Set<Promise<void>>()
    // A denied block is not kept as part of another file either.
    async function put(cid: CID, bytes: Uint8Array): Promise<void> {
      admit(cid)
      const writing = spooling.put(cid, bytes)
      writes.add(writing)
      await writing
      writes.delete(writing)
    }
    try {
      const { fileBytes = counter.bytes, ...added } = await fill(put, counter)
      admit(added.cid)
      const upload = await spooling.finish(added.cid, profile ?? spelledBy(added.cid), fileBytes)
      return { upload, id: spooling.id, counter, added }
    } catch (error) {
      await Promise.allSettled(writes) // a folder that is still written to would not go
      await drop({ id: spooling.id, counter })
      throw error
    }
  }

  async function drop({ id, counter }: Pick<SpooledFile, 'id' | 'counter'>): Promise<void> {
    counter.release()
    await spools.drop(id).catch((error: unknown) => log('error', 'upload.drop', { id, error: String(error) }))
  }

  async function spoolFile(
    source: AsyncIterable<Uint8Array>,
    own: FileOptions,
    fileName?: string,
  ): Promise<SpooledFile> {
    const profile = own.shape === undefined ? ownProfile : undefined
    const shape = own.shape ?? shapes[ownProfile]
    const spooled = await spool(profile, own.slot, async (put, counter) => {
      const text = own.check && keepText(own.check)
      const imported = await importFile(counter.over(text ? text.over(source) : source), shape, put)
      text?.check()
      return { ...imported, fileName }
    })
    return own.via === undefined ? spooled : { ...spooled, upload: { ...spooled.upload, via: own.via } }
  }

  async function spoolDirectory(
    own: DirectoryOptions,
    bring: (intake: DirectoryIntake) => Promise<SpooledUpload[]>,
  ): Promise<SpooledDirectory> {
    const profile = own.shape === undefined ? ownProfile : undefined
    const shape = own.shape ?? shapes[ownProfile]
    const tree = createTree()
    // Each import holds a chunk in memory, and many small files arrive at once.
    const gate = createGate({ most: importsAtOnce, inLine: mostEntries, full: () => busy('too many files at once') })
    let files: SpooledUpload[] = []
    let folders: SpooledUpload[] = []
    const spooled = await spool(profile, own.slot, async (put, counter) => {
      files = await bring({
        folder: tree.folder,
        async file(path, source) {
          const file = tree.file(path)
          const imported = await gate.run(() => importFile(counter.over(source), shape, put), closing)
          file.entry = imported
          return { ...imported, fileName: path }
        },
      })
      const root = own.isBare ? onlyEntry(tree.root) : tree.root
      if (!root) throw malformed('an upload of several files and directories needs a directory around them')
      if (!('entries' in root)) return files[0] as SpooledUpload
      const written = await putTree(root, {
        ...shape,
        put(cid, bytes) {
          counter.add(bytes.byteLength)
          return put(cid, bytes)
        },
      })
      folders = written.map(({ path, ...node }) => ({ ...node, fileName: path }))
      return folders.at(-1) as SpooledUpload
    })
    return { ...spooled, files, folders }
  }

  async function spoolDag(root: CID, blocks: AsyncIterable<Block>, slot: UploadSlot | undefined): Promise<SpooledFile> {
    const spooled = await spool(undefined, slot, async (put, counter) => {
      let fileBytes: number | undefined
      for await (const { cid, bytes } of blocks) {
        if (cid.equals(root)) fileBytes = fileBytesOf({ cid, bytes })
        if (counter.bytes + bytes.byteLength > limits.maxBytes || declaresMore({ cid, bytes }, limits.maxBytes))
          throw tooLarge(limits.maxBytes)
        if (isIdentity(cid)) continue
        if (!proves(cid, bytes)) throw malformed(`the bytes of block ${cid} do not hash to its CID`)
        counter.add(bytes.byteLength)
        await put(cid, bytes)
      }
      return { cid: root, dagBytes: counter.bytes, fileName: undefined, fileBytes }
    })
    try {
      // Every linked block must be here: a provider would search for the missing ones, or hold half of the DAG.
      for await (const _ of spooled.upload.blocks(closing));
    } catch (error) {
      await drop(spooled)
      throw isFailure(error, 'broken') ? malformed(`blocks below ${root} are missing`, error) : error
    }
    return spooled
  }

  return {
    ...{ spoolFile, spoolDirectory, spoolDag, drop, carBudget: () => carBudget(limits.maxBytes) },
    spoolCar: (source, own, budget) => spoolCar(source, own, budget, { ...options, drop }),
  }
}
