package metrics

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/finalize"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
)

// TestWaitingTurnsAreBounded checks that the namespaces beyond the bound are counted together, and that no Turn is
// lost.
func TestWaitingTurnsAreBounded(t *testing.T) {
	resetMetrics(t)
	turns := map[Wait]int{}
	for i := range mostNamespaces + 10 {
		turns[Wait{fmt.Sprintf("ns-%d", i), "Queued"}] = 2
	}
	w := &waits{}
	if got := seriesOf(w); got != 0 {
		t.Errorf("a process that is not the active controller shows %d series, want none", got)
	}
	count := func() map[Wait]int { return turns }
	w.count.Store(&count)
	text, err := scrape(w)
	if err != nil || seriesOf(w) != mostNamespaces+1 ||
		!strings.Contains(text, `capstan_turns_waiting{namespace="other",reason="Queued"} 20`) {
		t.Errorf("%d series, error %v; want %d and one for other namespaces, with 20 Turns", seriesOf(w), err, mostNamespaces)
	}
	clear(turns)
	if got := seriesOf(w); got != 0 {
		t.Errorf("%d series while no Turn waits, want none", got)
	}
}

// TestCostsAreBounded checks the bound of currencies, which tenants choose in their prices.
func TestCostsAreBounded(t *testing.T) {
	resetMetrics(t)
	pay := func(namespace, currency string) {
		one := &v1alpha1.Turn{ObjectMeta: metav1.ObjectMeta{Namespace: namespace}}
		Ended(one, &turn.Result{Record: finalize.Record{Cost: &finalize.Cost{Amount: "0.25", Currency: currency}}})
	}
	for i := range 26 * 26 {
		pay("hostile", fmt.Sprintf("X%c%c", 'A'+i/26, 'A'+i%26))
	}
	pay("helpdesk", "EUR")
	pay("helpdesk", "EUR")
	if got := seriesOf(cost); got != mostCurrencies+2 {
		t.Errorf("%d series, want %d, one for other currencies, and that of helpdesk", got, mostCurrencies)
	}
	if got, want := valueOf(t, cost.WithLabelValues("hostile", Other)), 0.25*float64(26*26-mostCurrencies); got != want {
		t.Errorf("the cost in other currencies is %g, want %g", got, want)
	}
	if got := valueOf(t, cost.WithLabelValues("helpdesk", "EUR")); got != 0.5 {
		t.Errorf("helpdesk's cost is %g, want 0.5", got)
	}
}
