package translate

import (
	"fmt"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// Summary says on one line what a Turn that has ended took: numbers, and no word of the Turn.
func Summary(t *v1alpha1.Turn) string {
	s := t.StateReason()
	if d := t.Status.Decision; d != nil {
		s += fmt.Sprintf(", strategy %s", d.Strategy)
	}
	if u := t.Status.Usage; u != nil {
		s += fmt.Sprintf(", %d tokens", u.TotalTokens)
		if u.Estimated {
			s += " (in part estimated)"
		}
		if u.Cost != nil {
			s += fmt.Sprintf(", cost %s %s", u.Cost.Amount, u.Cost.Currency)
		}
	}
	if ms := t.Status.DurationMilliseconds; ms != nil {
		s += fmt.Sprintf(", %.1f s", float64(*ms)/1000)
	}
	return s
}
