// The URL of a service. Credentials belong in an option of their own: a user and a password in the
// URL would not be sent.
import { z } from 'zod'

export const serviceUrl = () =>
  z.url({ protocol: /^https?$/ }).refine(hasNoUser, { error: 'expected an address without user and password' })

function hasNoUser(text: string): boolean {
  const { username, password } = URL.parse(text) ?? { username: '', password: '' }
  return username === '' && password === ''
}
