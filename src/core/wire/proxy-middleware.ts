// http-proxy-middleware is loaded where the configuration forwards something (`proxy`, `upload.through`): it takes time of each
// start and memory of each process. A gateway is made at once, so it is required and not imported.
import { createRequire } from 'node:module'

export const loadProxyMiddleware = () =>
  createRequire(import.meta.url)('http-proxy-middleware') as typeof import('http-proxy-middleware')
