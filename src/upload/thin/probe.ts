// Whether the service of thin mode is there. Nothing is sent to it that it would keep, so that it says nothing of our token.
import { Failure } from '../../core/failure.ts'
import { isKuboAddress, type Target } from './forward.ts'

/** Rejects with a Failure that says what to mend. */
export async function probeTarget({ url }: Pick<Target, 'url'>, userAgent: string, signal: AbortSignal): Promise<void> {
  const asked = new URL(url)
  const { host } = asked
  // Below the root of Kubo's RPC there are only its commands.
  if (isKuboAddress(asked)) asked.pathname = asked.pathname.replace(/(\/add)?\/?$/, '/version')
  const refused = (why: string, cause?: unknown) =>
    new Failure('unavailable', `${host} ${why}; look at it, and at upload.through`, { source: 'provider', cause })
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
