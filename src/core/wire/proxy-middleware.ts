// Loads http-proxy-middleware only if the configuration forwards requests (`proxy`,
// `upload.forwardTo`), since it costs startup time and memory. With require, because a gateway is
// created synchronously.
import { createRequire } from 'node:module'

export const loadProxyMiddleware = () =>
  createRequire(import.meta.url)('http-proxy-middleware') as typeof import('http-proxy-middleware')
