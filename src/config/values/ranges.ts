// IP addresses and ranges: 127.0.0.1, 10.0.0.0/8, fd00::/8. `unix` stands for unix sockets.
import { isIP } from 'node:net'
import { z } from 'zod'

function isRange(text: string): boolean {
  if (text === 'unix') return true
  const [address = '', bits, more] = text.split('/')
  const family = isIP(address)
  if (family === 0 || more !== undefined) return false
  return bits === undefined || (/^\d{1,3}$/.test(bits) && Number(bits) <= (family === 4 ? 32 : 128))
}

export const ranges = () =>
  z.array(
    z.string().refine(isRange, 'expected an address or a range such as 127.0.0.1, 10.0.0.0/8 or fd00::/8, or unix'),
  )
