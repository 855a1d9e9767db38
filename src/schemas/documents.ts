// Built-in JSON Schemas for documents: applied on request, published in openapi.json.

import { parseRoot } from '../content/resolve.ts'

export type JsonSchema = Readonly<Record<string, unknown>>

/** Formats beyond those of JSON Schema, for rules that a pattern cannot express. */
export const formats: Readonly<
  Record<string, { readonly validate: (text: string) => boolean; readonly message: string }>
> = {
  'ipfs-path': {
    // The pattern refuses other prefixes: each mistake is reported once.
    validate: (text) => !text.startsWith('/ipfs/') || isRoot(text.split('/')[2] ?? ''),
    message: 'must be /ipfs/<cid>, optionally followed by a path; this is not a CID that this gateway reads',
  },
}

/** Applies the rule of GET: a CID that lost letters may still parse, as a useless CID. */
function isRoot(text: string): boolean {
  try {
    parseRoot(text)
    return true
  } catch {
    return false
  }
}

const text = (description: string) => ({ type: 'string', description })

const ipfsPath = {
  type: 'string',
  pattern: '^/ipfs/',
  format: 'ipfs-path',
  description: 'The location of the file: `/ipfs/<cid>`, optionally followed by a path.',
} as const

export const evidence: JsonSchema = {
  $schema: 'https://json-schema.org/draft/2020-12/schema',
  title: 'EvidenceFile',
  description: 'A piece of evidence in a dispute (ERC-1497).',
  type: 'object',
  required: ['name', 'description'],
  properties: {
    name: text('What it is called.'),
    description: text('What it shows.'),
    fileURI: ipfsPath,
    evidenceType: { enum: ['Image', 'Video', 'Text', 'Document', 'Other'], description: 'What kind of file it is.' },
  },
  examples: [
    {
      name: 'Photo of the delivery',
      description: 'The parcel as it arrived, with its seal broken.',
      fileURI: '/ipfs/bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy',
      evidenceType: 'Image',
    },
  ],
}

export const policy: JsonSchema = {
  $schema: 'https://json-schema.org/draft/2020-12/schema',
  title: 'PolicyFile',
  description: 'What a court decides by.',
  type: 'object',
  required: ['name', 'description', 'rulingCriteria'],
  properties: {
    name: text('What the policy is called.'),
    description: text('What it is for.'),
    rulingCriteria: text('What jurors go by.'),
    version: text('Which version of the text this is.'),
  },
  examples: [
    {
      name: 'Court of parcels',
      description: 'Disputes about what was delivered.',
      rulingCriteria: 'Who claims that something was broken has to show it.',
      version: '1.0.0',
    },
  ],
}

export const disputeTemplate: JsonSchema = {
  $schema: 'https://json-schema.org/draft/2020-12/schema',
  title: 'DisputeTemplate',
  description: 'What jurors are asked. More fields are allowed.',
  type: 'object',
  required: ['title', 'description', 'question', 'answers'],
  properties: {
    title: text('What the dispute is called.'),
    description: text('What it is about.'),
    question: text('What jurors are asked.'),
    answers: {
      type: 'array',
      description: 'What they may answer.',
      items: {
        type: 'object',
        required: ['id', 'title'],
        properties: {
          id: { type: 'string', pattern: '^0x[0-9a-fA-F]+$', description: 'A number in hex, `0x1`.' },
          title: text('The answer in short.'),
        },
      },
    },
    policyURI: text('Where the policy is, such as `/ipfs/<cid>`.'),
  },
  examples: [
    {
      title: 'A parcel and its seal',
      description: 'The buyer says that the seal was broken on arrival.',
      question: 'Was the seal broken when the parcel arrived?',
      answers: [
        { id: '0x1', title: 'Yes' },
        { id: '0x2', title: 'No' },
      ],
      policyURI: '/ipfs/bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy',
    },
  ],
}
