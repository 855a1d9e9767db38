// Folds the parts of the page as the operator left them, and opens the one that a link leads to.

const key = 'cidgate-folds'
const openOnDesk = ['requests', 'failures', 'upstreams', 'tiers']

/** @returns {{ drawn(): void }} */
export function startFolds() {
  const folds = /** @type {HTMLDetailsElement[]} */ ([...document.querySelectorAll('main > details')])
  /** @type {Record<string, boolean>} */
  const kept = JSON.parse(localStorage.getItem(key) ?? '{}')
  const isDesk = matchMedia('(min-width: 45rem)').matches
  for (const fold of folds) {
    fold.open = kept[fold.id] ?? (isDesk && openOnDesk.includes(fold.id))
    fold.addEventListener('toggle', () => {
      kept[fold.id] = fold.open
      localStorage.setItem(key, JSON.stringify(kept))
    })
  }

  /** @param {string} hash */
  function goTo(hash) {
    const target = hash.length > 1 ? document.getElementById(decodeURIComponent(hash.slice(1))) : null
    const fold = target?.closest('details')
    if (fold) fold.open = true
    target?.scrollIntoView()
  }
  // A second click on the same link changes no hash, and scrolls all the same.
  document.addEventListener('click', ({ target }) => {
    const link = target instanceof Element ? target.closest('a') : null
    const hash = link?.getAttribute('href') ?? ''
    if (hash.startsWith('#')) queueMicrotask(() => goTo(hash))
  })
  addEventListener('hashchange', () => goTo(location.hash))

  let isFirst = true
  return {
    /** The place of a link that the page was opened by is known when the parts above it are drawn. */
    drawn() {
      if (isFirst) goTo(location.hash)
      isFirst = false
    },
  }
}
