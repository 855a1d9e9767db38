// Kubo's RPC in OpenAPI, if `upload.kuboRpc` is on: its commands, their options, and responses in
// Kubo's format.
import { anyStatuses, failures } from './problems.ts'
import { aCid, type Json, ref } from './words.ts'

type KuboCommand = {
  readonly summary: string
  /** The description of `arg`; undefined if the command takes none. */
  readonly arg?: string
  readonly options?: readonly (readonly [name: string, type: 'boolean' | 'integer' | 'string', description: string])[]
  readonly takesFiles?: boolean
  readonly type: string
  readonly schema: Json
}

const bytes: Json = { type: 'string', format: 'binary' }
const path = 'A CID or `/ipfs/<cid>[/<path>]`.'
const cid = 'A CID.'

const commands: Readonly<Record<string, KuboCommand>> = {
  add: {
    summary: 'Adds files; each part of the body is one',
    options: [
      ['cid-version', 'integer', '0 or 1.'],
      ['raw-leaves', 'boolean', 'By default with version 1.'],
      ['chunker', 'string', '`size-N`.'],
      ['max-file-links', 'integer', 'Links of a node.'],
      ['only-hash', 'boolean', 'Tells the CID and keeps nothing.'],
      ['pin-name', 'string', 'How the pins are called in lists.'],
    ],
    takesFiles: true,
    type: 'application/json',
    schema: {
      description: 'One line for each file.',
      type: 'object',
      required: ['Name', 'Hash', 'Size'],
      properties: { Name: { type: 'string' }, Hash: { type: 'string' }, Size: { type: 'string' } },
    },
  },
  cat: {
    summary: 'The bytes of a file',
    arg: path,
    options: [
      ['offset', 'integer', 'From this byte on.'],
      ['length', 'integer', 'So many bytes.'],
    ],
    type: 'text/plain',
    schema: bytes,
  },
  'block/put': {
    summary: 'Keeps blocks; each part of the body is one',
    options: [
      ['cid-codec', 'string', '`raw`, `dag-pb`, `dag-cbor`, `dag-json`, `cbor` or `json`.'],
      ['mhtype', 'string', '`sha2-256`, `sha2-512`, `blake2b-256` or `blake3`.'],
    ],
    takesFiles: true,
    type: 'application/json',
    schema: {
      description: 'One line for each block.',
      type: 'object',
      required: ['Key', 'Size'],
      properties: { Key: { type: 'string' }, Size: { type: 'integer' } },
    },
  },
  'dag/import': {
    summary: 'Keeps the roots of CARs; each part of the body is a CAR',
    options: [
      ['pin-roots', 'boolean', 'By default on: says each root. All are kept in any case.'],
      ['stats', 'boolean', 'Says how many blocks there were.'],
    ],
    takesFiles: true,
    type: 'application/json',
    schema: { description: 'One line for each root, and one for `stats`.', type: 'object' },
  },
  get: {
    summary: 'A file or a directory, as a tar',
    arg: path,
    options: [
      ['archive', 'boolean', 'A tar in any case: matters with `compress`.'],
      ['compress', 'boolean', 'With gzip; without `archive` a file alone.'],
      ['compression-level', 'integer', '1 to 9.'],
    ],
    type: 'application/x-tar',
    schema: bytes,
  },
  ls: {
    summary: 'The links of directories and files',
    arg: path,
    options: [
      ['resolve-type', 'boolean', 'By default on, as `size`: looks at what each link leads to.'],
      ['size', 'boolean', 'By default on.'],
      ['stream', 'boolean', 'A line for each link, and not one object.'],
    ],
    type: 'application/json',
    schema: { type: 'object', properties: { Objects: { type: 'array', items: { type: 'object' } } } },
  },
  'block/get': { summary: 'A block', arg: cid, type: 'application/vnd.ipld.raw', schema: bytes },
  'dag/export': { summary: 'A DAG as a CAR', arg: cid, type: 'application/vnd.ipld.car', schema: bytes },
  'pin/add': {
    summary: 'Finds a DAG and gives it to the providers',
    arg: cid,
    options: [['name', 'string', 'How the pin is called in lists.']],
    type: 'application/json',
    schema: { type: 'object', properties: { Pins: { type: 'array', items: { type: 'string' } } } },
  },
  'pin/ls': {
    summary: 'What was uploaded or pinned; of one CID, with `arg`',
    options: [
      ['arg', 'string', cid],
      ['type', 'string', '`all`, `recursive`, `direct` or `indirect`.'],
      ['name', 'string', 'Those whose name has this in it.'],
      ['names', 'boolean', 'Says the name of each.'],
      ['stream', 'boolean', 'A line for each, and not one object.'],
    ],
    type: 'application/json',
    schema: { type: 'object' },
  },
  'pin/rm': {
    summary: 'Deletes a pin at every provider; for a token that may delete',
    arg: cid,
    type: 'application/json',
    schema: { type: 'object', properties: { Pins: { type: 'array', items: { type: 'string' } } } },
  },
  version: { summary: 'The version of this gateway', type: 'application/json', schema: { type: 'object' } },
}

const problem = { 'application/json': { schema: ref('schemas', 'KuboError') } } as const
const refused = { 'text/plain': { schema: { type: 'string' } } } as const

const statuses: Json = {
  ...failures(anyStatuses),
  400: { description: 'A malformed request, or an option that is not supported.', content: problem },
  403: {
    description:
      'No token, where tokens are wanted, or none that may delete; or a page in a browser (`Origin`, `Referer`).',
    content: refused,
  },
  404: { description: 'No such command.', content: refused },
  405: { description: 'Commands are sent with POST.', content: refused },
  410: { description: 'The operator of this gateway does not serve or keep it.', content: problem },
  413: { description: 'More bytes than this gateway takes.', content: problem },
  451: { description: 'As 410, for a legal reason.', content: problem },
  500: { description: 'It failed: not found, not held by enough providers, or upstreams failed.', content: problem },
  503: { description: 'Overloaded; retry later.', content: problem },
}

const operation = (name: string, command: KuboCommand, hasTokens: boolean): Json => ({
  tags: ['kubo'],
  summary: command.summary,
  operationId: `kubo${name.replaceAll(/(?:^|\/)(.)/g, (_all, first: string) => first.toUpperCase())}`,
  ...(hasTokens && { security: [{ bearer: [] }, { token: [] }] }),
  parameters: [
    ...(command.arg === undefined
      ? []
      : [
          {
            name: 'arg',
            in: 'query',
            required: true,
            description: command.arg,
            schema: { type: 'string' },
            example: aCid,
          },
        ]),
    ...(command.options ?? []).map(([option, type, description]) => ({
      name: option,
      in: 'query',
      description,
      schema: { type },
    })),
  ],
  ...(command.takesFiles && {
    requestBody: {
      required: true,
      content: { 'multipart/form-data': { schema: { type: 'object', properties: { file: bytes } } } },
    },
  }),
  responses: {
    200: { description: 'As Kubo answers it.', content: { [command.type]: { schema: command.schema } } },
    ...statuses,
  },
})

export const kuboPaths = (hasTokens: boolean): Json =>
  Object.fromEntries(
    Object.entries(commands).map(([name, command]) => [
      `/api/v0/${name}`,
      { post: operation(name, command, hasTokens) },
    ]),
  )

export const kuboComponents: Json = {
  KuboError: {
    type: 'object',
    required: ['Message', 'Code', 'Type'],
    properties: { Message: { type: 'string' }, Code: { type: 'integer' }, Type: { const: 'error' } },
  },
}
