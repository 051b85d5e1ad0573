// Planck-chart checks the Helm chart. It lints and renders the chart with Helm's own engine in several configurations, and reads the
// result as strictly as a Kubernetes API server does. It reads the dashboard with Grafana's own types. It needs no cluster, no
// Grafana and no network.
//
//	planck-chart CHART|DASHBOARD.json
package main

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint/rules"
	"helm.sh/helm/v3/pkg/lint/support"
	"helm.sh/helm/v3/pkg/strvals"
)

// The values that every user has to set.
const least = "image.repository=registry.example/planck,nats.secret=n,postgres.secret=p,workspaces[0].name=shared,workspaces[0].claim=work"

// All values of the chart that a user can set.
const most = least + ",workspaces[1].name=data,workspaces[1].claim=data,replicas=5,maxUnavailable=2,drainSeconds=600" +
	",image.digest=sha256:0,image.pullSecrets[0].name=pull,nats.creds=nats.creds,nats.tls.secret=t,nats.tls.client=true" +
	",providers.secret=k,providers.keys={ANTHROPIC_API_KEY,OPENAI_API_KEY},config.limits.max_cost_usd=5,env[0].name=RUST_LOG" +
	",env[0].value=debug,telemetry.port=9999,telemetry.otlpEndpoint=http://collector:4318,podLabels.team=a,podAnnotations.note=b" +
	",sandbox.seccompProfile=planck.json,sandbox.appArmorProfile=Unconfined,nodeSelector.disk=ssd,tolerations[0].operator=Exists,priorityClassName=high,resources.limits.memory=8Gi" +
	",affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].key=zone" +
	",affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].operator=Exists"

// Settings that the chart refuses, and a part of the error.
var refused = map[string]string{
	"":                                            "workspaces",
	least + ",image.repository=":                  "image.repository",
	least + ",nats.secret=":                       "nats.secret",
	least + ",postgres.secret=":                   "postgres.secret",
	least + ",workspaces=null":                    "workspaces",
	least + ",replica=3":                          "replica",
	least + ",replicas=0":                         "replicas",
	least + ",workspaces[0].name=My-Files":        "name",
	least + ",providers.keys={ANTHROPIC_API_KEY}": "providers.secret",
	least + ",sandbox.seccompProfile=/planck.json": "seccompProfile",
}

func main() {
	if len(os.Args) != 2 {
		fail("usage: planck-chart CHART|DASHBOARD.json")
	}
	if path := os.Args[1]; strings.HasSuffix(path, ".json") {
		judgeDashboard(path)
	} else {
		judgeChart(path)
	}
}

func judgeChart(path string) {
	planck, err := loader.Load(path)
	check(err, "cannot load the chart")
	for _, said := range []string{least, most} {
		lint(path, values(said))
		rendered, err := render(planck, values(said))
		check(err, "cannot render with "+said)
		objects, err := read(rendered)
		check(err, "with "+said)
		check(objects.agree(), "with "+said)
		fmt.Printf("%d objects are what Kubernetes takes, with %d values said\n", objects.count, strings.Count(said, ",")+1)
	}
	for _, said := range slices.Sorted(maps.Keys(refused)) {
		_, err := render(planck, values(said))
		if err == nil || !strings.Contains(err.Error(), refused[said]) {
			fail("with %q: not refused for %s: %v", said, refused[said], err)
		}
	}
	fmt.Printf("%d wrong settings are refused\n", len(refused))
}

func values(said string) map[string]any {
	parsed, err := strvals.Parse(said)
	check(err, "cannot read "+said)
	return parsed
}

func lint(path string, said map[string]any) {
	linter := support.Linter{ChartDir: path}
	rules.Chartfile(&linter)
	rules.ValuesWithOverrides(&linter, said)
	rules.TemplatesWithKubeVersion(&linter, said, "planck", kubernetes())
	rules.Dependencies(&linter)
	for _, message := range linter.Messages {
		if message.Severity > support.InfoSev {
			fail("%s", message)
		}
	}
}

func kubernetes() *chartutil.KubeVersion {
	return &chartutil.KubeVersion{Version: "v1.31.0", Major: "1", Minor: "31"}
}

// Render returns the text of each file.
func render(planck *chart.Chart, said map[string]any) (map[string]string, error) {
	release := chartutil.ReleaseOptions{Name: "no", Namespace: "planck", Revision: 1, IsInstall: true}
	capabilities := chartutil.DefaultCapabilities.Copy()
	capabilities.KubeVersion = *kubernetes()
	all, err := chartutil.ToRenderValues(planck, said, release, capabilities)
	if err != nil {
		return nil, err
	}
	return engine.Engine{Strict: true}.Render(planck, all)
}

func check(err error, what string) {
	if err != nil {
		fail("%s: %v", what, err)
	}
}

func fail(format string, words ...any) {
	fmt.Fprintf(os.Stderr, "planck-chart: "+format+"\n", words...)
	os.Exit(1)
}
