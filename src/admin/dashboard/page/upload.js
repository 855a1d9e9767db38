// Uploads chosen or dropped files and folders to the admin address, with progress, and shows their
// CIDs.
import { said, send } from './client.js'
import { at, badge, cid as cidOf, el, show, table, wordsOf } from './elements.js'
import { share, size } from './words.js'

/** @import { Status } from '../shape.ts' */

/** The gateway's limit for a directory: a larger drop is not read to its end. */
const maxFiles = 16_384

/** @typedef {readonly [file: File, name: string]} Named */

/**
 * Lists the files below a dropped entry, with their relative names.
 * @param {FileSystemEntry} entry
 * @returns {AsyncGenerator<Named>}
 */
async function* below(entry, before = '') {
  const name = before + entry.name
  if (entry.isFile) {
    const { promise, resolve, reject } = Promise.withResolvers()
    const one = /** @type {FileSystemFileEntry} */ (entry)
    one.file(resolve, reject)
    yield [await promise, name]
    return
  }
  const reader = /** @type {FileSystemDirectoryEntry} */ (entry).createReader()
  for (;;) {
    /** @type {PromiseWithResolvers<FileSystemEntry[]>} */
    const { promise, resolve, reject } = Promise.withResolvers()
    reader.readEntries(resolve, reject)
    const some = await promise
    if (some.length === 0) return
    for (const one of some) yield* below(one, `${name}/`)
  }
}

/** @returns {{ draw(status: Status): void }} */
export function startUpload() {
  const section = at('add')
  const bar = /** @type {HTMLProgressElement} */ (at('add-progress'))
  const result = at('add-said')
  /** @type {AbortController | undefined} */
  let running

  /** @param {readonly Named[]} files @param {boolean} isFolder */
  async function upload(files, isFolder) {
    if (files.length === 0) return tell('There is no file in it.')
    if (running) return tell('An upload is in progress; wait for it, or stop it first.')
    const own = new AbortController()
    running = own
    const body = new FormData()
    for (const [file, name] of files) body.append('data', file, name)
    const query = new URLSearchParams(isFolder ? { wrap: 'true' } : {})
    const [only] = files
    if (only && files.length === 1) query.set('name', only[1].slice(-85)) // at most 255 bytes of UTF-8
    let isSent = false
    bar.value = 0
    showProgress(true)
    show(result, el('p', {}, `Uploading ${named(files, isFolder)} …`))
    try {
      const answer = await send(`/add?${query}`, body, {
        signal: own.signal,
        onProgress(sent, all) {
          bar.value = all > 0 ? sent / all : 0
          show(at('add-sent'), `${size(sent)} of ${size(all)}, ${share(sent, all)}`)
          if (sent < all || isSent) return
          isSent = true
          show(result, el('p', {}, 'All is sent. The providers confirm it …'))
        },
      })
      if (!answer.ok) show(result, el('p', {}, badge('bad', `${answer.status}`), ` ${await said(answer)}`))
      else drawCids(files, (await answer.json()).cids, isFolder)
    } catch (error) {
      show(result, el('p', {}, own.signal.aborted ? 'Stopped: nothing was stored.' : wordsOf(error)))
    } finally {
      running = undefined
      showProgress(false)
    }
  }

  /** @param {readonly Named[]} files @param {readonly string[]} paths @param {boolean} isFolder */
  function drawCids(files, paths, isFolder) {
    /** @type {[string, string][]} */
    const rows = isFolder
      ? [[named(files, true), paths.at(-1) ?? '']]
      : files.map(([, name], index) => [name, paths[index] ?? ''])
    show(
      result,
      table(
        'Uploaded',
        ['Name', ['CID', 'wide'], ['Action', 'tight']],
        rows.map(([name, path]) => [
          name,
          cidOf(path.replace('/ipfs/', '')),
          el('button', { type: 'button', 'data-why': path }, 'Why'),
        ]),
      ),
    )
  }

  /** @param {boolean} isOn */
  function showProgress(isOn) {
    at('add-going').hidden = !isOn
    if (!isOn) show(at('add-sent'))
  }

  /** @param {string} text */
  const tell = (text) => show(result, el('p', {}, text))

  /** @param {DataTransfer} dropped */
  async function take({ items }) {
    const entries = Array.from(items, (item) => item.webkitGetAsEntry()).filter((entry) => entry !== null)
    const isFolder = entries.some((entry) => entry.isDirectory)
    /** @type {Named[]} */
    const files = []
    try {
      for (const entry of entries)
        for await (const one of below(entry)) {
          if (files.push(one) > maxFiles) return tell(`There are more than ${maxFiles} files in it.`)
        }
    } catch {
      return tell('This cannot be read. Choose it with the button instead.')
    }
    await upload(isFolder ? inOne(files) : files, isFolder)
  }

  for (const id of ['add-files', 'add-folder']) {
    const input = /** @type {HTMLInputElement} */ (at(id))
    input.addEventListener('change', () => {
      /** @type {Named[]} */
      const files = Array.from(input.files ?? [], (file) => [file, file.webkitRelativePath || file.name])
      input.value = ''
      const isFolder = id === 'add-folder'
      void upload(isFolder ? inOne(files) : files, isFolder)
    })
  }
  at('add-stop').addEventListener('click', () => running?.abort())
  // A drop outside of the drop zone would make the browser open the file.
  addEventListener('dragover', (event) => {
    event.preventDefault()
    section.classList.add('over')
  })
  addEventListener('dragleave', () => section.classList.remove('over'))
  addEventListener('drop', (event) => {
    event.preventDefault()
    section.classList.remove('over')
    if (section.hidden || !event.dataTransfer) return
    section.setAttribute('open', '')
    void take(event.dataTransfer)
  })

  return {
    draw({ takes }) {
      section.hidden = takes === undefined
      if (!takes) return
      show(at('add-how'), `Drop files or a folder on this page, or choose them. Up to ${size(takes.maxBytes)}.`)
    },
  }
}

/**
 * Uploads a single folder as `cidgate add` does: its files are directly below its CID.
 * @param {readonly Named[]} files
 * @returns {readonly Named[]}
 */
function inOne(files) {
  const tops = new Set(files.map(([, name]) => name.slice(0, name.indexOf('/') + 1)))
  const [top = ''] = tops
  return tops.size === 1 ? files.map(([file, name]) => [file, name.slice(top.length)]) : files
}

/** @param {readonly Named[]} files @param {boolean} isFolder */
function named(files, isFolder) {
  if (isFolder) return `${files.length} files as one folder`
  return files.length === 1 && files[0] ? files[0][1] : `${files.length} files`
}
