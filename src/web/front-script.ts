// The script of the first page: it uploads files and folders with progress, and shows what came of it with a button that copies.
// Without it the form still uploads, and the browser shows the JSON answer.

export const frontScript = `'use strict'
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
