// A value, or a promise where it must be waited for. Most requests for cached content need no promise.
export type Soon<T> = T | Promise<T>

/** Calls `then` with the value: at once if it is there. */
export const after = <A, B>(value: Soon<A>, then: (value: A) => Soon<B>): Soon<B> =>
  value instanceof Promise ? value.then(then) : then(value)
