// A text as a page, with lines that can be read: what a browser gets of Markdown. The file is one link away.
import type { CID } from 'multiformats/cid'
import { escaped, pageEnd, pageTop, shown, templateHash } from './page.ts'

const top = (name: string): string => `${pageTop(name)}<h1>${shown(name)}</h1>
<p class="dim"><a href="?download=true">Download</a></p>
<pre class="text">`
const bottom = `</pre>\n${pageEnd}`

/** The first bytes come before the top, so that a failure until then is an error that can be read. */
export async function* textPage(name: string, cid: CID, bytes: AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array> {
  const decoder = new TextDecoder()
  let before = top(name === '' ? cid.toString() : name)
  for await (const piece of bytes) {
    yield Buffer.from(before + escaped(decoder.decode(piece, { stream: true })))
    before = ''
  }
  yield Buffer.from(before + escaped(decoder.decode()) + bottom)
}

const template = templateHash(top('') + bottom)

export const textEtag = (cid: CID): string => `W/"Text-${template}_CID-${cid}"`
