// How far an upload is between "it lies here whole" and its end: the whole table, drawn in docs/uploads.md. A delivery
// (delivery.ts) is the only one to follow it.

export type State =
  | 'asking' // providers are asked; the client waits
  | 'enough' // enough of them hold it; those it came with are waited for, and the tiers get it
  | 'accepting' // it counts; the journal is being told
  | 'repeating' // it counted before and came again: providers are asked anew, the client waits, nothing can be undone
  | 'accepted' // the client was told; it goes on until every provider holds it and no shared tier lacks it
  | 'undoing' // it cannot be confirmed: what it left here goes
  | 'undone'
  | 'settled' // every provider holds it
  | 'dropped' // an operator let the last copy go
  | 'replaced' // the same file came again, and goes on in its place
  | 'left' // the gateway stops: its entry in the journal is for the next one

export type Happening =
  | 'enough' // enough providers hold it, or will
  | 'ready' // so it is with those it came with, and the tiers have it
  | 'written' // the journal says that it counts
  | 'failed'
  | 'undone'
  | 'settled'
  | 'dropped'
  | 'replaced'
  | 'stopped'

type Row = Readonly<Partial<Record<Happening, State>>>

export const transitions: Readonly<Record<State, Row>> = {
  asking: { enough: 'enough', failed: 'undoing', stopped: 'left' },
  enough: { ready: 'accepting', failed: 'undoing', stopped: 'left' },
  accepting: { written: 'accepted', failed: 'undoing', stopped: 'left' },
  // The client was told once: what comes again may fail, and undoes nothing.
  repeating: { enough: 'repeating', ready: 'repeating', written: 'accepted', failed: 'accepted', stopped: 'left' },
  accepted: { settled: 'settled', dropped: 'dropped', replaced: 'replaced', stopped: 'left' },
  undoing: { undone: 'undone', stopped: 'left' },
  undone: {},
  settled: {},
  dropped: {},
  replaced: {},
  left: {},
}

/** Where one begins that was just received, or that an earlier process left; `isAsked`: a client waits for it. */
export const firstState = (isAccepted: boolean, isAsked: boolean): State => {
  if (!isAccepted) return 'asking'
  return isAsked ? 'repeating' : 'accepted'
}

export function next(state: State, happening: Happening): State {
  const to = transitions[state][happening]
  if (!to) throw new Error(`an upload that is ${state} cannot be ${happening}`)
  return to
}

type Meaning = {
  /** A client waits for its answer. */
  readonly isAwaited: boolean
  /** The entry in the journal says that it counts: a process that finds it there goes on with it. */
  readonly counts: boolean
  /** Nothing is written about it any more. */
  readonly isOver: boolean
  /** What the journal does with its entry once it is here; undefined while it lasts. */
  readonly journal?: 'remove' | 'record' | 'keep'
}

const awaited: Meaning = { isAwaited: true, counts: false, isOver: false }
const over: Meaning = { isAwaited: false, counts: false, isOver: true }

export const meanings: Readonly<Record<State, Meaning>> = {
  asking: awaited,
  enough: awaited,
  accepting: { ...awaited, counts: true },
  repeating: { ...awaited, counts: true },
  accepted: { isAwaited: false, counts: true, isOver: false },
  undoing: { isAwaited: true, counts: false, isOver: true, journal: 'remove' },
  undone: { ...over, journal: 'remove' },
  settled: { ...over, counts: true, journal: 'record' },
  dropped: { ...over, counts: true, journal: 'remove' },
  replaced: { ...over, counts: true, journal: 'remove' },
  left: { ...over, journal: 'keep' },
}
