// The operator's address as a link.
import { escaped } from './page.ts'

export const whoAnswers = 'Who answers for this gateway:'

export const contactHref = (contact: string): string =>
  /^(https?|mailto):/i.test(contact) ? contact : `mailto:${contact}`

/** The visible text leaves out `mailto:`. */
export const contactLink = (contact: string): string =>
  `<a href="${escaped(contactHref(contact))}">${escaped(contact.replace(/^mailto:/i, ''))}</a>`
