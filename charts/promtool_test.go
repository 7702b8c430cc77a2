package charts_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

// prometheus runs promtool on files in a directory.
type prometheus struct{ promtool, dir string }

func newPrometheus(t *testing.T) prometheus {
	t.Helper()
	found, err := output(t.Context(), "bash", "../hack/promtool/get.sh")
	if err != nil {
		t.Fatal(err)
	}
	return prometheus{strings.TrimSpace(string(found)), t.TempDir()}
}

func (p prometheus) put(t *testing.T, name string, data []byte) (path string) {
	t.Helper()
	path = filepath.Join(p.dir, name)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func (p prometheus) run(t *testing.T, args ...string) {
	t.Helper()
	if _, err := output(t.Context(), p.promtool, args...); err != nil {
		t.Error(err)
	}
}

// alerts checks the rules of a chart with promtool, and tests them with a file of testdata. It returns the rules and
// the text of that file.
func (p prometheus) alerts(t *testing.T, objects []runtime.Object, file string) (rules, tests string) {
	t.Helper()
	spec, err := yaml.Marshal(ofKind(t, objects, "PrometheusRule").Object["spec"])
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	p.run(t, "check", "rules", p.put(t, "alerts.yaml", spec))
	p.run(t, "test", "rules", p.put(t, file, text))
	return string(spec), string(text)
}

// TestPromtoolAcceptsAlertsAndDashboard checks the rendered rules and the queries of the dashboard with promtool, and
// tests when the alerts fire.
func TestPromtoolAcceptsAlertsAndDashboard(t *testing.T) {
	p := newPrometheus(t)
	objects := renderChart(t, "metrics.prometheusRule.enabled=true,metrics.dashboard.enabled=true")
	rules, tests := p.alerts(t, objects, "alerts_test.yaml")
	for line := range strings.SplitSeq(rules, "\n") {
		if name, isAlert := strings.CutPrefix(strings.TrimSpace(line), "- alert: "); isAlert &&
			strings.Count(tests, "alertname: "+name) < 2 {
			t.Errorf("alert %s needs a test in which it fires and a test in which it does not fire", name)
		}
	}

	// promtool accepts a dashboard's queries as rules after their variables have values.
	type rule struct {
		Record string `json:"record"`
		Expr   string `json:"expr"`
	}
	var queries []rule
	for _, q := range dashboardQueries(t, one[*corev1.ConfigMap](t, objects)) {
		queries = append(queries, rule{"dashboard:query", q.expr})
	}
	text, err := yaml.Marshal(map[string]any{"groups": []map[string]any{{"name": "dashboard", "rules": queries}}})
	if err != nil {
		t.Fatal(err)
	}
	p.run(t, "check", "rules", "--lint=none", p.put(t, "dashboard.yaml", text))
	if len(queries) < 12 {
		t.Errorf("the dashboard has %d queries, want at least 12", len(queries))
	}
}

// TestPromtoolAcceptsQueriesOfSLIs checks the queries of docs/slis.md with promtool, and tests their results together
// with the recording rules of the chart.
func TestPromtoolAcceptsQueriesOfSLIs(t *testing.T) {
	page, err := os.ReadFile("../docs/slis.md")
	if err != nil {
		t.Fatal(err)
	}
	var rules []map[string]string
	exprs := map[string]string{} // by heading, with a number from the second one
	for section := range strings.SplitSeq(string(page), "\n## ") {
		heading, _, _ := strings.Cut(section, "\n")
		for i, b := range regexp.MustCompile("(?s)```promql\n(.+?)```").FindAllStringSubmatch(section, -1) {
			name := heading
			if i > 0 {
				name += " " + strconv.Itoa(i+1)
			}
			exprs[name] = b[1]
			rules = append(rules, map[string]string{"record": "sli:query", "expr": b[1]})
		}
	}
	if len(rules) < 5 {
		t.Fatalf("docs/slis.md has %d queries, want at least 5", len(rules))
	}
	text, err := yaml.Marshal(map[string]any{"groups": []map[string]any{{"name": "slis", "rules": rules}}})
	if err != nil {
		t.Fatal(err)
	}
	p := newPrometheus(t)
	p.run(t, "check", "rules", "--lint=none", p.put(t, "slis.yaml", text))
	p.testQueries(t, renderChart(t, "metrics.prometheusRule.enabled=true"), "slis_test.yaml", exprs)
}

// testQueries runs a file of testdata, in which names in angle brackets stand for the queries in exprs.
func (p prometheus) testQueries(t *testing.T, objects []runtime.Object, file string, exprs map[string]string) {
	t.Helper()
	tests, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	rules, err := yaml.Marshal(ofKind(t, objects, "PrometheusRule").Object["spec"])
	if err != nil {
		t.Fatal(err)
	}
	p.put(t, "alerts.yaml", rules)
	p.run(t, "test", "rules", p.put(t, file, regexp.MustCompile(`"<.+?>"`).ReplaceAllFunc(tests, func(name []byte) []byte {
		expr := exprs[string(name[2:len(name)-2])]
		if expr == "" {
			t.Errorf("there is no query %s", name)
		}
		return []byte(strconv.Quote(expr))
	})))
}

// TestAlertsSelectNamespace checks that the alerts select the release's namespace if the chart sets up the scraping of
// its Pods, so that the metrics of another release do not hide that this release is down.
func TestAlertsSelectNamespace(t *testing.T) {
	p := newPrometheus(t)
	for _, monitor := range []string{"podMonitor", "serviceMonitor"} {
		p.alerts(t, renderChart(t, "metrics.prometheusRule.enabled=true,metrics."+monitor+".enabled=true"), "alerts_of_release_test.yaml")
	}
}

// TestNamespaceLabel checks the alerts and the dashboard for a Prometheus that renames the label namespace of the
// metrics.
func TestNamespaceLabel(t *testing.T) {
	objects := renderChart(t, "metrics.prometheusRule.enabled=true,metrics.dashboard.enabled=true,metrics.serviceMonitor.enabled=true",
		"metrics.namespaceLabel=exported_namespace")
	rules, _ := newPrometheus(t).alerts(t, objects, "alerts_of_renamed_label_test.yaml")
	own := regexp.MustCompile(`by \(namespace\) \(capstan_(turns_capacity|controller_active)\{namespace="capstan-system"\}\)`)
	byNamespace := regexp.MustCompile(`by \([^)]*\bnamespace\b|labels\.namespace`)
	if found := byNamespace.FindString(own.ReplaceAllString(rules, "")); found != "" {
		t.Errorf("the alerts have %q, want the label exported_namespace, except for the Pods of the release", found)
	}
	board := one[*corev1.ConfigMap](t, objects).Data["capstan.json"]
	for _, of := range []string{"{namespace=~", "by (namespace", "{{namespace}}", ", namespace)"} {
		if strings.Contains(board, of) {
			t.Errorf("the dashboard has %q, want the label exported_namespace", of)
		}
	}
}

// TestQueriesHaveResults checks the results of queries while a counter or a gauge has no series yet, and with the first
// value of a new series.
func TestQueriesHaveResults(t *testing.T) {
	objects := renderChart(t, storeURL, scaled, "executor.autoscaling.prometheusAddress=http://prometheus:9090",
		"metrics.dashboard.enabled=true,metrics.prometheusRule.enabled=true")
	exprs := map[string]string{"load": loadQuery(t, objects)}
	for _, q := range dashboardQueries(t, one[*corev1.ConfigMap](t, objects)) {
		exprs[q.title] = q.expr
	}
	newPrometheus(t).testQueries(t, objects, "queries_test.yaml", exprs)
}

// query is a query of a panel, with values for its variables.
type query struct{ title, expr string }

func dashboardQueries(t *testing.T, dashboard *corev1.ConfigMap) []query {
	t.Helper()
	if dashboard.Labels["grafana_dashboard"] != "1" {
		t.Errorf("labels = %v, want the one that Grafana's sidecar looks for", dashboard.Labels)
	}
	var board struct {
		Panels []struct {
			ID      int
			Title   string
			Targets []struct{ Expr string }
			GridPos struct{ X, Y, W, H int }
		}
	}
	if err := json.Unmarshal([]byte(dashboard.Data["capstan.json"]), &board); err != nil {
		t.Fatal(err)
	}
	var all []query
	for _, p := range board.Panels {
		if p.Title == "" || len(p.Targets) == 0 || p.GridPos.W == 0 {
			t.Errorf("panel %d shows nothing: %+v", p.ID, p)
		}
		for _, target := range p.Targets {
			all = append(all, query{p.Title, strings.NewReplacer("$namespace", ".*", "$__rate_interval", "5m", "$__range",
				"1h").Replace(target.Expr)})
		}
	}
	return all
}
