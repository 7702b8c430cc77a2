package metrics

import (
	"slices"
	"testing"

	dto "github.com/prometheus/client_model/go"
	registry "sigs.k8s.io/controller-runtime/pkg/metrics"
)

// TestFailuresOfMemoriesAreExported checks that the counters are registered, and that the series of a namespace can be
// removed.
func TestFailuresOfMemoriesAreExported(t *testing.T) {
	resetMetrics(t)
	NotRecalled("helpdesk")
	NotEmbedded("helpdesk")
	families, err := registry.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"capstan_memory_recall_failures_total", "capstan_embedding_failures_total"} {
		if !slices.ContainsFunc(families, func(f *dto.MetricFamily) bool { return f.GetName() == name }) {
			t.Errorf("the registry has no series of %s", name)
		}
	}
	resetMetrics(t)
	if n := seriesOf(embeddingFailures); n != 0 {
		t.Errorf("%d series are left after the removal, want none", n)
	}
}
