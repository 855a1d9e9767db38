// Configuration keys that were renamed: an old one is refused with the name of the new one.
export const renamedKeys: Readonly<Record<string, string>> = {
  'upload.idle': 'upload.idleTimeout',
  'upload.mostBytes': 'upload.maxPendingBytes',
  'upload.rpc': 'upload.kuboRpc',
  'upload.through': 'upload.forwardTo',
  'pinning.confirm': 'pinning.minConfirmations',
  'pinning.queue': 'pinning.acceptWhileUnavailable',
  'pinning.providers[].connect': 'pinning.providers[].connectTimeout',
  'pinning.providers[].how': 'pinning.providers[].uploadAs',
  'pinning.providers[].idle': 'pinning.providers[].idleTimeout',
  'pinning.providers[].patience': 'pinning.providers[].cidTimeout',
  'pinning.providers[].pieceBytes': 'pinning.providers[].chunkBytes',
  'retrieval.blockDeadline': 'retrieval.blockTimeout',
  'retrieval.deadline': 'retrieval.timeout',
  'retrieval.hedge': 'retrieval.hedgeDelay',
  'retrieval.keepLooking': 'retrieval.backgroundSearch',
  'retrieval.notFound': 'retrieval.negativeCache',
  'retrieval.negativeCache.first': 'retrieval.negativeCache.initialTtl',
  'retrieval.negativeCache.most': 'retrieval.negativeCache.maxTtl',
  'retrieval.upstreams[].connect': 'retrieval.upstreams[].connectTimeout',
  'retrieval.upstreams[].connections': 'retrieval.upstreams[].maxConnections',
  'retrieval.upstreams[].firstByte': 'retrieval.upstreams[].firstByteTimeout',
  'retrieval.upstreams[].idle': 'retrieval.upstreams[].bodyTimeout',
  'cache.fillBytes': 'cache.writeQueueBytes',
  'cache.hot': 'cache.responses',
  'cache.responses.maxItem': 'cache.responses.maxItemBytes',
  'cache.tiers[].missing403': 'cache.tiers[].treat403AsMissing',
  'names.deadline': 'names.timeout',
  'names.links': 'names.static',
  'names.most': 'names.maxEntries',
  'names.notFound': 'names.negativeTtl',
  'names.sites': 'names.dnslinkSites',
  'names.ttl.least': 'names.ttl.min',
  'names.ttl.most': 'names.ttl.max',
  'limits.connections': 'limits.maxConnections',
  'limits.connectionsPerClient': 'limits.maxConnectionsPerClient',
  'limits.grace': 'limits.shutdownTimeout',
  'limits.headers': 'limits.headersTimeout',
  'limits.inFlight': 'limits.maxConcurrentRequests',
  'limits.keepAlive': 'limits.keepAliveTimeout',
  'limits.lameDuck': 'limits.shutdownDelay',
  'limits.loopDelay': 'limits.maxEventLoopDelay',
  'limits.sharedBy': 'limits.sharedStore',
  'limits.stalled': 'limits.writeTimeout',
  'limits.unread': 'limits.maxPendingResponseBytes',
}

/**
 * The path of the new key, with the list indexes of `path`; undefined if the key was not renamed.
 */
export function renamed(path: readonly PropertyKey[]): PropertyKey[] | undefined {
  const pattern = path.map((key) => (typeof key === 'number' ? '[]' : `.${String(key)}`)).join('')
  const old = pattern.slice(1)
  const name = Object.hasOwn(renamedKeys, old) ? renamedKeys[old] : undefined
  return name === undefined ? undefined : [...path.slice(0, -1), name.slice(name.lastIndexOf('.') + 1)]
}
