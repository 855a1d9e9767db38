// Judges a page that Chromium shows, on a phone and on a desk, by day and by night: by axe, the checker of accessibility, and by
// where its text lies. With `CIDGATE_PICTURES` a picture of each is left in that folder, to be looked at.
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { mkdir, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import type { Page } from './chromium.ts'

const axe = readFileSync(new URL('../clients/node_modules/axe-core/axe.min.js', import.meta.url), 'utf8')
const looks = [false, true].flatMap((isDark) => [390, 1280].map((width) => ({ width, height: 900, isDark })))
/** WCAG's width for reflow, which is that of the smallest phones. */
const narrowest = { width: 320, height: 800 }
const pictures = process.env['CIDGATE_PICTURES']

/** Text that lies beside its page, is cut off by its own box, or lies on other text. */
const misplacedText = `(() => {
  const found = []
  const seen = []
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT)
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement
    const text = node.data.trim()
    if (text === '' || !element.checkVisibility({ contentVisibilityAuto: true, visibilityProperty: true })) continue
    if (element.closest('svg, script, style, noscript, select, option') || isHiddenOnPurpose(element)) continue
    const range = document.createRange()
    range.selectNodeContents(node)
    for (const rect of range.getClientRects()) {
      if (rect.width < 1 || rect.height < 1) continue
      const said = text.slice(0, 60)
      if (rect.left < -1 || rect.right > document.documentElement.clientWidth + 1) found.push('beside the page: ' + said)
      for (let box = element; box; box = box.parentElement) {
        const { overflowX } = getComputedStyle(box)
        if (overflowX === 'visible') continue
        const { right } = box.getBoundingClientRect()
        if (rect.right > right + 1) found.push('cut: ' + said)
      }
      for (const other of seen) {
        const wide = Math.min(rect.right, other.rect.right) - Math.max(rect.left, other.rect.left)
        const high = Math.min(rect.bottom, other.rect.bottom) - Math.max(rect.top, other.rect.top)
        if (wide > 2 && high > Math.min(rect.height, other.rect.height) / 2) found.push(said + ' lies on ' + other.said)
      }
      seen.push({ rect, said })
    }
  }
  return found.slice(0, 10)
  function isHiddenOnPurpose(element) {
    for (let one = element; one; one = one.parentElement) {
      const { clipPath, position, left } = getComputedStyle(one)
      if (clipPath.startsWith('inset(50%') || (position === 'absolute' && Number.parseFloat(left) < -100)) return true
    }
    return false
  }
})()`

const tooWide = `document.documentElement.scrollWidth <= innerWidth ? [] : [...document.body.querySelectorAll('*')]
  .filter((one) => one.getBoundingClientRect().right > innerWidth)
  .slice(0, 5)
  .map((one) => one.outerHTML.slice(0, 200))`

/** Fails with what is serious, with a page that is wider than its window, and with text that cannot be read where it lies. */
export async function assertGood(page: Page, name: string): Promise<void> {
  await page.evaluate(`${axe}; undefined`)
  for (const look of looks) {
    await page.look(look)
    const at = `${name}, ${look.width} px${look.isDark ? ', dark' : ''}`
    if (pictures) await keep(page, at)
    const found = await page.evaluate<string[]>(
      `axe.run().then(({ violations }) => violations
        .filter(({ impact }) => /serious|critical/.test(impact))
        .flatMap(({ help, nodes }) => nodes.map(({ html }) => help + ': ' + html)))`,
    )
    assert.deepEqual(found, [], at)
    await assertFits(page, at)
  }
  await page.look(narrowest)
  await assertFits(page, `${name}, ${narrowest.width} px`)
}

async function assertFits(page: Page, at: string): Promise<void> {
  assert.deepEqual(await page.evaluate(tooWide), [], `${at}: wider than its window`)
  assert.deepEqual(await page.evaluate(misplacedText), [], at)
}

async function keep(page: Page, at: string): Promise<void> {
  await mkdir(String(pictures), { recursive: true })
  await writeFile(join(String(pictures), `${at.replaceAll(/[^\w]+/g, '-')}.png`), await page.picture())
}
