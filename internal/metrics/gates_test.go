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
	uses := map[types.NamespacedName]pace.Use{{Namespace: "a", Name: "main"}: {Waiting: 3, Refused: 2, Open: []string{"m", "n"}}}
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
		`capstan_model_requests_refused_total{namespace="a",provider="main"} 2`,
		`capstan_model_circuits_open{namespace="a",provider="main"} 2`,
		`capstan_model_requests_waiting{namespace="hostile",provider="p-15"} 1`,
		`capstan_model_requests_waiting{namespace="hostile",provider="other"} 4`,
	} {
		if !strings.Contains(text, line) {
			t.Errorf("a scrape lacks the line %s:\n%s", line, text)
		}
	}
	if got, want := seriesOf(g), 3*(mostProviders+2); got != want {
		t.Errorf("there are %d series, want %d", got, want)
	}
	clear(uses)
	for i := range mostNamespaces + 10 {
		uses[types.NamespacedName{Namespace: fmt.Sprintf("ns-%d", i), Name: "main"}] = pace.Use{Waiting: 1}
	}
	if got, want := seriesOf(g), 3*(mostNamespaces-2+1); got != want {
		t.Errorf("there are %d series of many namespaces, want %d", got, want)
	}
}
