// How much a memory may hold, for `lru-cache`. Imports nothing of ours.

/**
 * At most so many entries. With `max` the cache reserves the room for all of them when it is made, megabytes for each gateway;
 * counted as sizes, the room grows with what is kept.
 */
export const upTo = (most: number) => ({ maxSize: most, sizeCalculation: () => 1 })
