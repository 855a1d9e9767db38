// The options of `add` in Kubo 0.42, by name and alias. An option is refused if it would give
// another CID than Kubo's or needs a missing feature; one that changes nothing for files is
// accepted, as is anything that Kubo ignores.
import { type Shape, shapes } from '../../../backends/pinning/contract.ts'
import { pinName } from '../add/query.ts'
import { badCall, type GivenOptions, isOn, notDone, optionsIn, refuseOn, refuseOthers } from './call.ts'

export type AddQuery = {
  /** Undefined means the profile in the configuration. */
  readonly shape: Shape | undefined
  readonly isOnlyHashed: boolean
  /** Returns CIDs as v1. */
  readonly isUpgraded: boolean
  readonly isSilent: boolean
  /** Of the pins. */
  readonly name: string | undefined
  /**
   * All parts belong to one directory: `around` means a directory that wraps them, `only` one among
   * the parts.
   */
  readonly directory: 'around' | 'only' | undefined
}

/** The profile of a Kubo with default settings: the old one. */
const kubos = shapes['unixfs-v0-2015']

// Smaller chunks cost too much: each is a stored block with a link in a parent node.
const leastChunkBytes = 16 * 1024
// Kubo's limit: a block of 2 MiB without the overhead of a node.
const mostChunkBytes = 2 * 1024 * 1024 - 256
const leastLinks = 2
const mostLinks = 8192

const aliases: Readonly<Record<string, string>> = {
  n: 'only-hash',
  w: 'wrap-with-directory',
  r: 'recursive',
  s: 'chunker',
  t: 'trickle',
  enc: 'encoding',
}

/** Booleans for which only false is supported. */
const off: Readonly<Record<string, string>> = {
  trickle: 'files are laid out balanced',
  inline: 'small blocks are stored as any other',
  nocopy: 'files are kept here, not where they came from',
  'preserve-mode': 'files have no mode here',
  'preserve-mtime': 'files have no modification time here',
}

/** Refused with any value. */
const never: Readonly<Record<string, string>> = {
  mode: 'files have no mode here',
  mtime: 'files have no modification time here',
  'mtime-nsecs': 'files have no modification time here',
  'to-files': 'there is no MFS here',
}

/** The only supported values; empty counts as absent. */
const only: Readonly<Record<string, readonly string[]>> = {
  hash: ['sha2-256'],
  encoding: ['json'],
  'cid-base': ['base32'],
  'max-directory-links': ['0'],
  'max-hamt-fanout': ['256'],
}

export function readAddQuery(query: URLSearchParams): AddQuery {
  const given = optionsIn(query, aliases)
  refuseOn(given, off)
  for (const [name, why] of Object.entries(never)) if (given.get(name)) throw notDone(name, why)
  refuseOthers(given, only)
  return {
    shape: shapeOf(given),
    isOnlyHashed: isOn(given, 'only-hash', false),
    isUpgraded: Boolean(given.get('cid-base')) || isOn(given, 'upgrade-cidv0-in-output', false),
    isSilent: isOn(given, 'silent', false),
    name: pinName(given.get('pin-name')),
    directory: isOn(given, 'wrap-with-directory', false)
      ? 'around'
      : isOn(given, 'recursive', false)
        ? 'only'
        : undefined,
  }
}

/** Missing options have Kubo's defaults. Without any option the operator's profile applies. */
function shapeOf(given: GivenOptions): Shape | undefined {
  const chunker = given.get('chunker')
  if (!chunker && !['cid-version', 'raw-leaves', 'max-file-links'].some((name) => given.has(name))) return undefined
  const cidVersion = numberOf(given, 'cid-version') ?? kubos.cidVersion
  if (cidVersion !== 0 && cidVersion !== 1) throw badCall(`cid-version=${cidVersion} is not 0 or 1`)
  const width = numberOf(given, 'max-file-links') ?? kubos.width
  if (width < leastLinks || width > mostLinks)
    throw badCall(`max-file-links=${width} is not from ${leastLinks} to ${mostLinks}`)
  return {
    cidVersion,
    isRaw: isOn(given, 'raw-leaves', cidVersion === 1),
    chunkBytes: chunker ? chunkBytesOf(chunker) : kubos.chunkBytes,
    width,
    directorySize: kubos.directorySize,
  }
}

function chunkBytesOf(chunker: string): number {
  if (chunker === 'default') return kubos.chunkBytes
  const bytes = Number(/^size-(\d{1,9})$/.exec(chunker)?.[1])
  if (bytes >= leastChunkBytes && bytes <= mostChunkBytes) return bytes
  throw notDone(`chunker=${chunker}`, `it is size-N, with N from ${leastChunkBytes} to ${mostChunkBytes}`)
}

export function numberOf(given: GivenOptions, name: string): number | undefined {
  const text = given.get(name)
  if (text === undefined) return undefined
  const value = text.trim() === '' ? Number.NaN : Number(text)
  if (!Number.isSafeInteger(value)) throw badCall(`${name}=${text} is not a number`)
  return value
}
