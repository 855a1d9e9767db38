// The one thing that a process keeps outside its gateways. Two gateways that an application creates by two calls know nothing
// of each other, and yet may name the same folder: only the process can tell them. Everything else is handed to a gateway.
import { createDataFolders, type DataFolders } from './folders.ts'

export const processFolders: DataFolders = createDataFolders()
