// Prints docs/command-line.md from the table of commands (`npm run schema`).
import { commands } from '../src/cli/commands.ts'
import { helpFor } from '../src/cli/help.ts'

const parts = commands.map((one) => `## ${one.name}\n\n\`\`\`\n${helpFor(one)}\`\`\``)
process.stdout.write(`# The command line

Made from \`src/cli/commands.ts\` by \`npm run schema\`. In a clone it is \`node bin/cidgate.mjs\`, in an installed package \`npx cidgate\`.

The exit code is 0 when it worked, 1 when it failed, and 2 when it was called wrongly. Commands that ask a running gateway find it by \`--gateway\`, \`CIDGATE_GATEWAY\` or the
configuration; \`status\`, \`pins\` and \`deny\` by \`--admin\`, \`CIDGATE_ADMIN_URL\` or the configuration. They believe the gateway that they ask: \`export\` brings the blocks, which prove themselves.
Progress is shown on a terminal alone. Completion: \`source <(cidgate completion bash)\`.

${parts.join('\n\n')}
`)
