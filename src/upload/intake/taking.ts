// Takes a file, a directory or a DAG of a request, counted and checked as it arrives, into the one intake of that request.
import type { CID } from 'multiformats/cid'
import { type Profile, type Shape, shapes, type Upload } from '../../../backends/pinning/contract.ts'
import { type Block, isIdentity, proves } from '../../core/cid.ts'
import { isFailure } from '../../core/failure.ts'
import { createGate } from '../../core/gate.ts'
import type { Intake, Kept, Store } from '../../store/store.ts'
import { createTree, mostEntries, onlyEntry } from '../directory/paths.ts'
import { putTree } from '../directory/write.ts'
import { busy, malformed, tooLarge } from '../failures.ts'
import { declaresMore, fileBytesOf, storedUpload } from '../stored-upload.ts'
import type { Counter, UploadAdmission, UploadSlot } from './admission.ts'
import { type CarBudget, carBudget, spelledBy, takeCar } from './car.ts'
import { type FreeBuffers, importFile } from './import.ts'
import { keepText, type TextCheck } from './text-check.ts'

/** What a client is told of one file, directory or root. */
export type Added = {
  readonly cid: CID
  /** Bytes of all its blocks; a block that occurs twice counts twice. */
  readonly dagBytes: number
  /** As the client sent it: untrusted, never used as a path. */
  readonly fileName: string | undefined
}

/** An upload that is whole here, and that no provider has been asked to hold yet. */
export type Received = {
  readonly upload: Upload
  readonly kept: Kept
  readonly counter: Counter
  readonly added: Added
}

/** `bytes` may be reused once it returns or resolves. */
export type Put = (cid: CID, bytes: Uint8Array) => void | Promise<void>

export type TakingOptions = {
  readonly store: Pick<Store, 'blocks'>
  readonly admission: Pick<UploadAdmission, 'count'>
  readonly admit: (cid: CID) => void
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
export type ReceivedDirectory = Received & {
  /** In the order in which they came. */
  readonly files: readonly Added[]
  /** Those below first; the last is the whole. */
  readonly folders: readonly Added[]
}

/** Takes the entries of a directory. Throws a Failure for a path that cannot be in it. */
export type DirectoryIntake = {
  file(path: string, source: AsyncIterable<Uint8Array>): Promise<Added>
  /** A directory below, which may stay empty. */
  folder(path: string): void
}

export type DirectoryOptions = Pick<FileOptions, 'shape' | 'slot'> & {
  /** The upload is the one directory or file that was sent, and not a directory around that. */
  readonly isBare?: boolean
}

/** Everything that it takes is in `intake` until that is dropped, also where it fails. */
export interface Taking {
  file(intake: Intake, source: AsyncIterable<Uint8Array>, own: FileOptions, fileName?: string): Promise<Received>
  /** `bring` adds the files of the directory. */
  directory(
    intake: Intake,
    own: DirectoryOptions,
    bring: (directory: DirectoryIntake) => Promise<Added[]>,
  ): Promise<ReceivedDirectory>
  /** Takes every proved block of the DAG, in any order. */
  dag(intake: Intake, root: CID, blocks: AsyncIterable<Block>, slot: UploadSlot | undefined): Promise<Received>
  /** An upload for each root of a CAR, each of them whole. */
  car(intake: Intake, source: AsyncIterable<Uint8Array>, own: FileOptions, budget: CarBudget): Promise<Received[]>
  /** For one request. */
  carBudget(): CarBudget
}

const importsAtOnce = 8

export function createTaking(options: TakingOptions): Taking {
  const { store, admission, admit, limits, profile: ownProfile, closing } = options
  const room: FreeBuffers = []

  const received = (kept: Kept, via?: string): Pick<Received, 'upload' | 'kept'> => {
    const upload = storedUpload(kept, [kept, store.blocks])
    return { kept, upload: via === undefined ? upload : { ...upload, via } }
  }

  type Filled = Added & { readonly fileBytes?: number | undefined }

  /** Without a profile, the version of the root decides it. */
  async function take(
    intake: Intake,
    { profile, slot, via }: { profile: Profile | undefined; slot: UploadSlot | undefined; via?: string | undefined },
    fill: (put: Put, counter: Counter) => Promise<Filled>,
  ): Promise<Received> {
    const filling = intake.dag()
    const counter = admission.count(slot)
    // A denied block is not kept as part of another file either.
    const put: Put = (cid, bytes) => {
      admit(cid)
      return filling.put(cid, bytes)
    }
    try {
      const { fileBytes = counter.bytes, ...added } = await fill(put, counter)
      admit(added.cid)
      const kept = filling.finish(added.cid, profile ?? spelledBy(added.cid), fileBytes)
      return { ...received(kept, via), counter, added }
    } catch (error) {
      counter.release()
      throw error
    }
  }

  const file: Taking['file'] = (intake, source, own, fileName) => {
    const profile = own.shape === undefined ? ownProfile : undefined
    const shape = own.shape ?? shapes[ownProfile]
    return take(intake, { profile, slot: own.slot, via: own.via }, async (put, counter) => {
      const text = own.check && keepText(own.check)
      const imported = await importFile(counter.over(text ? text.over(source) : source), shape, put, room)
      text?.check()
      return { ...imported, fileName }
    })
  }

  const directory: Taking['directory'] = async (intake, own, bring) => {
    const profile = own.shape === undefined ? ownProfile : undefined
    const shape = own.shape ?? shapes[ownProfile]
    const tree = createTree()
    // Each import holds a chunk in memory, and many small files arrive at once.
    const gate = createGate({ most: importsAtOnce, inLine: mostEntries, full: () => busy('too many files at once') })
    let files: Added[] = []
    let folders: Added[] = []
    const taken = await take(intake, { profile, slot: own.slot }, async (put, counter) => {
      files = await bring({
        folder: tree.folder,
        async file(path, source) {
          const file = tree.file(path)
          const imported = await gate.run(() => importFile(counter.over(source), shape, put, room), closing)
          file.entry = imported
          return { ...imported, fileName: path }
        },
      })
      const root = own.isBare ? onlyEntry(tree.root) : tree.root
      if (!root) throw malformed('an upload of several files and directories needs a directory around them')
      if (!('entries' in root)) return files[0] as Added
      const written = await putTree(root, {
        ...shape,
        async put(cid, bytes) {
          counter.add(bytes.byteLength)
          await put(cid, bytes)
        },
      })
      folders = written.map(({ path, ...node }) => ({ ...node, fileName: path }))
      return folders.at(-1) as Added
    })
    return { ...taken, files, folders }
  }

  const dag: Taking['dag'] = async (intake, root, blocks, slot) => {
    const taken = await take(intake, { profile: undefined, slot }, async (put, counter) => {
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
      for await (const _ of storedUpload(taken.kept, [taken.kept]).blocks(closing));
    } catch (error) {
      taken.counter.release()
      throw isFailure(error, 'upstream-error') ? malformed(`blocks below ${root} are missing`, error) : error
    }
    return taken
  }

  const car: Taking['car'] = async (intake, source, own, budget) => {
    const counters: Counter[] = []
    const count = () => {
      const counter = admission.count(own.slot)
      counters.push(counter)
      return counter
    }
    try {
      const taken = await takeCar(source, own, budget, { intake, count, admit, limits, closing })
      return taken.map(({ kept, ...rest }) => ({ ...rest, ...received(kept, own.via) }))
    } catch (error) {
      for (const counter of counters) counter.release()
      throw error
    }
  }

  return { file, directory, dag, car, carBudget: () => carBudget(limits.maxBytes) }
}
