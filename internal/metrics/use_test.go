package metrics_test

import (
	"fmt"
	"testing"

	dto "github.com/prometheus/client_model/go"
	registry "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/capstan-dev/capstan/internal/metrics"
)

// TestJournalUsage checks that at most 20 namespaces have series, because a tenant may create any number of namespaces.
func TestJournalUsage(t *testing.T) {
	u := metrics.Usage{Bytes: 3000, Quota: 5000, Namespaces: map[string]metrics.NamespaceUsage{"full": {Bytes: 99, Quota: 100}}}
	for i := range 1000 {
		u.Namespaces[fmt.Sprintf("ns-%04d", i)] = metrics.NamespaceUsage{Bytes: int64(i % 50), Quota: 100}
	}
	metrics.SetJournalUsage(u)
	families, err := registry.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	series := map[string][]*dto.Metric{}
	for _, f := range families {
		series[f.GetName()] = f.GetMetric()
	}
	for name, want := range map[string]float64{"capstan_journal_used_bytes": 3000, "capstan_journal_quota_bytes": 5000} {
		if got := series[name]; len(got) != 1 || got[0].GetGauge().GetValue() != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	for name, want := range map[string]float64{"capstan_journal_namespace_used_bytes": 99, "capstan_journal_namespace_quota_bytes": 100} {
		hasFull := false
		for _, m := range series[name] {
			hasFull = hasFull || m.GetLabel()[0].GetValue() == "full" && m.GetGauge().GetValue() == want
		}
		if n := len(series[name]); n != 20 || !hasFull {
			t.Errorf("%s has %d series, one of the fullest namespace: %t; want 20, true", name, n, hasFull)
		}
	}
}
