// Which CID Kubo 0.42 gives a directory, by the profile and by what is in it. Written down from Kubo:
// test/interop/directories.test.ts holds every row against the real one.
import type { Profile } from '../../backends/pinning/contract.ts'
import type { Part } from './adding.ts'
import { made } from './made.ts'

/** Path and size of each file (made.ts has the bytes). A path that ends in `/` is an empty directory. */
export type DirectoryFiles = readonly (readonly [path: string, bytes: number])[]

export type DirectoryRow = {
  readonly what: string
  readonly files: () => DirectoryFiles
  readonly cids: Readonly<Record<Profile, string>>
}

const KiB = 1024
const small = (...paths: string[]): DirectoryFiles => paths.map((path) => [path, 1])

/** Files whose names have so many characters each. */
const many = (count: number, length: number, below = ''): string[] =>
  Array.from({ length: count }, (_, index) => below + String(index).padStart(5, '0').padEnd(length, 'n'))

export const directoryRows: readonly DirectoryRow[] = [
  {
    what: 'one file',
    files: () => small('a'),
    cids: {
      'unixfs-v1-2025': 'bafybeibqrdm2u5wgr5sbcmkuaj5sq637cpcgtg25ca4aawbbyetsnigx7e',
      'unixfs-v0-2015': 'QmSuDkqMSuJsDXrHzJ1WWUfcPxKT7UivftMN1oEUf3HRKL',
    },
  },
  {
    what: 'names in no order',
    files: () => small('z', 'B', 'a', 'a.txt', 'a-b', 'Z'),
    cids: {
      'unixfs-v1-2025': 'bafybeigcas2ejea3fxnghytfq7ehq6bxoveqvezs2632qc6pca4hc2xdfe',
      'unixfs-v0-2015': 'QmemfoR9QmtYvgZgFAeknm1nDXX6eCwjGj7XNWDMpw3eDn',
    },
  },
  {
    what: 'names of other scripts, spaces and marks',
    files: () => small('ä.txt', '日本語', 'a b', 'ä', "it's", '%41', 'a+b', '😀'),
    cids: {
      'unixfs-v1-2025': 'bafybeih22fmnq5nmiaum7wm37smsi5na43wipabpop6hjlfiepn7lxyug4',
      'unixfs-v0-2015': 'QmPn1CJPS1cWRBH8npACc8rDaASjSWQJhxbR8uy1WZe3YW',
    },
  },
  {
    what: 'directories in directories',
    files: () => small('index.html', 'css/site.css', 'css/print/a.css', 'js/a.js'),
    cids: {
      'unixfs-v1-2025': 'bafybeicsw6gscy7awogyjuv4ebl3qncqve3lyoq3hgl72oh23rj7hzfzye',
      'unixfs-v0-2015': 'QmWSPHVmpYP118RpJgk9XoM8tdHXsv2yUYDMeyhSwKroWq',
    },
  },
  {
    what: 'sixty-four levels',
    files: () => small(Array.from({ length: 64 }, (_, at) => `d${at}`).join('/')),
    cids: {
      'unixfs-v1-2025': 'bafybeievku7ibqj7v5vukuut7qiiryv32h3avyjmzqour6ygrsdb5iuyke',
      'unixfs-v0-2015': 'QmVzvPUzQUXqZejr4pcYwEKESLijCFbRju7RxmSxzpjTr7',
    },
  },
  {
    what: 'an empty file and an empty directory',
    files: () => [
      ['.nojekyll', 0],
      ['none/', 0],
      ['a', 1],
    ],
    cids: {
      'unixfs-v1-2025': 'bafybeie3he763lvv4ktnuq6bpxk3nnjiaycgppumqe35wjmcwrel2eszz4',
      'unixfs-v0-2015': 'QmbdWEfRwc8HLM5P9Xicbubp3uzhF7hU8hinvJSJGyRmck',
    },
  },
  {
    what: 'the same file twice',
    files: () => [
      ['a', 12],
      ['b', 12],
      ['c/a', 12],
    ],
    cids: {
      'unixfs-v1-2025': 'bafybeiduvjuxuadaqtertg5irbw7dznfivs7ouwuooaj7mx5tgryoxwst4',
      'unixfs-v0-2015': 'QmRVDWGCznhwBniWwwswrtMqizmS6CTmGm1P4o4WroMbQ6',
    },
  },
  {
    what: 'files of several blocks',
    files: () => [
      ['large', 2100 * KiB],
      ['chunk', 1024 * KiB],
      ['quarter', 256 * KiB + 1],
    ],
    cids: {
      'unixfs-v1-2025': 'bafybeifcuir7iunrcgj2oipgbyx2iq6vg6phoeaa26p3ohj43ofkulohqq',
      'unixfs-v0-2015': 'QmdovqGtsbP13qJZaxGQa9o69D84Y8JUWArxNVcWBSrfQV',
    },
  },
  {
    what: '256 KiB of names and CIDs (v0)',
    files: () => small(...many(1024, 222)),
    cids: {
      'unixfs-v1-2025': 'bafybeigrxqgmmjulhgeyo6xs6lmxfk3nctjgsnkjpw63xycs2ugpklgmpa',
      'unixfs-v0-2015': 'QmRqMcpHkf9BQ2z6c7rVDGNbTmQ4D86RJHyPZJp9r3nNrY',
    },
  },
  {
    what: 'one byte more than that',
    files: () => small(...many(1023, 222), 'q'.repeat(223)),
    cids: {
      'unixfs-v1-2025': 'bafybeid7fcbcppuqlsfkpfqrh4nz6ld2dhb5r4pjk5f2rydatocc52utya',
      'unixfs-v0-2015': 'QmR52CYXEgCbK7AyTHKPgazNZLNKbRJMtZHAV1AEHS64DB',
    },
  },
  {
    what: 'a block of 256 KiB (v1)',
    files: () => small(...many(1065, 200), 'q'.repeat(105)),
    cids: {
      'unixfs-v1-2025': 'bafybeigf6y4sg3hxsycpgnmf4xhzfdnmo7dmfuf763omnpg46akpdtew3e',
      'unixfs-v0-2015': 'QmPseamtd2WhMpK1cqzT8ipwxG37nLuYSSuJg5L9rhzSnU',
    },
  },
  {
    what: 'a block of one byte more',
    files: () => small(...many(1065, 200), 'q'.repeat(106)),
    cids: {
      'unixfs-v1-2025': 'bafybeid5f66y2avltmait47nuvnzkimhg4dzfivgn4g77nppneaizaejiq',
      'unixfs-v0-2015': 'QmNY7TH5uid7BbSSStECKZrZxgfPsBmwRsj6GsFkqpi1WW',
    },
  },
  {
    what: 'a HAMT of short names',
    files: () => small(...many(6000, 6)),
    cids: {
      'unixfs-v1-2025': 'bafybeicgmiblp6xxihnsh2xrnvkd7bd726vcrzsec23aadi23quex6yvja',
      'unixfs-v0-2015': 'QmV4AKGrVcwS9QiZ6cKRjEzcn5QeRrod8oiD1XAsNbmMi2',
    },
  },
  {
    what: 'a HAMT of long names',
    files: () => small(...many(1200, 255)),
    cids: {
      'unixfs-v1-2025': 'bafybeichthn4z64m5ij2h4nd2cmag6rprhdbtikvjawknexep42kynfnfa',
      'unixfs-v0-2015': 'QmQu8VuanYodiTQNAgcRw5AuPFRRy2ZSw1SnEWxaSTVGZE',
    },
  },
  {
    what: 'HAMTs below, beside files',
    files: () => small('a', ...many(1500, 200, 'x/'), ...many(1300, 250, 'y/z/')),
    cids: {
      'unixfs-v1-2025': 'bafybeibbkk6xenf73acqmxqugaorpeu3fhpqha37sjdihknlmqzdpekgei',
      'unixfs-v0-2015': 'QmYVdmfjuR9xMsJTP6RbnhRbrvQL2mQZkCGHNEH1qgYb9u',
    },
  },
  {
    what: 'a HAMT of directories',
    files: () => small(...many(1400, 220).map((name) => `${name}/a`)),
    cids: {
      'unixfs-v1-2025': 'bafybeih7dmuqx34od7ilg5ljkcrbu7wzhba6l6eje52hbrafrlzh4vklzq',
      'unixfs-v0-2015': 'QmeFBpZ9jvkZgd1j3e7UejetBzXVAG3cb1tVa6W4gkhj2Y',
    },
  },
]

/** The parts of a multipart body that has these files, as clients of Kubo and forms of browsers send them. */
export function* partsOf(files: DirectoryFiles): Generator<Part> {
  for (const [path, bytes] of files) {
    const isFolder = path.endsWith('/')
    yield {
      fileName: isFolder ? path.slice(0, -1) : path,
      type: isFolder ? 'application/x-directory' : 'application/octet-stream',
      body: Buffer.concat([...made(bytes)]),
    }
  }
}
