// Hints for operators about file-system errors.
import { codeOf } from './files.ts'

const remedies: Readonly<Record<string, string>> = {
  EACCES: 'let this user read and write there',
  EPERM: 'let this user read and write there',
  EROFS: 'it is mounted read-only',
  EMFILE: 'raise the limit of open files (ulimit -n)',
  ENFILE: 'the system has too many open files',
  ENOTDIR: 'there is a file in the place of the folder',
  EFBIG: 'this process may write no file that large (ulimit -f), or the file system keeps none',
}

export const remedyOf = (error: unknown): string => remedies[codeOf(error) ?? ''] ?? 'check the disk'
