// A queue in which clients take turns: each client's own are in the order in which they came, and one of each client goes after the other.

export interface ClientQueue<Waiter> {
  readonly size: number
  /** The first of the client whose turn it is. */
  readonly next: Waiter | undefined
  add(waiter: Waiter, client: string): void
  delete(waiter: Waiter, client: string): void
  /** The others go before this client's next. */
  turn(client: string): void
  /** Takes the next one out; the other clients go before the next of its client. */
  take(): Waiter | undefined
}

export function createClientQueue<Waiter>(): ClientQueue<Waiter> {
  const clients = new Map<string, Set<Waiter>>()
  let size = 0

  function remove(waiter: Waiter, client: string): void {
    const waiting = clients.get(client)
    if (!waiting?.delete(waiter)) return
    size--
    if (waiting.size === 0) clients.delete(client)
  }

  function turn(client: string): void {
    const waiting = clients.get(client)
    if (!waiting || clients.size === 1) return
    clients.delete(client)
    clients.set(client, waiting)
  }

  return {
    get size() {
      return size
    },
    get next() {
      const [waiting] = clients.values()
      return waiting?.values().next().value
    },
    add(waiter, client) {
      const waiting = clients.get(client)
      if (waiting) waiting.add(waiter)
      else clients.set(client, new Set([waiter]))
      size++
    },
    delete: remove,
    turn,
    take() {
      const [first] = clients
      if (!first) return undefined
      const [client, waiting] = first
      const [waiter] = waiting
      turn(client)
      remove(waiter as Waiter, client)
      return waiter
    },
  }
}
