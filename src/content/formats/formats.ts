// The registry of formats, one line each.
import { car } from './car.ts'
import { documents } from './document.ts'
import type { Format, FormatName } from './format.ts'
import { raw } from './raw.ts'
import { tar } from './tar.ts'

export const formats: ReadonlyMap<FormatName, Format> = new Map(
  [raw, car, tar, ...documents].map((format) => [format.name, format]),
)
