// What the model is told: the load of a public gateway as its operator published it, what was measured here, and list prices. Every
// number that is no measurement is named as what it is, in docs/scaling.md too.

/** Shipyard's gateways in 2025: requests and bytes of a day. */
export const day = { requests: 614e6, bytes: 45e12 }

export const assumed = {
  /** The busiest hour against the mean of the day. */
  peak: 2,
  /** Processors are planned to be so busy at the peak. */
  busy: 0.6,
  /** Distinct files that are asked for, and how unevenly: the share of the file of rank r is 1 / r ** skew. */
  files: 50e6,
  skew: 0.9,
  /** The share of the requests that is for a file which was never asked for before. */
  fresh: 0.02,
  /** Processors of one instance. */
  cores: 4,
  /** Bytes of a block that is stored. */
  blockBytes: 2 ** 20,
}

/** Microseconds of processor time, by docs/performance.md: of a request, and of each MiB that goes out with it. */
export const cost = {
  /** `hot`: 42,500 a second; the share of `big` that writes to the socket. */
  hot: { request: 24, mib: 680 },
  /** `warm`: 5,010 files of 20 KB a second; `big`: 545 MiB. */
  disk: { request: 165, mib: 1835 },
  /** Like the disk, and the requests to S3 as those of a miss. */
  s3: { request: 830, mib: 8900 },
  /** `miss+`: 1,205 a second; `missbig`: 112 MiB. */
  miss: { request: 830, mib: 8900 },
}

/** Dollars: list prices of 2025 for storage of a month by GB, and for a thousand requests; of egress by GB. */
export const prices = {
  s3: { name: 'Amazon S3 Standard', month: 0.023, put: 0.005, get: 0.0004, egress: 0.09 },
  r2: { name: 'Cloudflare R2', month: 0.015, put: 0.0045, get: 0.00036, egress: 0 },
}

/** Requests for one read or upload, counted by `bench/bill.ts`; `blocks` of a file come on top, one each. */
export const asked = { hitGets: 1, missGets: 1, missPuts: 1, upstream: 1 }

/** What `bench/bill.ts` counted, in its order: GET, HEAD and PUT to S3, and requests to upstreams, for a thousand. */
export const counted: readonly (readonly [what: string, get: number, head: number, put: number, upstream: number])[] = [
  ['files of 4 KB that are nowhere yet', 1000, 0, 1000, 1000],
  ['files of 8 MiB that are nowhere yet', 1000, 0, 9000, 1000],
  ['the same small ones, from memory', 0, 0, 0, 0],
  ['uploads of 4 KB', 0, 0, 1000, 0],
  ['files of 4 KB that S3 has', 1000, 0, 0, 2],
  ['files of 8 MiB that S3 has', 9000, 0, 0, 0],
  ['files that nobody has', 1000, 0, 0, 1004],
]
