// The only state of a process outside its gateways: two gateways of one application may use the
// same folder without knowing each other. Everything else is passed to a gateway.
import { createDataFolders, type DataFolders } from './folders.ts'

export const processFolders: DataFolders = createDataFolders()
