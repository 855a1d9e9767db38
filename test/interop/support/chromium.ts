// Drives Debian's Chromium by its own protocol: a page that lives on, what it logs and whom it asks, and pictures of it.
import { rm } from 'node:fs/promises'
import { type Running, run, tempFolder } from './processes.ts'

export type Size = { readonly width: number; readonly height: number; readonly isDark?: boolean }

export interface Page {
  /** Errors in the console, those that nobody caught, and what the browser itself complains of. */
  readonly complaints: readonly string[]
  /** The addresses of all requests. */
  readonly requests: readonly string[]
  /** Resolves when the page and its scripts are loaded. */
  open(url: string): Promise<void>
  /** The value of an expression; a promise is waited for. */
  evaluate<Value>(expression: string): Promise<Value>
  /** Resolves with the value as soon as it is true. */
  until<Value>(expression: string, withinMs?: number): Promise<Value>
  press(key: string): Promise<void>
  /** Drops files and folders of this machine where the element is. */
  drop(selector: string, paths: readonly string[]): Promise<void>
  look(size: Size): Promise<void>
  /** All of the page as a PNG. */
  picture(): Promise<Buffer>
}

export interface Browser {
  page(): Promise<Page>
  stop(): Promise<void>
}

type Message = {
  readonly id?: number
  readonly method?: string
  readonly sessionId?: string
  readonly params?: unknown
  readonly result?: unknown
  readonly error?: { readonly message: string }
}
type Send = (method: string, params?: object, sessionId?: string) => Promise<unknown>

const answersWithinMs = 60_000

export async function startChromium(): Promise<Browser> {
  const profile = await tempFolder()
  const flags = ['--headless', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--hide-scrollbars']
  let process: Running | undefined
  try {
    process = await run({
      command: 'chromium',
      args: [...flags, '--no-first-run', '--remote-debugging-port=0', `--user-data-dir=${profile.path}`, 'about:blank'],
      isReady: (output) => /DevTools listening on ws:/.test(output),
    })
    const address = /DevTools listening on (ws:\S+)/.exec(process.output())?.[1] ?? ''
    const { send, listen, close } = await connect(address)
    const { stop } = process
    return {
      page: () => openPage(send, listen),
      async stop() {
        close()
        await stop()
        await forget(profile.path)
      },
    }
  } catch (error) {
    await process?.stop()
    await forget(profile.path)
    throw error
  }
}

/** Its children write for a moment longer than it lives; what they leave is no failure of a test. */
const forget = (folder: string): Promise<void> =>
  rm(folder, { recursive: true, force: true, maxRetries: 10, retryDelay: 100 }).catch(() => {})

async function connect(address: string) {
  const socket = new WebSocket(address)
  await new Promise<void>((resolve, reject) => {
    socket.addEventListener('open', () => resolve(), { once: true })
    socket.addEventListener('error', () => reject(new Error(`chromium does not answer at ${address}`)), { once: true })
  })
  const waiting = new Map<number, { resolve: (value: unknown) => void; reject: (error: Error) => void }>()
  const listeners = new Set<(message: Message) => void>()
  let last = 0
  socket.addEventListener('message', ({ data }) => {
    const message = JSON.parse(String(data)) as Message
    if (message.id === undefined) {
      for (const listener of listeners) listener(message)
      return
    }
    const asked = waiting.get(message.id)
    waiting.delete(message.id)
    if (message.error) asked?.reject(new Error(message.error.message))
    else asked?.resolve(message.result)
  })
  socket.addEventListener('close', () => {
    for (const { reject } of waiting.values()) reject(new Error('chromium closed its connection'))
  })
  const send: Send = (method, params = {}, sessionId = undefined) =>
    new Promise((resolve, reject) => {
      const id = ++last
      const timer = setTimeout(() => reject(new Error(`chromium does not answer ${method}`)), answersWithinMs)
      const settled = <Value>(then: (value: Value) => void) => {
        return (value: Value) => {
          clearTimeout(timer)
          waiting.delete(id)
          then(value)
        }
      }
      waiting.set(id, { resolve: settled(resolve), reject: settled(reject) })
      socket.send(JSON.stringify({ id, method, params, ...(sessionId && { sessionId }) }))
    })
  return {
    send,
    listen: (listener: (message: Message) => void) => listeners.add(listener),
    close: () => socket.close(),
  }
}

async function openPage(send: Send, listen: (listener: (message: Message) => void) => void): Promise<Page> {
  const { targetId } = (await send('Target.createTarget', { url: 'about:blank' })) as { targetId: string }
  const { sessionId } = (await send('Target.attachToTarget', { targetId, flatten: true })) as { sessionId: string }
  const tell = (method: string, params?: object) => send(method, params, sessionId)
  const complaints: string[] = []
  const requests: string[] = []
  let onLoaded = () => {}
  listen((message) => {
    if (message.sessionId !== sessionId) return
    const complaint = complaintIn(message)
    if (complaint !== undefined) complaints.push(complaint)
    const { request } = (message.params ?? {}) as { request?: { url: string } }
    if (message.method === 'Network.requestWillBeSent' && request) requests.push(request.url)
    if (message.method === 'Page.loadEventFired') onLoaded()
  })
  for (const domain of ['Page', 'Runtime', 'Log', 'Network']) await tell(`${domain}.enable`)

  async function evaluate<Value>(expression: string): Promise<Value> {
    const said = (await tell('Runtime.evaluate', { expression, awaitPromise: true, returnByValue: true })) as {
      result: { value: Value }
      exceptionDetails?: { text: string; exception?: { description?: string } }
    }
    const { exceptionDetails: failed } = said
    if (failed) throw new Error(`in the page: ${failed.exception?.description ?? failed.text}`)
    return said.result.value
  }

  return {
    complaints,
    requests,
    evaluate,
    async open(url) {
      const loaded = new Promise<void>((resolve) => {
        onLoaded = resolve
      })
      await tell('Page.navigate', { url })
      await loaded
    },
    async until<Value>(expression: string, withinMs = answersWithinMs): Promise<Value> {
      const until = Date.now() + withinMs
      for (;;) {
        const value = await evaluate<Value>(expression)
        if (value) return value
        if (Date.now() > until) {
          const text = await evaluate<string>('document.body.innerText')
          throw new Error(`not so within ${withinMs} ms: ${expression}\n${complaints.join('\n')}\n${text}`)
        }
        await new Promise((resolve) => setTimeout(resolve, 50))
      }
    },
    async press(key) {
      const code = key === 'Enter' ? { windowsVirtualKeyCode: 13, text: '\r' } : { windowsVirtualKeyCode: 9 }
      await tell('Input.dispatchKeyEvent', { type: 'keyDown', key, code: key, ...code })
      await tell('Input.dispatchKeyEvent', { type: 'keyUp', key, code: key, ...code })
    },
    async drop(selector, files) {
      const of = `document.querySelector(${JSON.stringify(selector)})`
      const at = await evaluate<{ x: number; y: number }>(
        `(() => { ${of}.scrollIntoView({ block: 'center' }); const { x, y } = ${of}.getBoundingClientRect(); return { x: x + 5, y: y + 5 } })()`,
      )
      const data = { items: [], files, dragOperationsMask: 1 }
      for (const type of ['dragEnter', 'dragOver', 'drop']) await tell('Input.dispatchDragEvent', { type, ...at, data })
    },
    async look({ width, height, isDark = false }) {
      await tell('Emulation.setDeviceMetricsOverride', { width, height, deviceScaleFactor: 1, mobile: width < 600 })
      const features = [{ name: 'prefers-color-scheme', value: isDark ? 'dark' : 'light' }]
      await tell('Emulation.setEmulatedMedia', { features })
    },
    async picture() {
      const [width, height] = await evaluate<[number, number]>(
        '[innerWidth, Math.max(innerHeight, document.documentElement.scrollHeight)]',
      )
      const clip = { x: 0, y: 0, width, height, scale: 1 }
      const how = { format: 'png', captureBeyondViewport: true, clip }
      const { data } = (await tell('Page.captureScreenshot', how)) as { data: string }
      return Buffer.from(data, 'base64')
    },
  }
}

function complaintIn({ method, params }: Message): string | undefined {
  const said = (params ?? {}) as {
    type?: string
    args?: readonly { value?: unknown; description?: string }[]
    entry?: { level: string; text: string; url?: string }
    exceptionDetails?: { text: string; exception?: { description?: string } }
  }
  if (method === 'Runtime.exceptionThrown')
    return said.exceptionDetails?.exception?.description ?? said.exceptionDetails?.text
  if (method === 'Runtime.consoleAPICalled' && said.type === 'error')
    return said.args?.map(({ value, description }) => String(value ?? description)).join(' ')
  if (method === 'Log.entryAdded' && said.entry?.level === 'error') return `${said.entry.text} ${said.entry.url ?? ''}`
  return undefined
}
