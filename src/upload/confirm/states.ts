// The states of an upload from the moment when it is whole here to its end: the whole table, drawn in docs/uploads.md. Only
// delivery.ts changes a state.

export type PinState =
  | 'asking' // providers are asked; the client waits
  | 'enough' // enough providers hold it; it waits for the others of its request, and the tiers are filled
  | 'accepting' // it is confirmed; the journal entry is being written
  | 'repeating' // a client sent an accepted file again: providers are asked again, the client waits, nothing is undone
  | 'accepted' // the client got its 200; work goes on until every provider holds it and no shared tier lacks it
  | 'undoing' // it cannot be confirmed: its pins and files here are being removed
  | 'undone'
  | 'settled' // every provider holds it
  | 'dropped' // an operator let the last copy go
  | 'replaced' // a newer upload of the same file took its place
  | 'left' // the gateway stops: the next one resumes its journal entry

export type Happening =
  | 'enough' // enough providers hold it, or will
  | 'ready' // enough hold the others of its request too, and the tiers are filled
  | 'written' // the journal entry says that it is accepted
  | 'failed'
  | 'undone'
  | 'settled'
  | 'dropped'
  | 'replaced'
  | 'stopped'

type Transitions = Readonly<Partial<Record<Happening, PinState>>>

export const transitions: Readonly<Record<PinState, Transitions>> = {
  asking: { enough: 'enough', failed: 'undoing', stopped: 'left' },
  enough: { ready: 'accepting', failed: 'undoing', stopped: 'left' },
  accepting: { written: 'accepted', failed: 'undoing', stopped: 'left' },
  // Once acknowledged, a later failed attempt must not undo it.
  repeating: { enough: 'repeating', ready: 'repeating', written: 'accepted', failed: 'accepted', stopped: 'left' },
  accepted: { settled: 'settled', dropped: 'dropped', replaced: 'replaced', stopped: 'left' },
  undoing: { undone: 'undone', stopped: 'left' },
  undone: {},
  settled: {},
  dropped: {},
  replaced: {},
  left: {},
}

/** The first state of an upload just received, or left by an earlier process; `isAsked`: a client waits for it. */
export const firstState = (isAccepted: boolean, isAsked: boolean): PinState => {
  if (!isAccepted) return 'asking'
  return isAsked ? 'repeating' : 'accepted'
}

export function next(state: PinState, happening: Happening): PinState {
  const to = transitions[state][happening]
  if (!to) throw new Error(`an upload that is ${state} cannot be ${happening}`)
  return to
}

type Meaning = {
  /** A client waits for its answer. */
  readonly isAwaited: boolean
  /** The journal entry says that it is accepted: a process that finds it there resumes it. */
  readonly counts: boolean
  /** Its journal entry is not written any more. */
  readonly isOver: boolean
  /** What the journal does with its entry in this state; undefined while the delivery runs. */
  readonly journal?: 'remove' | 'record' | 'keep'
}

const awaited: Meaning = { isAwaited: true, counts: false, isOver: false }
const over: Meaning = { isAwaited: false, counts: false, isOver: true }

export const meanings: Readonly<Record<PinState, Meaning>> = {
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
