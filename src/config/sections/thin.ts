// Refuses options that do nothing in thin mode: the operator who wrote them expects an effect.
import type { z } from 'zod'

type ThinSections = {
  readonly upload: { readonly through?: unknown; readonly rpc: boolean }
  readonly pinning: {
    readonly confirm: number | 'all'
    readonly queue: boolean
    readonly providers: readonly { readonly use: string }[]
  }
}

export function refuseBesideThrough({ upload, pinning }: ThinSections, context: z.core.$RefinementCtx): void {
  if (upload.through === undefined) return
  const refuse = (path: (string | number)[], message: string) => context.addIssue({ code: 'custom', path, message })
  if (upload.rpc)
    refuse(
      ['upload', 'rpc'],
      'expected false beside `upload.through`: its uploads are kept here, and thin mode keeps none',
    )
  if (pinning.confirm !== 1) refuse(['pinning', 'confirm'], 'expected nothing else than 1 beside `upload.through`')
  if (pinning.queue) refuse(['pinning', 'queue'], 'expected false beside `upload.through`, which has no queue')
  for (const [index, { use }] of pinning.providers.entries()) {
    // An embedded provider may hold earlier uploads, and is read.
    if (use === 'embedded') continue
    const message = 'gets nothing beside `upload.through` (expected no provider, or an embedded one to be read)'
    refuse(['pinning', 'providers', index], message)
  }
}
