// Where the scripts of the store's threads are. In the built package the files end in .js.
const ending = import.meta.url.slice(import.meta.url.lastIndexOf('.'))

export const threadScript = (name: 'writer' | 'reader'): URL => new URL(`./${name}-thread${ending}`, import.meta.url)
