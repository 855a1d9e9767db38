// Prints deploy/kubernetes-monitoring.yaml from the alert rules of deploy/prometheus/alerts.yaml
// (`npm run schema`).
import { readFileSync } from 'node:fs'
import { parse, stringify } from 'yaml'

const opening = `# For clusters with the Prometheus operator: Prometheus reads the metrics of each pod of deploy/kubernetes.yaml, and has the
# alert rules of deploy/prometheus/alerts.yaml. Made from those (npm run schema): change them there.
#   kubectl apply -f deploy/kubernetes-monitoring.yaml
# A Prometheus that selects monitors and rules by a label wants that label on both, such as release: kube-prometheus-stack.
`

const labels = { app: 'cidgate' }
const admin = { app: 'cidgate', purpose: 'metrics' }

/** Headless: Prometheus scrapes each pod, also one that drains. */
const service = {
  apiVersion: 'v1',
  kind: 'Service',
  metadata: { name: 'cidgate-metrics', labels: admin },
  spec: {
    clusterIP: 'None',
    publishNotReadyAddresses: true,
    selector: labels,
    ports: [{ name: 'admin', port: 8081, targetPort: 'admin' }],
  },
}

const monitor = {
  apiVersion: 'monitoring.coreos.com/v1',
  kind: 'ServiceMonitor',
  metadata: { name: 'cidgate', labels },
  spec: {
    // The job name in the rules and the dashboard.
    jobLabel: 'app',
    selector: { matchLabels: admin },
    endpoints: [{ port: 'admin', path: '/metrics', interval: '15s', scrapeTimeout: '10s' }],
  },
}

export function kubernetesMonitoring(): string {
  const alerts = readFileSync(new URL('../deploy/prometheus/alerts.yaml', import.meta.url), 'utf8')
  const { groups } = parse(alerts) as { groups: unknown }
  const rules = {
    apiVersion: 'monitoring.coreos.com/v1',
    kind: 'PrometheusRule',
    metadata: { name: 'cidgate', labels },
    spec: { groups },
  }
  const documents = [service, monitor, rules].map((one) => stringify(one, { lineWidth: 0 }))
  return `${opening}${documents.join('---\n')}`
}

if (process.argv[1] === import.meta.filename) process.stdout.write(kubernetesMonitoring())
