/**
 * Limits an `lru-cache` to `most` entries. Its own `max` would allocate megabytes in advance for
 * each gateway; `maxSize` grows with the entries.
 */
export const upTo = (most: number) => ({ maxSize: most, sizeCalculation: () => 1 })
