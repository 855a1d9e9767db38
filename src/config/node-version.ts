// The first import of the library: on an older Node the other modules fail with messages that do
// not name the cause.
import { engine } from './package.ts'

const numbers = (version: string): number[] => version.match(/\d+/g)?.map(Number) ?? []
const [major = 0, minor = 0] = numbers(process.versions.node)
const [minMajor = 0, minMinor = 0] = numbers(engine)

if (major < minMajor || (major === minMajor && minor < minMinor))
  throw new Error(`cidgate: Node ${process.versions.node} is too old (expected ${minMajor}.${minMinor} or later)`)
