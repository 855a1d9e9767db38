// Asks the operator before something is done, and tells what cannot be overlooked.
import { show } from './elements.js'

/** @import { Child } from './elements.js' */

/** @param {string} id @returns {HTMLElement} */
export function at(id) {
  const element = document.getElementById(id)
  if (!element) throw new Error(`the page has no ${id}`)
  return element
}

/**
 * The safe answer has the focus. `more`: what the operator may say besides.
 * @param {{ title: string, text: readonly Child[], yes: string, more?: Element }} question
 * @returns {Promise<boolean>}
 */
export function confirmed({ title, text, yes, more }) {
  const dialog = /** @type {HTMLDialogElement} */ (at('ask'))
  show(at('ask-title'), title)
  show(at('ask-text'), ...text)
  at('ask-more').replaceChildren(...(more ? [more] : []))
  show(at('ask-yes'), yes)
  dialog.showModal()
  // Not by its `close`, which comes a moment later and may be that of a question before.
  return new Promise((resolve) => {
    const over = new AbortController()
    const answer = (/** @type {boolean} */ isYes) => {
      over.abort()
      resolve(isYes)
    }
    const { signal } = over
    const isYes = (/** @type {SubmitEvent} */ { submitter }) => submitter === at('ask-yes')
    at('ask-form').addEventListener('submit', (event) => answer(isYes(event)), { signal })
    dialog.addEventListener('cancel', () => answer(false), { signal })
  })
}

/** @param {unknown} error */
export const wordsOf = (error) => `No answer: ${error instanceof Error ? error.message : String(error)}`
