package charts_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// TestPromtoolTakesAlertsAndDashboard has promtool check the rules as the chart renders them, the queries of the dashboard, and test when the alerts fire.
func TestPromtoolTakesAlertsAndDashboard(t *testing.T) {
	found, err := output(t.Context(), "bash", "../hack/promtool/get.sh")
	if err != nil {
		t.Fatal(err)
	}
	promtool := strings.TrimSpace(string(found))
	dir := t.TempDir()
	put := func(name string, data []byte) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	objects := renderChart(t, "metrics.prometheusRule.enabled=true,metrics.dashboard.enabled=true")
	rules, err := yaml.Marshal(ofKind(t, objects, "PrometheusRule").Object["spec"])
	if err != nil {
		t.Fatal(err)
	}
	alerts := put("alerts.yaml", rules)
	tests, err := os.ReadFile("testdata/alerts_test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"check", "rules", alerts}, {"test", "rules", put("alerts_test.yaml", tests)}} {
		if _, err := output(t.Context(), promtool, args...); err != nil {
			t.Error(err)
		}
	}
	for line := range strings.SplitSeq(string(rules), "\n") {
		if name, isAlert := strings.CutPrefix(strings.TrimSpace(line), "- alert: "); isAlert && strings.Count(string(tests), "alertname: "+name) < 2 {
			t.Errorf("alert %s has no test that it fires and that it does not", name)
		}
	}

	// A dashboard's queries are rules for promtool once the variables have values.
	type rule struct {
		Record string `json:"record"`
		Expr   string `json:"expr"`
	}
	var queries []rule
	for _, expr := range dashboardQueries(t, one[*corev1.ConfigMap](t, objects)) {
		expr = strings.NewReplacer("$namespace", ".*", "$__rate_interval", "5m", "$__range", "1h").Replace(expr)
		queries = append(queries, rule{"dashboard:query", expr})
	}
	text, err := yaml.Marshal(map[string]any{"groups": []map[string]any{{"name": "dashboard", "rules": queries}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := output(t.Context(), promtool, "check", "rules", "--lint=none", put("dashboard.yaml", text)); err != nil || len(queries) < 12 {
		t.Errorf("%d queries of the dashboard: %v", len(queries), err)
	}
}

func dashboardQueries(t *testing.T, dashboard *corev1.ConfigMap) []string {
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
	var all []string
	for _, p := range board.Panels {
		if p.Title == "" || len(p.Targets) == 0 || p.GridPos.W == 0 {
			t.Errorf("panel %d shows nothing: %+v", p.ID, p)
		}
		for _, target := range p.Targets {
			all = append(all, target.Expr)
		}
	}
	return all
}
