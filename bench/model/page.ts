// docs/scaling.md and its plots, as text by the path of each file.
import { asked, assumed, cost, counted, day, prices } from './load.ts'
import { bill, fileBytes, hitRatio, type Plan, perMillion, plan } from './model.ts'
import { type Line, svg } from './plot.ts'

const gb = 1e9
const memory = 2 * gb
const disks = [0.03, 0.1, 0.3, 1, 3].map((tb) => tb * 1000 * gb)
const ticks = [1, 10, 100, 1000, 10_000].map(
  (size) => [size * gb, size < 1000 ? `${size} GB` : `${size / 1000} TB`] as const,
)
const ofDisk = [30, 100, 300, 1000, 3000].map(
  (size) => [size * gb, size < 1000 ? `${size} GB` : `${size / 1000} TB`] as const,
)

const between = (from: number, to: number, count: number): number[] =>
  Array.from({ length: count }, (_, index) => from * (to / from) ** (index / (count - 1)))

const percent = (share: number): string => `${(share * 100).toFixed(1)} %`
const number = (value: number): string => Math.round(value).toLocaleString('en')
const size = (bytes: number): string => (bytes < 1000 * gb ? `${bytes / gb} GB` : `${bytes / gb / 1000} TB`)
const money = (dollars: number): string => `$${dollars < 10 ? dollars.toFixed(2) : number(dollars)}`
const row = (...cells: readonly (string | number)[]): string => `| ${cells.join(' | ')} |`

function hitRatios(): string {
  const lines: Line[] = [0.7, 0.9, 1.1].map((skew) => ({
    name: `skew ${skew}`,
    points: between(gb, 10_000 * gb, 21).map((bytes) => [
      bytes,
      100 * hitRatio(bytes / fileBytes, assumed.files, skew),
    ]),
  }))
  return svg({
    title: 'Answers from a cache, by its size',
    ...{ across: 'bytes of the cache', up: 'percent of the requests', ticks, most: 100, lines },
  })
}

function fromElsewhere(): string {
  const line = (name: string, byCid: boolean): Line => ({
    name,
    points: between(30 * gb, 3000 * gb, 15).map((disk) => [
      disk,
      plan({ memory, disk, hasS3: false }, byCid).upstreamADay / 1e6,
    ]),
  })
  return svg({
    title: 'Requests to upstreams without S3',
    ...{ across: 'disk tier of one instance', up: 'millions a day', ticks: ofDisk, most: 400 },
    lines: [line('balanced by CID', true), line('any instance', false)],
  })
}

function billOf(): string {
  const lines = Object.values(prices).map((price) => ({
    name: price.name,
    points: between(30 * gb, 3000 * gb, 15).map((disk): [number, number] => [
      disk,
      bill(storeOf(plan({ memory, disk, hasS3: true })), price).month / 1000,
    ]),
  }))
  return svg({
    title: 'The bill for S3, by the disk tier in front of it',
    ...{ across: 'disk tier of one instance', up: 'thousands of dollars a month', ticks: ofDisk, most: 10, lines },
  })
}

function storeOf({ s3 }: Plan): NonNullable<Plan['s3']> {
  if (!s3) throw new Error('a plan without S3')
  return s3
}

function planRow(disk: number, hasS3: boolean, byCid: boolean): string {
  const made = plan({ memory, disk, hasS3 }, byCid)
  const { answered, processors, instances, upstreamADay, s3 } = made
  return row(
    size(disk),
    hasS3 ? 'yes' : 'no',
    byCid ? 'by CID' : 'any',
    instances,
    processors.toFixed(1),
    percent(answered.memory),
    percent(answered.disk),
    percent(answered.s3),
    percent(answered.upstream),
    number(upstreamADay / 1e6),
    s3 ? money(bill(s3, prices.s3).month) : '',
    s3 ? money(bill(s3, prices.r2).month) : '',
  )
}

function page(): string {
  const perSecond = day.requests / 86_400
  return `# Scaling, on paper

What a load of the size of the largest public gateways would take. This page and its plots are made by \`node bench/model/main.ts\`, and a test compares them. It is a model and no measurement: change a number in
\`bench/model/load.ts\` and make it again.

## What it stands on

| | | where it is from |
|---|---|---|
| requests of a day | ${number(day.requests / 1e6)} million (${number(perSecond)} a second) | published by Shipyard for its public gateways, 2025 |
| bytes of a day | ${day.bytes / 1e12} TB (${number(fileBytes / 1000)} KB each) | the same |
| the busiest hour | ${assumed.peak} times the mean | assumed |
| distinct files | ${number(assumed.files / 1e6)} million, the one of rank r wanted like 1 / r^${assumed.skew} | assumed; the first plot has other skews |
| files never asked for before | ${percent(assumed.fresh)} of the requests | assumed |
| an instance | ${assumed.cores} processors, busy to ${assumed.busy * 100} % at the peak, ${size(memory)} of memory tier and hot answers | assumed |
| a hit in memory | ${cost.hot.request} µs of processor time and ${cost.hot.mib} µs a MiB | measured, [performance](performance.md) |
| a hit on the disk | ${cost.disk.request} µs and ${number(cost.disk.mib)} µs a MiB | measured |
| a miss, or a hit in S3 | ${cost.miss.request} µs and ${number(cost.miss.mib)} µs a MiB | measured for misses; taken for S3 as well |
| requests to S3 | a hit ${asked.hitGets} GET; a miss ${asked.missGets} GET and ${asked.missPuts} PUT for each block | counted by \`bench/bill.ts\`, below |
| prices | ${Object.values(prices)
    .map(({ name, month, put, get }) => `${name}: ${month} a GB and month, ${put} for 1,000 PUT, ${get} for 1,000 GET`)
    .join('; ')} | list prices of 2025 in dollars, without tiers of discount |

Hit ratios are those of LRU by Che's approximation, for files of one size. Files of one size are the weakest part of it: most requests are for small ones, so that real caches hold more files than these.

![Answers from a cache, by its size](images/scaling-hits.svg)

## Instances, upstreams and S3

"By CID": a balancer that hashes the CID in the path or in the host gives each file to one instance, so that the disks add up. "Any": each instance has the same files.

| disk of each | S3 | balancer | instances | processors at the peak | from memory | from disk | from S3 | from upstreams | millions of requests to upstreams a day | ${prices.s3.name} a month | ${prices.r2.name} |
|---|---|---|---|---|---|---|---|---|---|---|---|
${[false, true].flatMap((hasS3) => [true, false].flatMap((byCid) => disks.map((disk) => planRow(disk, hasS3, byCid)))).join('\n')}

![Requests to upstreams without S3](images/scaling-upstreams.svg)

![The bill for S3, by the disk tier in front of it](images/scaling-bill.svg)

Two instances are planned at least, whatever the load. Not in it: the network (${((day.bytes * 8 * assumed.peak) / 86_400 / 1e9).toFixed(1)} Gbit/s at the peak), TLS, uploads, and what a balancer takes.

## Money for a million requests

| | a hit in S3 | the same from outside of its region | a miss that S3 gets |
|---|---|---|---|
${Object.values(prices)
  .map((price) => {
    const [near, far] = [perMillion(price, false), perMillion(price, true)]
    return row(price.name, money(near.hit), money(far.hit), money(near.miss))
  })
  .join('\n')}

Counted for a thousand each by \`node bench/bill.ts\`, at stand-ins that speak S3 and HTTP, tiers memory, disk and S3 in this order:

| per thousand | S3 GET | S3 HEAD | S3 PUT | requests to upstreams |
|---|---|---|---|---|
${counted.map((one) => row(...one)).join('\n')}
`
}

export const made = (): Readonly<Record<string, string>> => ({
  'docs/scaling.md': page(),
  'docs/images/scaling-hits.svg': hitRatios(),
  'docs/images/scaling-upstreams.svg': fromElsewhere(),
  'docs/images/scaling-bill.svg': billOf(),
})
