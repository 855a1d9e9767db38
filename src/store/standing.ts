// What a failed attempt at a holder means for the next one. Nothing of Node is imported here, so that the scripts of the
// dashboard can be checked against it.
import type { Facts } from '../core/failure.ts'

export type FailureClass = Facts['class']
