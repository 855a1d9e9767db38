// A content path in the configuration: /ipfs/<cid>[/<path>], or /ipns/<name>.
import { z } from 'zod'
import { parseCid, parseKey } from '../../core/cid.ts'

const expected = 'expected /ipfs/<cid>[/<path>] or /ipns/<name>'

export const domain = /^[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*\.?$/

/** Validated as by the gateway, so that a mistake is found at startup. */
function isContentPath(text: string): boolean {
  const [namespace, root = '', ...rest] = text.split('/').filter((part) => part !== '')
  if (rest.some((part) => part === '.' || part === '..')) return false
  if (namespace === 'ipfs') return parseCid(root) !== undefined
  return parseKey(root) !== undefined || domain.test(root)
}

export const contentPath = () =>
  z
    .string()
    .regex(/^\/ip[fn]s\/[^/]/, { error: expected, abort: true })
    .refine(isContentPath, { error: expected })
