// What a run of the conformance suite says, case by case.
export type Counts = { readonly passed: ReadonlySet<string>; readonly failed: ReadonlySet<string> }

/**
 * A case is a leaf in the tree of tests, and below another test. A test at the top that has nothing below it is none: the
 * suite has one of its own, which passes always and writes down what was tested. When one fails, it counts all the same.
 */
export function readReport(lines: string): Counts {
  const outcome = new Map<string, string>()
  for (const line of lines.split('\n').filter((one) => one.startsWith('{'))) {
    const { Action, Test } = JSON.parse(line) as { Action?: string; Test?: string }
    if (Test && (Action === 'pass' || Action === 'fail' || Action === 'skip')) outcome.set(Test, Action)
  }
  const parents = new Set<string>()
  for (const name of outcome.keys())
    for (let end = name.lastIndexOf('/'); end > 0; end = name.lastIndexOf('/', end - 1)) parents.add(name.slice(0, end))
  const leaves = [...outcome].filter(([name]) => !parents.has(name))
  const named = (wanted: (name: string, said: string) => boolean) =>
    new Set(leaves.filter(([name, said]) => wanted(name, said)).map(([name]) => name))
  return {
    passed: named((name, said) => said === 'pass' && name.includes('/')),
    failed: named((_name, said) => said === 'fail'),
  }
}

/** Each case in the first group whose run had it. */
export function sorted(groups: ReadonlyMap<string, Counts>): Map<string, Set<string>> {
  const seen = new Set<string>()
  const cases = new Map<string, Set<string>>()
  for (const [group, { passed, failed }] of groups) {
    const own = new Set([...passed, ...failed].filter((name) => !seen.has(name)))
    for (const name of own) seen.add(name)
    cases.set(group, own)
  }
  return cases
}

export type Column = {
  readonly head: string
  readonly counts: Counts
  /** Whether the cases of a group are asked of it at all. */
  readonly asked: (group: string) => boolean
}

type Cases = ReadonlyMap<string, ReadonlySet<string>>

/** What the first column passes and another one does not, or was not even asked; and cases that stand in no group. */
export function judged(
  [reference, ...others]: readonly Column[],
  cases: Cases,
): { missed: string[]; shared: string[] } {
  const known = new Set([...cases.values()].flatMap((names) => [...names]))
  const missed: string[] = []
  const shared: string[] = []
  if (known.size === 0) missed.push('nothing was run')
  for (const { head, counts } of reference ? [reference, ...others] : [])
    for (const name of [...counts.passed, ...counts.failed])
      if (!known.has(name)) missed.push(`in no group: ${head}: ${name}`)
  for (const { head, counts, asked } of others)
    for (const [group, names] of cases)
      for (const name of asked(group) ? names : []) {
        if (counts.passed.has(name)) continue
        const said = `${head}: ${group}: ${name}: ${counts.failed.has(name) ? 'failed' : 'was not run'}`
        if (reference?.counts.passed.has(name)) missed.push(said)
        else shared.push(said)
      }
  return { missed, shared }
}

/** In Markdown, for docs/measured.md. */
export function table(columns: readonly Column[], cases: Cases): string {
  const row = (head: string, cells: readonly string[]) => `| ${head} | ${cells.join(' | ')} |`
  const cell = (names: ReadonlySet<string>, { passed, failed }: Counts) => {
    const failures = both(names, failed)
    return `${both(names, passed)}${failures > 0 ? `, ${failures} failed` : ''}`
  }
  return [
    row(
      'group',
      columns.map(({ head }) => head),
    ),
    `|---|${'---|'.repeat(columns.length)}`,
    ...[...cases].map(([group, names]) =>
      row(
        group,
        columns.map(({ counts, asked }) => (asked(group) ? cell(names, counts) : '–')),
      ),
    ),
    row(
      'all',
      columns.map(({ counts }) => cell(new Set([...counts.passed, ...counts.failed]), counts)),
    ),
  ].join('\n')
}

const both = (names: ReadonlySet<string>, others: ReadonlySet<string>): number =>
  [...names].filter((name) => others.has(name)).length
