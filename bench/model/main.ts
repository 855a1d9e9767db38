// `node bench/model/main.ts`: writes docs/scaling.md and its plots.
import { writeFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { made } from './page.ts'

for (const [path, text] of Object.entries(made()))
  writeFileSync(fileURLToPath(new URL(`../../${path}`, import.meta.url)), text)
