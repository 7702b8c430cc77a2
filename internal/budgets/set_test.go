package budgets_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/budgets"
)

var noon = time.Date(2026, 6, 11, 12, 0, 0, 0, time.UTC)

// budget returns a daily Budget that was created this number of seconds after noon.
func budget(name string, seconds int, change ...func(*v1alpha1.Budget)) *v1alpha1.Budget {
	b := &v1alpha1.Budget{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "helpdesk", Name: name, UID: types.UID("uid-" + name), Generation: 1,
			CreationTimestamp: metav1.NewTime(noon.Add(time.Duration(seconds) * time.Second)),
		},
		Spec: v1alpha1.BudgetSpec{
			Period: v1alpha1.BudgetPeriodDay, TimeZone: "UTC", Currency: "USD", Limits: v1alpha1.BudgetLimits{Tokens: new(int64(1000))},
			OnExceeded: v1alpha1.OnBudgetExceededQueue,
		},
	}
	for _, c := range change {
		c(b)
	}
	return b
}

func turn() *v1alpha1.Turn {
	t := anonymous()
	t.Spec.RequestedBy = &v1alpha1.Requester{Username: "ada"}
	return t
}

func anonymous() *v1alpha1.Turn {
	return &v1alpha1.Turn{
		ObjectMeta: metav1.ObjectMeta{Namespace: "helpdesk", Name: "first"},
		Spec:       v1alpha1.TurnSpec{AgentRef: v1alpha1.SharedReference{Name: "support"}},
	}
}

func TestRulesOfATurn(t *testing.T) {
	of := func(a v1alpha1.BudgetAgents) func(*v1alpha1.Budget) {
		return func(b *v1alpha1.Budget) { b.Spec.Selector = &v1alpha1.BudgetSelector{Agents: &a} }
	}
	team := &v1alpha1.LabelSelector{MatchLabels: map[string]v1alpha1.LabelValue{"team": "red"}}
	blue := &v1alpha1.LabelSelector{MatchLabels: map[string]v1alpha1.LabelValue{"team": "blue"}}
	for name, tc := range map[string]struct {
		change func(*v1alpha1.Budget)
		want   bool
	}{
		"all":                    {func(*v1alpha1.Budget) {}, true},
		"by name":                {of(v1alpha1.BudgetAgents{Names: []string{"sales", "support"}}), true},
		"another name":           {of(v1alpha1.BudgetAgents{Names: []string{"sales"}}), false},
		"by label":               {of(v1alpha1.BudgetAgents{LabelSelector: team}), true},
		"name and label":         {of(v1alpha1.BudgetAgents{Names: []string{"sales"}, LabelSelector: team}), false},
		"another label":          {of(v1alpha1.BudgetAgents{LabelSelector: blue}), false},
		"another namespace":      {func(b *v1alpha1.Budget) { b.Namespace = "sales" }, false},
		"a zone that is unknown": {func(b *v1alpha1.Budget) { b.Spec.TimeZone = "Mars/Base" }, true},
	} {
		t.Run(name, func(t *testing.T) {
			var s budgets.Set
			s.Put(budget("day", 0, tc.change))
			got, err := s.Rules(t.Context(), turn(), map[string]string{"team": "red"}, noRequester(t))
			if err != nil || (len(got) == 1) != tc.want {
				t.Errorf("Rules: %+v, %v; want the Budget to apply: %t", got, err, tc.want)
			}
		})
	}
}

// TestRulesOfAForeignAgent checks that a Budget selects an Agent of another namespace by NAMESPACE/NAME, and never by
// the name of an Agent of its own namespace. A Turn or a Budget may also name its own namespace, which is the same as
// no namespace: otherwise such a Turn would evade the Budget.
func TestRulesOfAForeignAgent(t *testing.T) {
	inNamespace := func(name string) *v1alpha1.Turn {
		t := turn()
		t.Spec.AgentRef.Namespace = name
		return t
	}
	foreign := inNamespace("platform")
	for _, tc := range []struct {
		name         string
		own, foreign int
	}{{"support", 1, 0}, {"platform/support", 0, 1}, {"helpdesk/support", 1, 0}, {"sales", 0, 0}, {"helpdesk/sales", 0, 0}} {
		var s budgets.Set
		s.Put(budget("day", 0, exceeded, func(b *v1alpha1.Budget) {
			b.Spec.Selector = &v1alpha1.BudgetSelector{Agents: &v1alpha1.BudgetAgents{Names: []string{tc.name}}}
		}))
		for of, want := range map[*v1alpha1.Turn]int{turn(): tc.own, inNamespace("helpdesk"): tc.own, foreign: tc.foreign} {
			got, err := s.Rules(t.Context(), of, nil, noRequester(t))
			if err != nil || len(got) != want {
				t.Errorf("a Budget of %q applies to a Turn of %q: %t, %v; want %t", tc.name, of.Spec.AgentRef, len(got) == 1, err,
					want == 1)
			}
			if waits := s.Evaluate(of, nil, noon).Message != ""; waits != (want == 1) {
				t.Errorf("a Turn of %q waits for an exceeded Budget of %q: %t, want %t", of.Spec.AgentRef, tc.name, waits, want == 1)
			}
		}
	}
	var s budgets.Set
	s.Put(budget("all", 0))
	if got, err := s.Rules(t.Context(), foreign, nil, noRequester(t)); err != nil || len(got) != 1 {
		t.Errorf("Rules: %+v, %v; want a Budget without a selector to apply", got, err)
	}
}

// noRequester is for Turns whose requester must not be looked up.
func noRequester(t *testing.T) func() (string, error) {
	return func() (string, error) {
		t.Error("the requester was requested although no Budget selects requesters")
		return "", nil
	}
}

// TestRulesOfARequester checks that a Turn cannot evade a Budget with a requester that is absent or may be forged.
func TestRulesOfARequester(t *testing.T) {
	of := func(b *v1alpha1.Budget) {
		b.Spec.Selector = &v1alpha1.BudgetSelector{Requesters: []string{"ada", "bob"}}
	}
	ofSales := func(b *v1alpha1.Budget) {
		of(b)
		b.Spec.Selector.Agents = &v1alpha1.BudgetAgents{Names: []string{"sales"}}
	}
	for name, tc := range map[string]struct {
		change    func(*v1alpha1.Budget)
		requester string
		err       error
		want      int
	}{
		"selected":                {of, "bob", nil, 1},
		"not selected":            {of, "eve", nil, 0},
		"absent or unchecked":     {of, "", nil, 1},
		"another agent":           {ofSales, "bob", nil, 0},
		"the check fails":         {of, "", errors.New("the API server is away"), 0},
		"not selected, by prefix": {of, "ad", nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			var s budgets.Set
			s.Put(budget("day", 0, tc.change))
			got, err := s.Rules(t.Context(), turn(), nil, func() (string, error) { return tc.requester, tc.err })
			if len(got) != tc.want || !errors.Is(err, tc.err) {
				t.Errorf("Rules: %+v, %v; want %d and %v", got, err, tc.want, tc.err)
			}
		})
	}
}

// TestTooManyBudgets checks that the oldest Budgets apply, whatever the order of the watch.
func TestTooManyBudgets(t *testing.T) {
	var s budgets.Set
	const all = 10_000
	for i := range all {
		at := (i * 7919) % all // each number once, not in order
		s.Put(budget(fmt.Sprintf("b-%05d", at), at))
	}
	rules, err := s.Rules(t.Context(), turn(), nil, noRequester(t))
	if err != nil || len(rules) != budgets.MaxOfNamespace || rules[0].Name != "b-00000" || rules[len(rules)-1].Name != "b-00063" {
		t.Fatalf("%d rules apply, want the 64 oldest ones", len(rules))
	}
	if !s.Applies(budget("b-00063", 63)) || s.Applies(budget("b-00064", 64)) {
		t.Error("Applies disagrees with Rules, which returned the oldest 64 Budgets")
	}
	s.Delete(budget("b-00000", 0))
	rules, err = s.Rules(t.Context(), turn(), nil, noRequester(t))
	if err != nil || rules[0].Name != "b-00001" || !s.Applies(budget("b-00064", 64)) {
		t.Errorf("the next Budget must apply when one is deleted: %+v", rules[0])
	}
}

// reset is the end of the period.
var reset = noon.Add(12 * time.Hour)

// exceeded makes the status of a Budget show that a limit is reached.
func exceeded(b *v1alpha1.Budget) {
	b.Status.ResetTime = new(metav1.NewTime(reset))
	b.Status.Conditions = []metav1.Condition{{
		Type: v1alpha1.ConditionExceeded, Status: metav1.ConditionTrue, Message: "all is spent", ObservedGeneration: 1,
	}}
}

func TestEvaluate(t *testing.T) {
	awaits := func(generation int64, until time.Time) *v1alpha1.Turn {
		w := turn()
		w.Status.AwaitedBudget = &v1alpha1.AwaitedBudget{
			Name: "day", UID: "uid-day", Generation: generation, RetryTime: metav1.NewMicroTime(until), Message: "too much",
		}
		return w
	}
	for name, tc := range map[string]struct {
		reason string
		budget *v1alpha1.Budget
		turn   *v1alpha1.Turn
		want   string
	}{
		"within limits":      {"nothing is exceeded", budget("day", 0), turn(), ""},
		"exceeded":           {"its first request would be refused", budget("day", 0, exceeded), turn(), "all is spent"},
		"exceeded, rejects":  {"the executor ends the Turn with the figures", budget("day", 0, exceeded, rejects), turn(), ""},
		"exceeded, changed":  {"the status is about the old limits", budget("day", 0, exceeded, changed), turn(), ""},
		"another requester":  {"the executor decides", budget("day", 0, exceeded, ofEve), turn(), ""},
		"no requester":       {"the requester may be anyone", budget("day", 0, exceeded, ofEve), anonymous(), "all is spent"},
		"exceeded, has run":  {"the ledger may have counted it", budget("day", 0, exceeded), hasRun(), ""},
		"exceeded, prepares": {"it asks no model", budget("day", 0, exceeded), prepares(), ""},
		"exceeded, undoes":   {"it asks no model", budget("day", 0, exceeded), undoes(), ""},
		"refused, requester": {"its executor has found that the Budget applies", budget("day", 0, ofEve), awaits(1, reset), "too much"},
		"refused":            {"the rest of the Budget is not enough", budget("day", 0), awaits(1, reset), "too much"},
		"refused, over":      {"the wait is over", budget("day", 0), awaits(1, noon), ""},
		"refused, changed":   {"the new limit may allow the request", budget("day", 0, changed), awaits(1, reset), ""},
		"refused by another": {"the Budget was deleted and created again", budget("day", 0, renewed), awaits(1, reset), ""},
	} {
		t.Run(name, func(t *testing.T) {
			var s budgets.Set
			s.Put(tc.budget)
			if got := s.Evaluate(tc.turn, nil, noon); got.Message != tc.want || got.Message != "" && !got.Until.Equal(reset) {
				t.Errorf("Evaluate: %+v, want %q until %s: %s", got, tc.want, reset, tc.reason)
			}
		})
	}
}

func hasRun() *v1alpha1.Turn {
	t := turn()
	t.Status.Executor = &v1alpha1.ExecutorBinding{Epoch: 1}
	return t
}

func prepares() *v1alpha1.Turn {
	t := turn()
	t.Spec.Execution = v1alpha1.ExecutionPrepareOnly
	return t
}

func undoes() *v1alpha1.Turn {
	t := turn()
	t.Spec.Undo = &v1alpha1.TurnUndo{}
	return t
}

func ofEve(b *v1alpha1.Budget) {
	b.Spec.Selector = &v1alpha1.BudgetSelector{Requesters: []string{"eve"}}
}
func rejects(b *v1alpha1.Budget) { b.Spec.OnExceeded = v1alpha1.OnBudgetExceededReject }
func changed(b *v1alpha1.Budget) { b.Generation = 2 }
func renewed(b *v1alpha1.Budget) { b.UID = "uid-new" }
