// What axe, the checker of accessibility, finds in a page that Chromium shows: on a phone and on a desk, by day and by night.
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import type { Page } from './chromium.ts'

const axe = readFileSync(new URL('../clients/node_modules/axe-core/axe.min.js', import.meta.url), 'utf8')
const looks = [false, true].flatMap((isDark) => [360, 1280].map((width) => ({ width, height: 900, isDark })))

/** Fails with what is serious, and with a page that is wider than its window. */
export async function assertAccessible(page: Page, name: string): Promise<void> {
  await page.evaluate(`${axe}; undefined`)
  for (const look of looks) {
    await page.look(look)
    const found = await page.evaluate<string[]>(
      `axe.run().then(({ violations }) => violations
        .filter(({ impact }) => /serious|critical/.test(impact))
        .flatMap(({ help, nodes }) => nodes.map(({ html }) => help + ': ' + html)))`,
    )
    const at = `${name}, ${look.width} px${look.isDark ? ', dark' : ''}`
    assert.deepEqual(found, [], at)
    const wide = await page.evaluate<number>('document.documentElement.scrollWidth')
    assert.ok(wide <= look.width, `${at}: ${wide} px wide`)
  }
}
