// The table of commands: options, help, and code. The code is imported when the command runs, so
// that `--help` does not load the gateway.
import { type Command, json, type Options, oneFile } from './command.ts'

/** Options of commands that ask a running gateway. */
const toGateway = {
  gateway: {
    type: 'string',
    value: 'URL',
    what: 'the gateway, also unix:/path/to.sock (default: CIDGATE_GATEWAY, or `listen` of the configuration)',
  },
  json,
} as const satisfies Options
const toAdmin = {
  admin: {
    type: 'string',
    value: 'URL',
    what: 'the admin address, also unix:/path/to.sock (default: that of the configuration)',
  },
  json,
} as const satisfies Options
const adminHint = 'From another machine CIDGATE_ADMIN_TOKEN holds one of adminAccess.tokens.'
const output = {
  type: 'string',
  short: 'o',
  value: 'FILE',
  what: 'write to this file, which appears when it is complete',
} as const

const textOf = (value: string | boolean | undefined): string | undefined =>
  typeof value === 'string' ? value : undefined
const tokenHint = 'Where uploads need a token, CIDGATE_TOKEN holds it.'

export const commands: readonly Command[] = [
  {
    name: 'serve',
    takes: '',
    what: 'run the gateway',
    more: `SIGHUP reloads the configuration. SIGTERM and SIGINT stop after the requests in progress; a second one stops at
once. CIDGATE_LISTEN, CIDGATE_ADMIN, CIDGATE_DATA and CIDGATE_UPLOAD_AUTH (none, open, or tokens) override the file.`,
    options: {},
    examples: ['cidgate serve', 'cidgate --config my.yaml'],
    run: async ({ values }) => (await import('./serve.ts')).serveCommand(textOf(values['config'])),
  },
  {
    name: 'check',
    takes: '[FILE]',
    what: 'check a configuration; print one line for each mistake',
    options: {
      json,
      effective: { type: 'boolean', what: 'print every value with its source; secrets are masked' },
    },
    examples: ['cidgate check my.yaml', 'cidgate check my.yaml --effective'],
    async run({ values, positionals, io }) {
      const { checkCommand } = await import('./check.ts')
      return checkCommand(oneFile('check', positionals, textOf(values['config'])), {
        io,
        isEffective: values['effective'] === true,
        asJson: values['json'] === true,
      })
    },
  },
  {
    name: 'doctor',
    takes: '[FILE]',
    what: 'check its folder, providers, tiers and upstreams, and say what to fix',
    more: `Each check prints its line when it ends. The exit code is 1 if the gateway could not work. --salvage makes a new
database of what can be read of a damaged one, while no gateway runs over the folder; the damaged files are moved aside.`,
    options: { json, salvage: { type: 'boolean', what: 'make a new database in place of a damaged one' } },
    examples: ['cidgate doctor -c my.yaml', 'cidgate doctor my.yaml --json', 'cidgate doctor --salvage'],
    async run({ values, positionals, io }) {
      const file = oneFile('doctor', positionals, textOf(values['config']))
      if (values['salvage'] === true) return (await import('./stores.ts')).salvageCommand(file, io)
      return (await import('./doctor.ts')).doctorCommand(file, values['json'] === true)
    },
  },
  {
    name: 'backup',
    takes: 'FOLDER',
    what: 'copy uploads and keys into a new folder, also while the gateway runs',
    more: `The copy is a data folder to start from. It has every upload that was acknowledged before the command ended. Files of large
uploads are hard links where FOLDER is on the same disk.`,
    options: {},
    examples: ['cidgate backup /backups/monday', 'cidgate backup /backups/monday -c my.yaml'],
    needs: 'one folder',
    run: async ({ values, positionals: [folder = ''], io }) =>
      (await import('./stores.ts')).backupCommand(textOf(values['config']), folder, io),
  },
  {
    name: 'status',
    takes: '',
    what: 'show tiers, upstreams and pending deliveries of a running gateway',
    more: `It asks the admin address. The exit code is 0 if the gateway is ready, otherwise 1. --failures shows the last 100
requests with a status from 400 on: time, request, reason, and upstreams. ${adminHint}`,
    options: {
      ...toAdmin,
      watch: { type: 'boolean', what: 'refresh every two seconds' },
      failures: { type: 'boolean', what: 'the last failed requests, newest first' },
    },
    examples: [
      'cidgate status',
      'cidgate status --watch',
      'cidgate status --failures',
      'cidgate status --admin http://10.0.0.7:8081 --json',
    ],
    run: async (given) => (await import('./client/status.ts')).statusCommand(given),
  },
  {
    name: 'add',
    takes: 'FILE|FOLDER…',
    what: 'upload files and folders; prints the path of each',
    more: `A folder becomes one directory with everything below it, including empty folders, without names that begin with a dot. - is
standard input. A CAR is added as a file: import adds its content.
${tokenHint}`,
    options: {
      ...toGateway,
      name: { type: 'string', value: 'NAME', what: 'name of the pin' },
      hidden: { type: 'boolean', what: 'also names that begin with a dot' },
    },
    examples: ['cidgate add policy.json', 'cidgate add dist/', 'echo hello | cidgate add -'],
    needs: 'a file or a folder',
    run: async (given) => (await import('./client/add.ts')).addCommand(given),
  },
  {
    name: 'import',
    takes: 'CAR…',
    what: 'upload CARs under the CIDs of their roots; prints the path of each root',
    more: `Each root must be complete in its CAR. ${tokenHint}`,
    options: toGateway,
    examples: ['cidgate import site.car'],
    needs: 'a CAR',
    run: async (given) => (await import('./client/add.ts')).importCommand(given),
  },
  {
    name: 'get',
    takes: 'PATH',
    what: 'read a file: a CID, /ipfs/<cid>/<path>, ipfs://<cid>/<path> or /ipns/<name>',
    options: { ...toGateway, output, json: { ...json, what: 'with --output: describe the file in JSON' } },
    examples: [
      'cidgate get bafkreifzjut3te7nhyekklss27nh3k72ysco7y32koao5eei66wof36n5e',
      'cidgate get /ipfs/<cid>/video.mp4 -o video.mp4',
    ],
    needs: 'one path',
    run: async (given) => (await import('./client/read.ts')).getCommand(given, given.positionals[0] ?? ''),
  },
  {
    name: 'export',
    takes: 'PATH',
    what: 'export everything below a path as a CAR',
    options: { ...toGateway, output, json: { ...json, what: 'with --output: describe the file in JSON' } },
    examples: ['cidgate export /ipfs/<cid> -o site.car'],
    needs: 'one path',
    run: async (given) => (await import('./client/read.ts')).getCommand(given, given.positionals[0] ?? '', 'car'),
  },
  {
    name: 'why',
    takes: 'PATH',
    what: 'explain a response: its tier or upstream, and each upstream that was asked',
    options: toGateway,
    examples: ['cidgate why /ipfs/<cid>/index.html'],
    needs: 'one path',
    run: async (given) => (await import('./client/read.ts')).whyCommand(given, given.positionals[0] ?? ''),
  },
  {
    name: 'reach',
    takes: 'CID',
    what: 'check if other nodes can find and fetch what is pinned here',
    more: `It asks by the address \`public\` of the configuration, as other nodes do: this gateway as a router, the block over HTTP/2, the
indexers of \`announce\` and the routers. The exit code is 1 if something is wrong; the last line names the first fault.`,
    options: { json },
    examples: ['cidgate reach bafkreifzjut3te7nhyekklss27nh3k72ysco7y32koao5eei66wof36n5e -c my.yaml'],
    needs: 'one CID',
    run: async (given) => (await import('./client/reach.ts')).reachCommand(given, given.positionals[0] ?? ''),
  },
  {
    name: 'warm',
    takes: 'LIST|PATH…',
    what: 'load everything below each path, and each path in a list, into the tiers',
    more: 'With --resume-file it can be stopped at any time, and continues with the paths that the file does not name.',
    options: {
      ...toGateway,
      list: { type: 'string', value: 'FILE', what: 'a file with a path or CID on each line; # begins a comment' },
      'resume-file': {
        type: 'string',
        value: 'FILE',
        what: 'record each completed path in this file, and skip those in it',
      },
      concurrency: { type: 'string', value: 'N', what: 'concurrent paths (4)' },
    },
    examples: ['cidgate warm bafybei…', 'cidgate warm cids.txt --resume-file cids.done'],
    run: async (given) => (await import('./client/read.ts')).warmCommand(given),
  },
  {
    name: 'pins',
    takes: '[ls|rm|verify|sync] [CID…]',
    words: ['ls', 'rm', 'verify', 'sync'],
    what: 'list pins and their holders; delete, verify, or send to providers that lack them',
    more: `ls lists pins. rm deletes at every provider. verify hashes the blocks of the gateway, asks the other providers, and prints
faults. sync sends uploads that a provider lacks. ls, verify and sync handle the named pins, or all that the options select. The
exit code is 1 if a pin needs attention. ${adminHint}`,
    options: {
      ...toAdmin,
      name: { type: 'string', value: 'TEXT', what: 'name contains TEXT' },
      provider: { type: 'string', value: 'NAME', what: 'pins that it holds, or that are in --state there' },
      state: { type: 'string', value: 'STATE', what: 'pinned, pending, abandoned or missing at a provider' },
      since: { type: 'string', value: 'TIME', what: 'uploaded since then, such as 2026-01-31' },
      until: { type: 'string', value: 'TIME', what: 'uploaded until then' },
      min: { type: 'string', value: 'SIZE', what: 'minimum size, such as 10MiB' },
      max: { type: 'string', value: 'SIZE', what: 'maximum size' },
    },
    examples: [
      'cidgate pins',
      'cidgate pins --name report',
      'cidgate pins verify',
      'cidgate pins sync --provider kubo --state missing',
      'cidgate pins rm bafy…',
    ],
    run: async (given) => (await import('./client/pins.ts')).pinsCommand(given),
  },
  {
    name: 'deny',
    takes: 'CID…',
    what: 'take down: deny, delete at every provider, purge from tiers and memory',
    more: `The exit code is 1 if an instance or provider still has it; it can be repeated. ${adminHint}`,
    options: {
      json,
      admin: {
        ...toAdmin.admin,
        value: 'URL,…',
        what: 'the admin addresses of all instances (default: that of the configuration)',
      },
      reason: { type: 'string', value: 'WORD', what: 'reason shown to readers, such as malware' },
      legal: { type: 'boolean', what: 'legal reason: 451 instead of 410' },
    },
    examples: [
      'cidgate deny bafy… --reason malware',
      'cidgate deny bafy… --legal --admin http://10.0.0.7:8081,http://10.0.0.8:8081',
    ],
    needs: 'a CID',
    run: async (given) => (await import('./client/pins.ts')).denyCommand(given),
  },
  {
    name: 'completion',
    takes: 'bash|zsh|fish',
    words: ['bash', 'zsh', 'fish'],
    what: 'print a completion script',
    options: {},
    examples: ['source <(cidgate completion bash)', 'cidgate completion fish >~/.config/fish/completions/cidgate.fish'],
    needs: 'one shell',
    async run({ positionals: [shell = ''], io }) {
      io.stdout.write((await import('./help.ts')).completionFor(shell, commands))
      return 0
    },
  },
]
