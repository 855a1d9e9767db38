#!/usr/bin/env node
// Asks a gateway of this machine for its readiness, at the address in CIDGATE_ADMIN: host:port or
// unix:/path/to.sock. For the health check of a container, which runs every few seconds: `cidgate
// status` also reads the configuration, and costs ten times as much. Exits with 0 if ready,
// otherwise with 1 and the reason.
import { request } from 'node:http'

// Docker ends it after its own `--timeout`.
const maxMs = 10_000

/** A wildcard address is reached by loopback. Undefined for an invalid address. */
function placeOf(text) {
  const [, path] = /^unix:(\/.*?)(?:,mode=0?[0-7]{3})?$/s.exec(text) ?? []
  if (path !== undefined) return { socketPath: path }
  const [, v6, name = '', port] = /^(?:\[([0-9a-fA-F:.]+)\]|([^:[\]\s]*)):(\d{1,5})$/.exec(text) ?? []
  if (port === undefined) return undefined
  const host = v6 ?? name
  const near = host === '' || host === '::' ? '::1' : host === '0.0.0.0' ? '127.0.0.1' : host
  return { host: near, port: Number(port) }
}

function end(why) {
  if (why !== undefined) process.stderr.write(`healthcheck: ${why}\n`)
  process.exit(why === undefined ? 0 : 1)
}

// Empty counts as unset, as for the gateway: compose passes missing variables as empty.
const admin = process.env.CIDGATE_ADMIN || '127.0.0.1:8081'
const place = placeOf(admin)
if (!place)
  end(
    `CIDGATE_ADMIN is ${admin}, which is no address: there is nothing to ask (without one, run the container with --no-healthcheck)`,
  )
setTimeout(() => end(`${admin} did not answer in time`), maxMs)
const asked = request({ ...place, path: '/readyz', headers: { host: 'localhost' } }, ({ statusCode }) =>
  end(statusCode === 200 ? undefined : `${admin} says ${statusCode}`),
)
asked.on('error', (error) => end(`${admin}: ${error.message || error.code}`))
asked.end()
