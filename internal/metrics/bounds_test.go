package metrics

import (
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/pace"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
)

// resetMetrics removes all series from the metrics, now and at the end of the test.
func resetMetrics(t *testing.T) {
	t.Helper()
	reset := func() {
		known = &bounds{}
		for _, v := range vectors {
			v.DeletePartialMatch(prometheus.Labels{})
		}
	}
	reset()
	t.Cleanup(reset)
}

// spend counts a Turn of a namespace that used 10 input tokens of a model.
func spend(namespace, provider, name string) {
	ms := int64(1000)
	t := &v1alpha1.Turn{ObjectMeta: metav1.ObjectMeta{Namespace: namespace}, Status: v1alpha1.TurnStatus{DurationMilliseconds: &ms}}
	Ended(t, &turn.Result{Spent: []turn.Spent{{Provider: provider, Model: name, Usage: model.Usage{InputTokens: 10}}}})
}

func tokensOf(t *testing.T, namespace, provider, name string) float64 {
	t.Helper()
	return valueOf(t, tokens.WithLabelValues(namespace, provider, name, "input", "false"))
}

func valueOf(t *testing.T, m prometheus.Metric) float64 {
	t.Helper()
	var out dto.Metric
	if err := m.Write(&out); err != nil {
		t.Fatal(err)
	}
	return out.GetCounter().GetValue() + out.GetGauge().GetValue()
}

// seriesOf returns the number of series of a metric.
func seriesOf(c prometheus.Collector) int {
	found := make(chan prometheus.Metric)
	go func() {
		c.Collect(found)
		close(found)
	}()
	n := 0
	for range found {
		n++
	}
	return n
}

// scrape returns the text that a scrape of one metric receives.
func scrape(c prometheus.Collector) (string, error) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(c)
	families, err := registry.Gather()
	var text strings.Builder
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(&text, f); err != nil {
			return "", err
		}
	}
	return text.String(), err
}

// TestSeriesOfTenantAreBounded checks that a tenant with many names does not create unlimited series, and does not use
// up the series of another tenant.
func TestSeriesOfTenantAreBounded(t *testing.T) {
	resetMetrics(t)
	spend("victim", "openai", "gpt")
	for i := range 5_000 {
		spend("hostile", fmt.Sprintf("provider-%d", i%50), fmt.Sprintf("model-%d", i))
	}
	spend("victim", "openai", "gpt-mini")
	if got := seriesOf(tokens); got > 2*(mostModels+1)+4 {
		t.Errorf("%d series of tokens, want at most %d of hostile and 4 of victim", got, 2*(mostModels+1))
	}
	if got, want := tokensOf(t, "hostile", Other, Other), 10*float64(5_000-mostModels); got != want {
		t.Errorf("%g tokens count as other, want %g, so that all tokens count", got, want)
	}
	for _, name := range []string{"gpt", "gpt-mini"} {
		if got := tokensOf(t, "victim", "openai", name); got != 10 {
			t.Errorf("the victim's %s has %g tokens, want 10", name, got)
		}
	}
	text, err := scrape(tokens)
	if err != nil || len(text) > 8<<10 {
		t.Errorf("a scrape has %d bytes, %v; want no more than 8 KiB", len(text), err)
	}
}

// TestNamespacesAreBounded checks that namespaces beyond the bound are counted together, and that each running Turn
// is counted down under the label under which it was counted up.
func TestNamespacesAreBounded(t *testing.T) {
	resetMetrics(t)
	var done []func()
	for i := range mostNamespaces + 10 {
		done = append(done, Started(fmt.Sprintf("ns-%d", i)))
		spend(fmt.Sprintf("ns-%d", i), "p", "m")
	}
	if got := seriesOf(running); got != mostNamespaces+1 {
		t.Errorf("%d series of running Turns, want %d and one for other namespaces", got, mostNamespaces)
	}
	if got := valueOf(t, running.WithLabelValues(Other)); got != 10 {
		t.Errorf("%g Turns of other namespaces run, want 10", got)
	}
	done[0]()
	for range keepGone {
		Sweep(nil) // the namespace without a running Turn makes room
	}
	spend(fmt.Sprintf("ns-%d", mostNamespaces), "p", "m")
	for _, end := range done[1:] {
		end()
	}
	if got := valueOf(t, running.WithLabelValues(Other)); got != 0 {
		t.Errorf("%g Turns of other namespaces run, want 0", got)
	}
	if got := valueOf(t, running.WithLabelValues(fmt.Sprintf("ns-%d", mostNamespaces))); got != 0 {
		t.Errorf("%g Turns run in a namespace that got its series meanwhile, want 0", got)
	}
}

// TestNamespaceCalledOther checks that a namespace with the name of the common series does not take these series with
// it when it is deleted.
func TestNamespaceCalledOther(t *testing.T) {
	resetMetrics(t)
	Started(Other)()
	var done []func()
	for i := range mostNamespaces + 10 {
		done = append(done, Started(fmt.Sprintf("ns-%d", i)))
	}
	for range keepGone {
		Sweep(nil)
	}
	if got := valueOf(t, running.WithLabelValues(Other)); got != 10 {
		t.Errorf("%g Turns of other namespaces run, want 10", got)
	}
	for _, end := range done {
		end()
	}
	if got := valueOf(t, running.WithLabelValues(Other)); got != 0 {
		t.Errorf("%g Turns of other namespaces run, want 0", got)
	}
}

// TestSeriesOfDeletedObjectsAreDropped checks that only the series of deleted objects are removed, and only after a
// number of sweeps, so that they can be scraped before.
func TestSeriesOfDeletedObjectsAreDropped(t *testing.T) {
	resetMetrics(t)
	agents := map[string]bool{"a": true}
	live := Live{
		"helpdesk": {agents, map[string]bool{"openai": true, "old": true}}, "sales": {agents, map[string]bool{"openai": true}},
	}
	spend("helpdesk", "openai", "gpt")
	spend("helpdesk", "old", "gpt")
	spend("sales", "openai", "gpt")
	for range 10 * keepGone {
		Sweep(live)
	}
	if got := seriesOf(tokens); got != 6 {
		t.Fatalf("%d series of existing objects, want 6", got)
	}

	delete(live["helpdesk"].Providers, "old")
	delete(live, "sales")
	Sweep(live)
	if got := seriesOf(ended); got != 1 {
		t.Errorf("%d series of ended Turns, want only that of helpdesk, because sales was idle for a long time", got)
	}
	spend("sales", "openai", "gpt")
	for range keepGone - 1 {
		Sweep(live)
	}
	if got := tokensOf(t, "sales", "openai", "gpt"); got != 10 {
		t.Errorf("the tokens of sales are %g, want 10: they may not have been scraped", got)
	}
	Sweep(live)
	for _, v := range []prometheus.Collector{ended, duration, modelRequests} {
		if got := seriesOf(v); got != 1 {
			t.Errorf("%d series, want only that of helpdesk", got)
		}
	}
	text, err := scrape(tokens)
	if err != nil || strings.Contains(text, "old") || strings.Contains(text, "sales") || !strings.Contains(text, "helpdesk") {
		t.Errorf("the tokens are %s, %v; want those of openai in helpdesk", text, err)
	}
}

// TestScrapesAreNoUse checks that the gates and waiting Turns of namespaces that count nothing more, such as deleted
// ones, do not keep a new namespace from its own series, and that a scrape removes no series.
func TestScrapesAreNoUse(t *testing.T) {
	for name, lives := range map[string]bool{"idle": true, "deleted": false} {
		t.Run(name, func(t *testing.T) {
			resetMetrics(t)
			live, uses, counts := Live{}, map[types.NamespacedName]pace.Use{}, map[Wait]int{}
			for i := range mostNamespaces {
				namespace := fmt.Sprintf("ns-%03d", i)
				uses[types.NamespacedName{Namespace: namespace, Name: "main"}] = pace.Use{Waiting: 1}
				counts[Wait{namespace, "Queued"}] = 1
				if lives {
					live[namespace] = Names{}
				}
				spend(namespace, "p", "m")
			}
			gates, turns := &gateUses{}, &waits{}
			use, count := func() map[types.NamespacedName]pace.Use { return uses }, func() map[Wait]int { return counts }
			gates.use.Store(&use)
			turns.count.Store(&count)
			for range keepIdle {
				Sweep(live)
				if g, w := seriesOf(gates), seriesOf(turns); g != 2*mostNamespaces || w != mostNamespaces {
					t.Fatalf("there are %d series of gates and %d of waiting Turns, want %d and %d", g, w, 2*mostNamespaces, mostNamespaces)
				}
			}
			counts[Wait{"new", "Queued"}] = 1
			seriesOf(turns)
			if got := len(known.namespaces); known.namespaces["new"] != nil {
				t.Errorf("a scrape has removed one of %d namespaces for another one", got)
			}
			spend("new", "p", "m")
			if got := tokensOf(t, "new", "p", "m"); got != 10 {
				t.Errorf("the new namespace has %g tokens, want 10", got)
			}
			if got := len(known.namespaces); got != mostNamespaces {
				t.Errorf("there are %d namespaces, want %d", got, mostNamespaces)
			}
		})
	}
}

// TestIdleSeriesMakeRoom checks that idle series make room for models and namespaces in use.
func TestIdleSeriesMakeRoom(t *testing.T) {
	resetMetrics(t)
	live := Live{}
	for i := range mostNamespaces {
		live[fmt.Sprintf("ns-%d", i)] = Names{Providers: map[string]bool{"p": true}}
		spend(fmt.Sprintf("ns-%d", i), "p", "m")
	}
	for i := range mostModels {
		spend("ns-0", "p", fmt.Sprintf("old-%d", i))
	}
	for range keepIdle {
		Sweep(live)
		spend("ns-0", "p", "m")
	}
	spend("ns-0", "p", "new")
	spend("new", "p", "m")
	if a, b := tokensOf(t, "ns-0", "p", "new"), tokensOf(t, "new", "p", "m"); a != 10 || b != 10 {
		t.Errorf("the new model and the new namespace have %g and %g tokens, want 10 each", a, b)
	}
	if got := tokensOf(t, "ns-0", "p", "m"); got != 10*(keepIdle+1) {
		t.Errorf("the model in use has %g tokens, want %d: its series must be kept", got, 10*(keepIdle+1))
	}
	if got := len(known.namespaces); got != mostNamespaces {
		t.Errorf("there are %d namespaces, want %d", got, mostNamespaces)
	}
}
