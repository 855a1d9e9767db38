// The options of Kubo's `add` as its 0.42 knows them, by name and by alias. What would give another CID, or ask for what is
// not here, is refused; what changes nothing of the files that came is let pass, and so is what Kubo itself passes over.
import { type Profile, profiles } from '../../backends/pinning/contract.ts'
import { badCall, isOn, type Said, saidIn } from './kubo-call.ts'

export type AddQuery = {
  /** Undefined: that of the configuration. */
  readonly profile: Profile | undefined
  readonly isOnlyHashed: boolean
  /** CIDs are told as v1, whichever they are. */
  readonly isUpgraded: boolean
  readonly isSilent: boolean
}

type Shape = { readonly version: number; readonly chunker: string; readonly links: number; readonly isRaw: boolean }

const shapes: Readonly<Record<Profile, Shape>> = {
  'unixfs-v1-2025': { version: 1, chunker: 'size-1048576', links: 1024, isRaw: true },
  'unixfs-v0-2015': { version: 0, chunker: 'size-262144', links: 174, isRaw: false },
}

const aliases: Readonly<Record<string, string>> = {
  n: 'only-hash',
  w: 'wrap-with-directory',
  s: 'chunker',
  t: 'trickle',
  enc: 'encoding',
}

/** On or off, and only off is done here. */
const off: Readonly<Record<string, string>> = {
  'wrap-with-directory': 'files are added without a directory around them',
  trickle: 'files are laid out balanced',
  inline: 'small blocks are stored as any other',
  nocopy: 'files are kept here, not where they came from',
  'preserve-mode': 'files have no mode here',
  'preserve-mtime': 'files have no modification time here',
}

/** Refused with whatever value. */
const never: Readonly<Record<string, string>> = {
  mode: 'files have no mode here',
  mtime: 'files have no modification time here',
  'mtime-nsecs': 'files have no modification time here',
  'to-files': 'there is no MFS here',
  'pin-name': 'pins have no names here',
}

/** The one way in which it is done here; empty is as good as absent. */
const only: Readonly<Record<string, readonly string[]>> = {
  hash: ['sha2-256'],
  encoding: ['json'],
  'cid-base': ['base32'],
}

export function readAddQuery(query: URLSearchParams): AddQuery {
  const said = saidIn(query, aliases)
  for (const [name, why] of Object.entries(off)) if (isOn(said, name, false)) throw notDone(`${name}=true`, why)
  for (const [name, why] of Object.entries(never)) if (said.get(name)) throw notDone(name, why)
  for (const [name, values] of Object.entries(only)) {
    const value = said.get(name)
    if (value && !values.includes(value.toLowerCase()))
      throw notDone(`${name}=${value}`, `it is ${values.join(' or ')}`)
  }
  return {
    profile: profileOf(said),
    isOnlyHashed: isOn(said, 'only-hash', false),
    isUpgraded: Boolean(said.get('cid-base')) || isOn(said, 'upgrade-cidv0-in-output', false),
    isSilent: isOn(said, 'silent', false),
  }
}

/** The first one that has all that was said of it. */
function profileOf(said: Said): Profile | undefined {
  const version = numberOf(said, 'cid-version')
  if (version !== undefined && version !== 0 && version !== 1) throw badCall(`cid-version=${version} is not 0 or 1`)
  const links = numberOf(said, 'max-file-links')
  const chunker = said.get('chunker')?.replace(/^default$/, shapes['unixfs-v0-2015'].chunker)
  const isRaw = said.has('raw-leaves') ? isOn(said, 'raw-leaves', false) : undefined
  if (version === undefined && links === undefined && !chunker && isRaw === undefined) return undefined
  const fits = profiles.find((profile) => {
    const shape = shapes[profile]
    return (
      (version ?? shape.version) === shape.version &&
      (links ?? shape.links) === shape.links &&
      (chunker || shape.chunker) === shape.chunker &&
      (isRaw ?? shape.isRaw) === shape.isRaw
    )
  })
  if (fits) return fits
  throw badCall(
    `cid-version, raw-leaves, chunker and max-file-links are here ${profiles.map(described).join(', or ')}; ask for one of these`,
  )
}

function described(profile: Profile): string {
  const { version, isRaw, chunker, links } = shapes[profile]
  return `${version}, ${isRaw}, ${chunker} and ${links} (${profile})`
}

function numberOf(said: Said, name: string): number | undefined {
  const text = said.get(name)
  if (text === undefined) return undefined
  const value = text.trim() === '' ? Number.NaN : Number(text)
  if (!Number.isSafeInteger(value)) throw badCall(`${name}=${text} is not a number`)
  return value
}

const notDone = (what: string, why: string) => badCall(`${what} is not done here: ${why}. Leave it out`)
