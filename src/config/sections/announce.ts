// The `announce:` section: the indexers to which pins are announced.
import { isIP } from 'node:net'
import { z } from 'zod'
import { duration } from '../../core/units.ts'

/** `indexer`: the options of one. */
export const announce = <Indexer extends z.ZodType>(indexer: Indexer) =>
  z
    .union(
      [
        z.literal(false),
        z.strictObject({
          indexers: z
            .array(indexer)
            .min(1)
            .max(8)
            .prefault([{ url: 'https://cid.contact' }] as z.input<z.ZodArray<Indexer>>)
            .describe('Who is told, and asked whether it took the chain.'),
          every: duration()
            .prefault('1m')
            .describe('How long what was pinned and unpinned is gathered before it is published.'),
          entries: z
            .enum(['roots', 'blocks'])
            .default('roots')
            .describe('roots: the CIDs that uploads were answered with. blocks: every block below them, too.'),
        }),
      ],
      { error: 'expected false, or a mapping of indexers, every and entries; {} for the defaults' },
    )
    .default(false)
    .describe(
      'Publishes what is pinned on this disk to indexers (IPNI), under `public`, so that Kubo, rainbow, helia and lassie find it. All of it becomes public. The key is identity.pem in the data folder; of several instances under one name one announces.',
    )

type Sections = {
  readonly announce: unknown
  readonly public?: string | undefined
  readonly pinning: { readonly providers: readonly { readonly use: string }[] }
}

export function refuseAnnouncingNowhere(
  { announce: said, public: address, pinning }: Sections,
  context: z.RefinementCtx,
): void {
  if (said === false) return
  const issue = (message: string, path: string[]) => context.addIssue({ code: 'custom', path, message })
  if (address === undefined)
    return issue('others could not reach this gateway (expected `public`, its https address)', ['announce'])
  const { protocol, hostname } = new URL(address)
  // Plain HTTP is for tests on one machine: nodes accept it at literal addresses only.
  if (protocol !== 'https:' && isIP(hostname.replace(/^\[|\]$/g, '')) === 0)
    issue('other nodes ask a name over https alone (expected https://…)', ['public'])
  if (!pinning.providers.some(({ use }) => use === 'embedded'))
    issue('nothing is kept on this disk that could be announced (expected an `embedded` provider)', ['announce'])
}
