// Refuses uploads without a token on a public address, unless the operator confirms them, because
// uploads are stored permanently.
import type { Complaint } from '../complaints.ts'
import { type Address, addressText, listensOnLoopback } from '../values/address.ts'

type Sections = {
  readonly listen: Address
  readonly upload: { readonly auth: unknown; readonly forwardTo?: unknown }
  readonly pinning: { readonly providers: readonly unknown[] }
}

/**
 * Only for a gateway with its own listener: a program that mounts the router decides which clients
 * reach it.
 */
export function openUploads({ listen, upload, pinning }: Sections): Complaint[] {
  const takesUploads = upload.forwardTo !== undefined || pinning.providers.length > 0
  if (upload.auth !== 'none' || !takesUploads || listensOnLoopback(listen)) return []
  const what = `every client that reaches ${addressText(listen)} could upload, and fill the disk (expected { tokens: [...] }, or open if that is meant)`
  return [{ path: ['upload', 'auth'], what }]
}
