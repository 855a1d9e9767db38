// The keys of wants: the bytes of the CID without its version and base.
import type { CID } from 'multiformats/cid'
import { blockKey } from '../../core/cid.ts'
import type { DagWant } from '../session.ts'

export const sameBytes = (one: CID, other: CID): boolean => blockKey(one) === blockKey(other)
export const pathOf = (want: DagWant | undefined): string => want?.segments.map(encodeURIComponent).join('/') ?? ''
export const dagKey = ({ cid, segments, scope, range }: DagWant): string =>
  [blockKey(cid), scope, range?.from ?? 0, range?.to ?? '', ...segments.map(encodeURIComponent)].join('/')
