// The only state that a process keeps outside its gateways. Two gateways of one application do not know each other, and
// may use the same folder: only the process can tell. Everything else is passed to a gateway.
import { createDataFolders, type DataFolders } from './folders.ts'

export const processFolders: DataFolders = createDataFolders()
