// The front page: the gateway's name, a field for content addresses and, for clients that may
// upload, an upload form. Its policy allows each inline part by its hash.
import { inUnits } from './listing.ts'
import { contactLink, escaped, pageEnd, pageTop, shown, sourceHash, styleSource, whoAnswers } from './page.ts'

export type FrontFacts = {
  readonly version: string
  /** The name that the operator gave the gateway. */
  readonly name: string
  /** The path under which an application mounted the gateway; empty at the root. */
  readonly base: string
  /** `closed`: this gateway accepts no upload from this client. */
  readonly uploads: 'open' | 'token' | 'closed'
  readonly maxBytes: number
  readonly contact: string | undefined
}

/** `forms`: other hosts that the form may be redirected to, which the policy must name. */
export const frontPolicy = (forms: readonly string[]): string =>
  `default-src 'none'; style-src ${styleSource}; script-src ${sourceHash(frontScript)}; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action ${["'self'", ...forms].join(' ')}; frame-ancestors 'none'`

export function frontPage(facts: FrontFacts): string {
  const { version, name, base, uploads, contact } = facts
  const icon = `${escaped(base)}/favicon.svg`
  const said = contact === undefined ? '' : `<li>${whoAnswers} ${contactLink(contact)}</li>\n`
  return `${pageTop(name, `<link rel="icon" href="${icon}">`)}<main class="narrow"><h1 class="brand"><img src="${icon}" alt="" width="40" height="40">${shown(name)}</h1>
<p>An IPFS gateway. Files here are addressed by what is in them: a CID is made of the bytes. Every byte is checked against the CID that you asked for before you get it.</p>
<form action="${escaped(base)}/ipfs/" method="get"><label for="uri">A CID, an ipfs:// address, or a name</label>
<input type="text" id="uri" name="uri" required autocomplete="off" autocapitalize="none" spellcheck="false" placeholder="ipfs://bafy…"><button>Open</button></form>
${uploads === 'open' ? uploadArea(facts) : ''}${uploads === 'token' ? '<p>Uploads need a token of the operator here.</p>\n' : ''}<h2>More</h2>
<ul><li><a href="${escaped(base)}/openapi.json">The description of the API</a>, for people here and for programs</li>
<li><a href="https://docs.ipfs.tech/concepts/what-is-ipfs/" rel="noreferrer">What IPFS is</a></li>
${said}</ul></main>
<footer>cidgate ${escaped(version)}</footer>
${uploads === 'open' ? `<script>${frontScript}</script>\n` : ''}${pageEnd}`
}

function uploadArea({ base, maxBytes }: FrontFacts): string {
  const folder = '<label class="pick scripted" hidden>A folder<input type="file" webkitdirectory></label>'
  return `<h2>Upload</h2>
<form id="upload" action="${escaped(base)}/add" method="post" enctype="multipart/form-data">
<p>Drop files or a folder here, or choose them. Up to ${inUnits(maxBytes)}. What is uploaded can be read by everybody who knows its CID.</p>
<label class="pick">Files<input type="file" name="data" multiple required></label>${folder}<button type="submit">Upload</button>
<progress max="1" value="0" hidden aria-label="Upload"></progress></form>
<div id="result" role="status"></div>
`
}

/** A hexagon, the usual symbol of a CID. */
export const icon = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><path d="M16 2 28 9v14l-12 7-12-7V9z" fill="#0b5cad"/><path d="M16 9v14M10 12.500l12 7M22 12.500l-12 7" stroke="#fff" stroke-width="2.500" stroke-linecap="round"/></svg>
`

/**
 * Uploads files and folders with progress, and shows each path with a button that copies. Without it
 * the form still uploads, and the browser shows the JSON response.
 */
const frontScript = `'use strict'
{
  const form = document.querySelector('#upload')
  const result = document.querySelector('#result')
  const progress = document.querySelector('progress')
  const add = form.getAttribute('action')
  let request

  const line = (text) => {
    const item = document.createElement('p')
    item.textContent = text
    result.append(item)
    return item
  }
  const copied = async (button, text) => {
    try {
      await navigator.clipboard.writeText(text)
      button.textContent = 'Copied'
    } catch {
      getSelection().selectAllChildren(button.previousElementSibling)
      button.textContent = 'Selected: copy it'
    }
  }
  const show = (path, name) => {
    const item = line(name + ' ')
    const link = document.createElement('a')
    link.href = add.replace(/\\/add$/, '') + path
    link.textContent = path
    const button = document.createElement('button')
    button.type = 'button'
    button.textContent = 'Copy'
    button.addEventListener('click', () => copied(button, path.replace('/ipfs/', '')))
    item.append(link, ' ', button)
  }
  const send = (files, isFolder) => {
    if (files.length === 0) return
    request?.abort()
    const body = new FormData()
    for (const [file, name] of files) body.append('data', file, name)
    result.replaceChildren()
    progress.hidden = false
    progress.value = 0
    request = new XMLHttpRequest()
    request.open('POST', isFolder ? add + '?wrap=true' : add)
    request.setRequestHeader('Accept', 'application/json')
    request.responseType = 'json'
    request.upload.addEventListener('progress', ({ loaded, total }) => {
      progress.value = total > 0 ? loaded / total : 0
    })
    request.addEventListener('load', () => {
      progress.hidden = true
      const { status, response } = request
      if (status !== 200 || !response) line((response && response.message) || 'The upload failed with status ' + status + '.')
      else if (isFolder) show(response.cids.at(-1), files.length + ' files as one folder:')
      else response.cids.forEach((path, index) => show(path, files[index][1] + ':'))
    })
    request.addEventListener('error', () => {
      progress.hidden = true
      line('The upload broke off. Try again.')
    })
    request.send(body)
  }
  const below = async (entry, names) => {
    const name = [...names, entry.name]
    if (entry.isFile) return [[await new Promise((take, fail) => entry.file(take, fail)), name.join('/')]]
    const reader = entry.createReader()
    const found = []
    for (;;) {
      const some = await new Promise((take, fail) => reader.readEntries(take, fail))
      if (some.length === 0) return found
      for (const one of some) found.push(...(await below(one, name)))
    }
  }

  for (const input of form.querySelectorAll('input[type=file]')) {
    input.addEventListener('change', () => {
      send(Array.from(input.files, (file) => [file, file.webkitRelativePath || file.name]), input.webkitdirectory)
      input.value = ''
    })
  }
  form.addEventListener('submit', (event) => event.preventDefault())
  form.querySelector('[type=submit]').hidden = true
  for (const part of form.querySelectorAll('.scripted')) part.hidden = false
  const canFolder = form.querySelector('[webkitdirectory]') !== null
  addEventListener('dragover', (event) => {
    event.preventDefault()
    form.classList.add('over')
  })
  addEventListener('dragleave', () => form.classList.remove('over'))
  addEventListener('drop', async (event) => {
    event.preventDefault()
    form.classList.remove('over')
    const entries = Array.from(event.dataTransfer.items, (item) => item.webkitGetAsEntry()).filter(Boolean)
    const isFolder = entries.some((entry) => entry.isDirectory)
    if (isFolder && !canFolder) return void line('Folders are not taken here.')
    try {
      const files = []
      for (const entry of entries) files.push(...(await below(entry, [])))
      send(files, isFolder)
    } catch {
      line('This cannot be read. Choose it with the button instead.')
    }
  })
}
`
