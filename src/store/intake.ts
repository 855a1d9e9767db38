// The blocks of one request until it is accepted: in memory up to 64 KiB, in one CAR file beyond that.
import type { CID } from 'multiformats/cid'
import { blockKey, isIdentity } from '../core/cid.ts'
import { carHeader, carSectionBytes } from '../ipld/car.ts'
import type { CarFile } from './car-file.ts'
import { failureOf } from './engine.ts'
import type { AcceptedIntake, AcceptedRow, PackedBlocks } from './operations.ts'
import type { Accepted, Filling, Intake, Kept } from './store.ts'

const mostInMemory = 64 * 1024

/** Takes a block where the room for it is. */
export interface BlockPile {
  readonly cids: readonly CID[]
  /** The place of a block in `cids`. */
  find(key: string): number | undefined
  add(cid: CID, bytes: Uint8Array): { readonly index: number; readonly written: void | Promise<void> }
  lengthOf(index: number): number
  read(index: number): Uint8Array | Promise<Uint8Array>
  /** Files are on the platter when it resolves. */
  seal(roots: readonly CID[]): Promise<PackedBlocks>
  readonly file: CarFile | undefined
}

export function createBlockPile(newFile: () => CarFile): BlockPile {
  const indexOf = new Map<string, number>()
  const cids: CID[] = []
  const lengths: number[] = []
  const ats: number[] = []
  let memory: Uint8Array[] | undefined = []
  let total = 0
  let file: CarFile | undefined

  function toFile(): Promise<void> {
    const opened = newFile()
    file = opened
    const before = memory ?? []
    memory = undefined
    const writes = before.map((bytes, index) => {
      const { at, written } = opened.append(cids[index] as CID, bytes)
      ats[index] = at
      return written
    })
    return Promise.all(writes).then(() => {})
  }

  return {
    cids,
    find: (key) => indexOf.get(key),
    add(cid, bytes) {
      const index = cids.length
      const { byteLength } = bytes
      const isOver = memory !== undefined && total + byteLength > mostInMemory
      const moved = isOver ? toFile() : undefined
      indexOf.set(blockKey(cid), index)
      cids.push(cid)
      lengths.push(byteLength)
      total += byteLength
      if (memory) {
        memory.push(new Uint8Array(bytes))
        ats.push(total - byteLength)
        return { index, written: undefined }
      }
      const { at, written } = (file as CarFile).append(cid, bytes)
      ats.push(at)
      return { index, written: isOver ? Promise.all([moved, written]).then(() => {}) : written }
    },
    lengthOf: (index) => lengths[index] as number,
    read(index) {
      if (memory) return memory[index] as Uint8Array
      return (file as CarFile).read(ats[index] as number, lengths[index] as number)
    },
    async seal(roots) {
      const packed = { keys: packKeys(cids), lengths: Uint32Array.from(lengths), ats: Float64Array.from(ats) }
      if (!file) return { ...packed, bytes: Buffer.concat(memory ?? []) }
      return { ...packed, car: { name: file.name, bytes: await file.seal(roots) } }
    },
    get file() {
      return file
    },
  }
}

function packKeys(cids: readonly CID[]): Uint8Array {
  const packed = new Uint8Array(cids.reduce((sum, { multihash }) => sum + 1 + multihash.bytes.byteLength, 0))
  let at = 0
  for (const { multihash } of cids) {
    packed[at] = multihash.bytes.byteLength
    packed.set(multihash.bytes, at + 1)
    at += 1 + multihash.bytes.byteLength
  }
  return packed
}

export type IntakePlaces = {
  readonly newFile: () => CarFile
  /** The file was not accepted, and may be removed. */
  readonly dropped: (file: CarFile) => Promise<void>
  /** Blocks may serve this one: until the answer is called. */
  readonly offer: (key: string, read: () => Uint8Array | Promise<Uint8Array>) => () => void
  readonly kept: WeakMap<Kept, KeptIn>
  /** A block that was accepted. */
  readonly stored: (cid: CID) => Promise<Uint8Array | undefined>
}

/** What the store has to know of an intake. */
export interface OwnIntake extends Intake {
  pack(uploads: readonly Accepted[]): Promise<AcceptedIntake>
  accepted(): void
  readonly cids: readonly CID[]
  readonly file: CarFile | undefined
}

/** Where each DAG that is whole has its blocks. */
export type KeptIn = { readonly intake: OwnIntake; readonly list: readonly number[] }

export function createIntake(places: IntakePlaces): OwnIntake {
  const pile = createBlockPile(places.newFile)
  const withdrawals: (() => void)[] = []
  let isAccepted = false
  let isDropped = false

  async function get(cid: CID): Promise<Uint8Array | undefined> {
    const index = isDropped ? undefined : pile.find(blockKey(cid))
    return index === undefined ? places.stored(cid) : pile.read(index)
  }

  function dag(): Filling {
    const listed = new Map<number, CID>()
    const counted = new Set<string>()
    let sections = 0

    function note(cid: CID, index: number): void {
      listed.set(index, cid)
      const name = `${cid.code}:${blockKey(cid)}`
      if (counted.has(name)) return
      counted.add(name)
      sections += carSectionBytes(cid, pile.lengthOf(index))
    }

    const indexIn = (cid: CID): number => {
      const index = pile.find(blockKey(cid))
      if (index === undefined) throw new Error(`${cid} is not in this intake`)
      return index
    }

    return {
      put(cid, bytes) {
        if (isIdentity(cid)) return
        const known = pile.find(blockKey(cid))
        if (known !== undefined) return note(cid, known)
        const { index, written } = pile.add(cid, bytes)
        note(cid, index)
        return written?.catch((error: unknown) => {
          throw failureOf(error, 'take an upload')
        })
      },
      has: (cid) => listed.has(pile.find(blockKey(cid)) ?? -1),
      read: (cid) => pile.read(indexIn(cid)),
      adopt(cid) {
        const index = indexIn(cid)
        note(cid, index)
        return pile.lengthOf(index)
      },
      finish(root, profile, bytes) {
        const list = [...listed.keys()]
        const kept: Kept = {
          cid: root,
          profile,
          bytes,
          carBytes: carHeader(root).byteLength + sections,
          cids: [...listed.values()],
          get,
          offer() {
            for (const index of list) {
              const key = blockKey(pile.cids[index] as CID)
              withdrawals.push(places.offer(key, () => pile.read(index)))
            }
          },
        }
        places.kept.set(kept, { intake, list })
        return kept
      },
    }
  }

  const intake: OwnIntake = {
    dag,
    async pack(uploads) {
      const blocks = await pile.seal(uploads.map(({ kept }) => kept.cid))
      const rows = uploads.map(({ kept, name, at, holders }): AcceptedRow => {
        const { cid, profile, bytes, carBytes } = kept
        const list = Uint32Array.from(places.kept.get(kept)?.list ?? [])
        return { cid: cid.toV1().bytes, name, profile, bytes, carBytes, at, holders, list }
      })
      return { blocks, uploads: rows }
    },
    accepted() {
      isAccepted = true
    },
    cids: pile.cids,
    get file() {
      return pile.file
    },
    async drop() {
      if (isDropped) return
      isDropped = true
      for (const withdraw of withdrawals) withdraw()
      const { file } = pile
      if (!file) return
      await file.close()
      if (!isAccepted) await places.dropped(file)
    },
  }
  return intake
}
