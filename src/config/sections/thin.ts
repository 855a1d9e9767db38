// Refuses options without effect in thin mode, because the operator expects one.
import type { z } from 'zod'

type ThinSections = {
  readonly upload: { readonly forwardTo?: unknown; readonly kuboRpc: boolean }
  readonly pinning: {
    readonly minConfirmations: number | 'all'
    readonly acceptWhileUnavailable: boolean
    readonly providers: readonly { readonly use: string }[]
  }
}

export function refuseBesideThrough({ upload, pinning }: ThinSections, context: z.core.$RefinementCtx): void {
  if (upload.forwardTo === undefined) return
  const refuse = (path: (string | number)[], message: string) => context.addIssue({ code: 'custom', path, message })
  if (upload.kuboRpc)
    refuse(
      ['upload', 'kuboRpc'],
      'expected false beside `upload.forwardTo`: its uploads are kept here, and thin mode keeps none',
    )
  if (pinning.minConfirmations !== 1)
    refuse(['pinning', 'minConfirmations'], 'expected nothing else than 1 beside `upload.forwardTo`')
  if (pinning.acceptWhileUnavailable)
    refuse(['pinning', 'acceptWhileUnavailable'], 'expected false beside `upload.forwardTo`, which has no queue')
  for (const [index, { use }] of pinning.providers.entries()) {
    // An embedded provider may hold earlier uploads, which are read.
    if (use === 'embedded') continue
    const message = 'gets nothing beside `upload.forwardTo` (expected no provider, or an embedded one to be read)'
    refuse(['pinning', 'providers', index], message)
  }
}
