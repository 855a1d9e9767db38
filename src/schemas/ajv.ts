// Ajv is loaded by the first check of a document, or for the operator's own schemas: most gateways never need it, and it takes
// time of each start and memory of each process. A configuration is read at once, so it is required and not imported.
import { createRequire } from 'node:module'

export const loadAjv = () => createRequire(import.meta.url)('ajv/dist/2020.js') as typeof import('ajv/dist/2020.js')
