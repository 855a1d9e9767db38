// How many uploads are received at once, and how many of their bytes may lie here unanswered.
import { busy } from './failures.ts'

export interface Admission {
  /** Throws a Failure when there are too many. */
  enter(): () => void
  count(): Counter
  readonly uploads: number
  readonly bytes: number
}

export interface Counter {
  readonly bytes: number
  /** Throws a Failure when there is no room for more. */
  add(bytes: number): void
  over(source: AsyncIterable<Uint8Array>): AsyncIterable<Uint8Array>
  release(): void
}

export function createAdmission({ most, mostBytes }: { readonly most: number; readonly mostBytes: number }): Admission {
  let uploads = 0
  let bytes = 0
  return {
    enter() {
      if (uploads >= most) throw busy(`${most} uploads are being received; come back in a moment`)
      uploads++
      let left = false
      return () => {
        if (!left) uploads--
        left = true
      }
    },
    count() {
      let own = 0
      let released = false
      return {
        get bytes() {
          return own
        },
        add(more) {
          own += more
          bytes += more
          if (bytes > mostBytes)
            throw busy('the uploads being received need all the room there is; come back later', 5000)
        },
        async *over(source) {
          for await (const piece of source) {
            this.add(piece.byteLength)
            yield piece
          }
        },
        release() {
          if (!released) bytes -= own
          released = true
        },
      }
    },
    get uploads() {
      return uploads
    },
    get bytes() {
      return bytes
    },
  }
}
