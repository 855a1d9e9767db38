// The address of a service that is asked. Who we are there stands in an option of its own, if anywhere: a user and a password in the
// address would not be sent.
import { z } from 'zod'

export const serviceUrl = () =>
  z.url({ protocol: /^https?$/ }).refine(hasNoUser, { error: 'expected an address without user and password' })

function hasNoUser(text: string): boolean {
  const { username, password } = URL.parse(text) ?? { username: '', password: '' }
  return username === '' && password === ''
}
