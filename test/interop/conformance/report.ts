// What a run of the conformance suite says, case by case: the leaves of its tree of tests.
export type Counts = { readonly passed: ReadonlySet<string>; readonly failed: ReadonlySet<string> }

export function readReport(lines: string): Counts {
  const outcome = new Map<string, string>()
  for (const line of lines.split('\n').filter((one) => one.startsWith('{'))) {
    const { Action, Test } = JSON.parse(line) as { Action?: string; Test?: string }
    if (Test && (Action === 'pass' || Action === 'fail' || Action === 'skip')) outcome.set(Test, Action)
  }
  const parents = new Set<string>()
  for (const name of outcome.keys())
    for (let end = name.lastIndexOf('/'); end > 0; end = name.lastIndexOf('/', end - 1)) parents.add(name.slice(0, end))
  const leaves = (action: string) =>
    new Set([...outcome].filter(([name, said]) => said === action && !parents.has(name)).map(([name]) => name))
  return { passed: leaves('pass'), failed: leaves('fail') }
}
