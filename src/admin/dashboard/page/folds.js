// Restores the folded sections, and opens the one that a link points to.

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
  // A second click on the same link does not change the hash, but must scroll too.
  document.addEventListener('click', ({ target }) => {
    const link = target instanceof Element ? target.closest('a') : null
    const hash = link?.getAttribute('href') ?? ''
    if (hash.startsWith('#')) queueMicrotask(() => goTo(hash))
  })
  addEventListener('hashchange', () => goTo(location.hash))

  let isFirst = true
  return {
    /** Scrolls to the initial hash, once the sections above it have their height. */
    drawn() {
      if (isFirst) goTo(location.hash)
      isFirst = false
    },
  }
}
