// Checks that thin mode's service answers. The probe sends nothing that the service would keep, so it cannot test our token.
import { Failure } from '../../core/failure.ts'
import { isKuboAddress, type Target } from './forward.ts'

/** Rejects with a Failure that tells the operator what to repair. */
export async function probeTarget({ url }: Pick<Target, 'url'>, userAgent: string, signal: AbortSignal): Promise<void> {
  const asked = new URL(url)
  const { host } = asked
  // Kubo's RPC answers nothing at its root, only its commands.
  if (isKuboAddress(asked)) asked.pathname = asked.pathname.replace(/(\/add)?\/?$/, '/version')
  const refused = (why: string, cause?: unknown) =>
    new Failure('unavailable', `${host} ${why}; look at it, and at upload.forwardTo`, { source: 'provider', cause })
  let status: number
  try {
    const answer = await fetch(asked, {
      method: 'OPTIONS',
      redirect: 'manual',
      headers: { 'user-agent': userAgent },
      signal,
    })
    await answer.body?.cancel()
    status = answer.status
  } catch (error) {
    signal.throwIfAborted()
    const { code } = ((error as Error).cause ?? {}) as NodeJS.ErrnoException
    throw refused(`cannot be reached (${code ?? 'unknown reason'})`, error)
  }
  if (status >= 500 || status === 404) throw refused(`answers ${status}`)
}
