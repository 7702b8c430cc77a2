package metrics

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/capstan-dev/capstan/internal/pace"
)

// TestModelGates checks the series of ModelProviders, and that ModelProviders beyond the bounds are counted together.
func TestModelGates(t *testing.T) {
	resetMetrics(t)
	g := &gateUses{}
	if got := seriesOf(g); got != 0 {
		t.Errorf("a process without gates shows %d series, want none", got)
	}
	uses := map[types.NamespacedName]pace.Use{{Namespace: "a", Name: "main"}: {Waiting: 3, Open: []string{"m", "n"}}}
	for i := range mostProviders + 4 {
		uses[types.NamespacedName{Namespace: "hostile", Name: fmt.Sprintf("p-%02d", i)}] = pace.Use{Waiting: 1}
	}
	use := func() map[types.NamespacedName]pace.Use { return uses }
	g.use.Store(&use)
	text, err := scrape(g)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		`capstan_model_requests_waiting{namespace="a",provider="main"} 3`,
		`capstan_model_circuits_open{namespace="a",provider="main"} 2`,
		`capstan_model_requests_waiting{namespace="hostile",provider="p-15"} 1`,
		`capstan_model_requests_waiting{namespace="hostile",provider="other"} 4`,
	} {
		if !strings.Contains(text, line) {
			t.Errorf("a scrape lacks the line %s:\n%s", line, text)
		}
	}
	if got, want := seriesOf(g), 2*(mostProviders+2); got != want {
		t.Errorf("there are %d series, want %d", got, want)
	}
	clear(uses)
	for i := range mostNamespaces + 10 {
		uses[types.NamespacedName{Namespace: fmt.Sprintf("ns-%d", i), Name: "main"}] = pace.Use{Waiting: 1}
	}
	if got, want := seriesOf(g), 2*(mostNamespaces-2+1); got != want {
		t.Errorf("there are %d series of many namespaces, want %d", got, want)
	}
}

// TestModelRequestRefused checks that ModelProviders beyond the bound are counted together, and that this sum does not
// fall when a ModelProvider is deleted: its own series is removed, and gives its place to the next ModelProvider.
func TestModelRequestRefused(t *testing.T) {
	resetMetrics(t)
	mustShow := func(series int, lines ...string) {
		t.Helper()
		text, err := scrape(refusedRequests)
		if err != nil || seriesOf(refusedRequests) != series {
			t.Errorf("%v, and %d series, want %d", err, seriesOf(refusedRequests), series)
		}
		for _, line := range lines {
			if line = "capstan_model_requests_refused_total" + line + "\n"; !strings.Contains(text, line) {
				t.Errorf("a scrape lacks the line %s in:\n%s", line, text)
			}
		}
	}
	live := Live{"hostile": Names{Providers: map[string]bool{}}}
	for i := range mostProviders + 4 {
		name := fmt.Sprintf("p-%02d", i)
		live["hostile"].Providers[name] = true
		ModelRequestRefused("hostile", name)
	}
	ModelRequestRefused("a", "main")
	ModelRequestRefused("a", "main")
	mustShow(mostProviders+2, `{namespace="hostile",provider="p-00"} 1`, `{namespace="hostile",provider="other"} 4`,
		`{namespace="a",provider="main"} 2`)
	delete(live["hostile"].Providers, "p-00")
	for range keepGone {
		Sweep(live)
	}
	mustShow(mostProviders, `{namespace="hostile",provider="p-01"} 1`, `{namespace="hostile",provider="other"} 4`)
	ModelRequestRefused("hostile", "p-17")
	mustShow(mostProviders+1, `{namespace="hostile",provider="p-17"} 1`, `{namespace="hostile",provider="other"} 4`)
	for i := range mostNamespaces + 2 {
		ModelRequestRefused(fmt.Sprintf("ns-%d", i), "main")
	}
	mustShow(mostProviders+1+mostNamespaces, `{namespace="other",provider="other"} 3`)
}
