// The `names:` section: DNS servers for DNSLinks, and lifetimes of results.
import { isIP } from 'node:net'
import { z } from 'zod'
import { duration } from '../../core/units.ts'
import { contentPath, domain } from '../values/content-path.ts'

const dnsServer = z.string().refine(isDnsServer, {
  error:
    'expected https://…/dns-query without a user or password, or the address of a DNS server such as 9.9.9.9 or [2620:fe::fe]:53',
})

function isDnsServer(text: string): boolean {
  if (/^https?:\/\//.test(text)) {
    const { username, password } = URL.parse(text) ?? { username: 'none' }
    return username === '' && password === ''
  }
  if (isIP(text) !== 0) return true
  const [, bracketed, plain, port] = /^(?:\[([^\]]+)\]|([^:]+))(?::(\d{1,5}))?$/.exec(text) ?? []
  return isIP(bracketed ?? plain ?? '') !== 0 && Number(port ?? 53) <= 65_535
}

const links = z
  .record(z.string().regex(domain, { error: 'expected a domain such as docs.house.example' }), contentPath())
  .superRefine((all, context) => {
    const spelled = new Set<string>()
    for (const name of Object.keys(all)) {
      const one = name.toLowerCase().replace(/\.$/, '')
      if (spelled.has(one)) context.addIssue({ code: 'custom', path: [name], message: 'expected each domain once' })
      spelled.add(one)
    }
  })

export const names = z
  .strictObject({
    dns: z
      .union([z.literal('system'), z.array(dnsServer).min(1)], {
        error: 'expected system, or a list of https://…/dns-query and addresses of DNS servers',
      })
      .default('system')
      .describe('DNS servers for DNSLink, asked one after another until one answers.'),
    static: links
      .default({})
      .describe('Domains with a fixed target, not looked up in DNS: for tests and internal names.'),
    dnslinkSites: z
      .boolean()
      .default(false)
      .describe('Whether a host with a DNSLink serves that site: https://<domain>/ is /ipns/<domain>/.'),
    timeout: duration().prefault('5s').describe('For each step from a name to content; then the answer is 404.'),
    ttl: z
      .strictObject({
        min: duration().prefault('5s').describe('The shortest time between two lookups of a name.'),
        max: duration().prefault('1h').describe('The longest time for which a record is used, whatever its own TTL.'),
      })
      .refine(({ min, max }) => min <= max, { path: ['max'], error: 'expected at least as long as `min`' })
      .prefault({})
      .describe('Bounds of the TTL that a record or DNS gives. Past its end a record is never believed.'),
    negativeTtl: duration().prefault('5s').describe('How long a failed lookup is cached.'),
    maxEntries: z
      .int()
      .min(1)
      .default(10_000)
      .describe('Names in the cache; records of keys are also kept in the database.'),
  })
  .prefault({})
