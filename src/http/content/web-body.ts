// Responses in `web` mode: files with the media types that browsers know, pages for directories and
// documents, and redirects.

import { listDirectory } from '../../content/directory.ts'
import { readFile } from '../../content/file.ts'
import { inMemory } from '../../content/formats/format.ts'
import {
  type ContentPath,
  type Entity,
  etagOf,
  type Resolution,
  type ResolveOptions,
  symlinkTarget,
} from '../../content/resolve.ts'
import { codec } from '../../core/cid.ts'
import { decoded } from '../../core/wire/http.ts'
import type { Session } from '../../retrieval/session.ts'
import { documentEtag, documentPage, hasPage } from '../../web/document-page.ts'
import { listingEtag, listingPage } from '../../web/listing.ts'
import { fileType, typeByName } from '../../web/media-types.ts'
import { directoryUrl, joined, pagePolicy, textEtag, textPage, type Whereabouts } from '../../web/page.ts'
import { type Served, type SiteRequest, serveSite } from '../../web/site.ts'
import type { ContentPlace } from '../hosts.ts'
import type { RequestTarget } from '../wire/request.ts'
import {
  type BodyOptions,
  type Content,
  fileBody,
  listingCacheControl,
  type Offer,
  octets,
  offerOf,
  plainFile,
  type Tags,
} from './body.ts'
import { type Negotiated, qualityOf } from './negotiate.ts'

type WebRequest = {
  readonly path: ContentPath
  readonly place: ContentPlace
  readonly target: RequestTarget
  readonly negotiated: Negotiated
  readonly accept: string | undefined
  /** The Host header, for a site without a shared gateway host. */
  readonly host: string | undefined
}

export type Moved = {
  readonly kind: 'moved'
  readonly location: string
  readonly status: number
  /**
   * The redirect depends on Accept: clients that ask for another representation are not redirected.
   */
  readonly varies: boolean
}

type WebOffer = { readonly kind: 'content'; readonly resolution: Resolution; readonly offer: Offer }

const html = 'text/html; charset=utf-8'
const types: ReadonlyMap<number, { readonly type: string; readonly ending: string; readonly isText: boolean }> =
  new Map([
    [codec.dagJson, { type: 'application/vnd.ipld.dag-json', ending: '.json', isText: true }],
    [codec.dagCbor, { type: 'application/vnd.ipld.dag-cbor', ending: '.cbor', isText: false }],
    [codec.json, { type: 'application/json', ending: '.json', isText: true }],
    [codec.cbor, { type: 'application/cbor', ending: '.cbor', isText: false }],
  ])

export async function answerOnWeb(
  session: Session,
  request: WebRequest,
  resolving: ResolveOptions,
  options: BodyOptions,
): Promise<Moved | WebOffer> {
  const { path, place, target } = request
  const wanted = listingWanted(request)
  const site = { path, listing: wanted, hasSlash: place.path.endsWith('/'), own: place.own, search: target.search }
  const served = await serveSite(session, site, resolving)
  const at = whereabouts(request, served)
  if (served.kind === 'slash') {
    const query = target.search === '' ? '' : `?${target.search}`
    return { kind: 'moved', location: `${directoryUrl(at)}${query}`, status: 301, varies: true }
  }
  if (served.kind === 'redirect') return { ...served, kind: 'moved', varies: false }
  const { resolution, index, status } = served
  const { entity, roots } = resolution
  const found = (tags: Omit<Tags, 'roots' | 'status'>, content: Offer['content']): WebOffer => ({
    kind: 'content',
    resolution,
    offer: { ...tags, roots, status, content },
  })
  switch (entity.kind) {
    case 'directory': {
      // index.html is served for its directory, with the directory's ETag.
      if (index)
        return found({ etag: etagOf(entity.cid) }, () => plainFile(session, index.entity, fileType(indexName), options))
      if (wanted === 'never')
        return found({ ...pageTags, etag: listingEtag(entity.cid) }, () => page(session, at, entity))
      const { content, ...tags } = offerOf(session, resolution, target, options)
      return found({ ...tags, varies: true }, content)
    }
    case 'symlink':
      return found({ etag: etagOf(entity.cid) }, () => ({
        ...inMemory(symlinkTarget(entity), 'inode/symlink'),
        isPlain: true,
      }))
    case 'data': {
      const etag = etagOf(entity.cid)
      if (!hasPage(entity)) return found({ etag }, () => document(entity))
      if (!wantsPage(request)) return found({ etag, varies: true }, () => document(entity))
      return found({ ...pageTags, etag: documentEtag(entity.cid) }, async () => ({
        ...inMemory(await documentPage(at, entity, session.yieldIfDue), html),
        ranges: false,
        policy: pagePolicy,
      }))
    }
    case 'file': {
      const name = target.query.get('filename') ?? resolution.path.segments.at(-1) ?? ''
      // A browser that opens Markdown gets its text in a page, every other client the file.
      if (typeByName(name) === markdown) {
        if (wantsPage(request))
          return found({ ...pageTags, etag: textEtag(entity.cid) }, () => text(session, entity, name))
        // Not cached, because the response cache ignores Accept.
        const plain = () => fileBody(session, entity, fileType(name), options)
        return found({ etag: etagOf(entity.cid), varies: true }, plain)
      }
      const typing = fileType(name)
      const about = { type: typing.byName, size: entity.size }
      return found({ etag: etagOf(entity.cid), ...about }, () => plainFile(session, entity, typing, options))
    }
  }
}

const pageTags = { cacheControl: listingCacheControl, varies: true } as const
const markdown = 'text/markdown'

const wantsPage = ({ negotiated, accept, target }: WebRequest): boolean =>
  negotiated.as === 'file' && qualityOf(accept, 'text/html') > 0 && !isDownload(target)

/** Reads the file while it is sent, without buffering it. */
function text(session: Session, entity: Entity, name: string): Content {
  const read = () => textPage(name, entity.cid, readFile(session, entity))
  return { type: html, size: undefined, ranges: false, policy: pagePolicy, read }
}

const indexName = 'index.html'
const isDownload = ({ query }: RequestTarget): boolean => query.get('download') === 'true'

/**
 * JSON only if the client asks for it explicitly; a browser that accepts it among others gets a
 * page.
 */
function listingWanted({ negotiated: { as, byAccept }, accept }: WebRequest): SiteRequest['listing'] {
  if (as !== 'json') return 'never'
  if (!byAccept) return 'always'
  return qualityOf(accept, 'text/html') < qualityOf(accept, 'application/json') ? 'without-page' : 'never'
}

function page(session: Session, at: Whereabouts, entity: Entity): Content {
  const read = () => listingPage(at, entity.cid, listDirectory(session, entity))
  return { type: html, size: undefined, ranges: false, policy: pagePolicy, read }
}

function document({ cid, block }: Entity): Content {
  const { type = octets, ending = '.bin', isText = false } = types.get(cid.code) ?? {}
  return { ...inMemory(block, type), save: { kind: isText ? 'inline' : 'attachment', filename: `${cid}${ending}` } }
}

function whereabouts({ place, path, host }: WebRequest, served: Served): Whereabouts {
  const { namespace, own } = place
  const sent = place.path.split('/')[2] ?? ''
  const root = decoded(sent) ?? sent
  const isElsewhere = served.kind === 'content' && served.isRewritten
  // A name may resolve to a path; the page shows only the segments in the URL.
  const behind = place.path.split('/').filter((name) => name !== '').length - 2
  const segments = isElsewhere ? served.resolution.path.segments : path.segments.slice(path.segments.length - behind)
  const gateway = own ? place.gateway && `//${place.gateway}` : place.base
  return {
    namespace,
    root,
    segments,
    base: own ? '' : joined(`${place.base}/${namespace}`, [root]),
    gateway,
    host: host?.startsWith(root) ? host : root,
  }
}
