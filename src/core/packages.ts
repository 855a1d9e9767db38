// Loads optional packages on first use, and names one that is not installed.

import { createRequire } from 'node:module'
import { Failure, isFailure } from './failure.ts'

export const isNotFound = (error: unknown): boolean =>
  error instanceof Error && 'code' in error && /^(ERR_)?MODULE_NOT_FOUND$/.test(String(error.code))

export const notInstalled = (name: string): string => `${name} is not installed; npm install ${name}`

/**
 * Resolves with the import; fails as `unsupported` if the package, or one it needs, is not
 * installed.
 */
export async function packageOf<T>(name: string, load: () => Promise<T>): Promise<T> {
  try {
    return await load()
  } catch (cause) {
    if (!isNotFound(cause)) throw cause
    throw new Failure('unsupported', notInstalled(name), { source: 'ours', cause })
  }
}

export const isMissingPackage = (error: unknown): error is Failure =>
  isFailure(error, 'unsupported') && isNotFound(error.cause)

export const loadProxyMiddleware = () =>
  createRequire(import.meta.url)('http-proxy-middleware') as typeof import('http-proxy-middleware')
