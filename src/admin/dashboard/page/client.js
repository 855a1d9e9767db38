// Requests to the admin address that served this page: the status each second, and the operator's
// actions. A required token is kept for the lifetime of the tab.

const key = 'cidgate-admin-token'
const everyMs = 1_000
const statusMs = 15_000
/** A read waits for the gateway's own timeout, an action for the disk. */
const actionMs = 120_000

/** @returns {readonly (readonly [name: string, value: string])[]} */
function proof() {
  const token = sessionStorage.getItem(key)
  return token ? [['Authorization', `Bearer ${token}`]] : []
}

/** @param {string} path @param {RequestInit} [options] @param {number} [timeoutMs] */
export function ask(path, options = {}, timeoutMs = actionMs) {
  const headers = new Headers(options.headers)
  for (const [name, value] of proof()) headers.set(name, value)
  return fetch(path, { cache: 'no-store', ...options, headers, signal: AbortSignal.timeout(timeoutMs) })
}

/**
 * Sends a body and reports the sent bytes, which `fetch` does not. The gateway itself ends a
 * stalled upload.
 * @param {string} path
 * @param {FormData} body
 * @param {{ readonly signal: AbortSignal, readonly onProgress: (sent: number, all: number) => void }} how
 * @returns {Promise<Response>}
 */
export function send(path, body, { signal, onProgress }) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest()
    request.open('POST', path)
    for (const [name, value] of proof()) request.setRequestHeader(name, value)
    request.upload.addEventListener('progress', ({ loaded, total }) => onProgress(loaded, total))
    request.addEventListener('load', () => resolve(new Response(request.responseText, { status: request.status })))
    request.addEventListener('error', () => reject(new Error('the upload broke off; try again')))
    request.addEventListener('abort', () => reject(new Error('the upload was stopped')))
    signal.addEventListener('abort', () => request.abort(), { once: true })
    request.send(body)
  })
}

/** @param {string} token */
export const useToken = (token) => sessionStorage.setItem(key, token)

/** The reason in an error response. @param {Response} answer */
export async function said(answer) {
  const text = await answer.text()
  try {
    return String(JSON.parse(text).detail ?? text)
  } catch {
    return text.slice(0, 300) || `status ${answer.status}`
  }
}

/**
 * @param {{
 *   readonly onStatus: (status: import('../shape.ts').Status, serverAt: number) => void,
 *   readonly onRefused: (why: string) => void,
 *   readonly onSilent: (why: string) => void,
 * }} to
 * @returns {() => Promise<void>} asks at once
 */
export function watchStatus({ onStatus, onRefused, onSilent }) {
  /** @type {import('../shape.ts').Status | undefined} */
  let last
  let tag = ''
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer
  let isAsking = false

  async function poll() {
    const answer = await ask('/status', tag === '' ? {} : { headers: { 'If-None-Match': tag } }, statusMs)
    if (answer.status === 401 || answer.status === 403) return onRefused(await said(answer))
    if (answer.status === 304 && last) return onStatus(last, serverTime(answer))
    if (!answer.ok) return onSilent(await said(answer))
    tag = answer.headers.get('ETag') ?? ''
    last = await answer.json()
    if (last) onStatus(last, serverTime(answer))
  }

  async function again() {
    clearTimeout(timer)
    if (isAsking || document.hidden) return
    isAsking = true
    try {
      await poll()
    } catch (error) {
      onSilent(error instanceof Error ? error.message : String(error))
    }
    isAsking = false
    timer = setTimeout(again, everyMs)
  }
  // A page in the background does not poll.
  document.addEventListener('visibilitychange', again)
  void again()
  return again
}

/** The clock of the gateway may differ from that of this machine. @param {Response} answer */
const serverTime = (answer) => Date.parse(answer.headers.get('Date') ?? '') || Date.now()
