package translate

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/shopspring/decimal"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/finalize"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/session"
)

func TestSessionTotals(t *testing.T) {
	end := time.Date(2026, 3, 4, 5, 6, 7, 8000, time.UTC)
	earlier := end.Add(-time.Hour)
	cond := []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue}}
	after := func(turns int64, name string, at time.Time, change ...func(*v1alpha1.SessionStatus)) v1alpha1.SessionStatus {
		s := v1alpha1.SessionStatus{
			ObservedGeneration: 2, Conditions: cond, Turns: turns, LastTurnName: name,
			LastTurnTime: new(metav1.NewMicroTime(at)), ContextTokens: 80 * turns,
			Usage: &v1alpha1.Usage{InputTokens: 100 * turns, OutputTokens: 20 * turns, TotalTokens: 120 * turns, CostUnknown: true},
		}
		for _, f := range change {
			f(&s)
		}
		return s
	}
	totals := func(turns int64) session.Totals {
		return session.Totals{
			Turns: turns, ContextTokens: 80 * turns,
			Usage: model.Usage{InputTokens: 100 * turns, OutputTokens: 20 * turns},
		}
	}
	priced := totals(3)
	priced.Cost, priced.KnownCost = &finalize.Cost{Amount: "0.0123", Currency: "EUR"}, decimal.RequireFromString("0.0123")
	partly := priced
	partly.Cost = nil
	known := func(s *v1alpha1.SessionStatus) { s.KnownCost = "0.0123" }
	unknown := func(s *v1alpha1.SessionStatus) {
		known(s)
		s.Usage.KnownCost = "0.0123"
	}
	cost := func(s *v1alpha1.SessionStatus) {
		known(s)
		s.Usage.Cost, s.Usage.CostUnknown = &v1alpha1.Cost{Amount: "0.0123", Currency: "EUR"}, false
	}
	fresh := v1alpha1.SessionStatus{ObservedGeneration: 2, Conditions: cond}
	for name, tc := range map[string]struct {
		reason  string
		before  v1alpha1.SessionStatus
		totals  session.Totals
		turn    string
		want    v1alpha1.SessionStatus
		changed bool
	}{
		"first": {"the first Turn of a session begins the totals", fresh, totals(1), "a", after(1, "a", end), true},
		"late": {
			"a Turn that is charged late does not set the time back", after(2, "b", end.Add(time.Hour)), totals(3),
			"c", after(3, "c", end.Add(time.Hour)), true,
		},
		"next": {
			"the next Turn replaces the totals, and leaves the conditions unchanged", after(2, "b", earlier), totals(3),
			"c", after(3, "c", end), true,
		},
		"cost": {"a known cost is written", after(2, "b", earlier), priced, "c", after(3, "c", end, cost), true},
		"cost unknown": {
			"a cost that is not known anymore is removed", after(2, "b", earlier, cost), totals(3), "c", after(3, "c", end), true,
		},
		"cost partly": {"the known part is kept", after(2, "b", earlier, cost), partly, "c", after(3, "c", end, unknown), true},
		"old":         {"totals never decrease", after(3, "c", earlier), totals(2), "b", after(3, "c", earlier), false},
		"again": {
			"a repeated write changes nothing, not even the time", after(3, "c", earlier),
			totals(3), "c", after(3, "c", earlier), false,
		},
		"no request": {
			"a Turn that asked no model is not the last", after(3, "c", earlier), totals(3), "d",
			after(3, "c", earlier), false,
		},
		"only no request": {"a first Turn that asked no model does not count", fresh, totals(0), "d", fresh, false},
		"cost added": {
			"a cost that an older version did not write is added", after(3, "c", earlier), priced, "c",
			after(3, "c", earlier, cost), true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := &v1alpha1.Session{Status: tc.before}
			if got := SessionTotals(s, tc.totals, tc.turn, end); got != tc.changed {
				t.Errorf("%s: changed is %t, want %t", tc.reason, got, tc.changed)
			}
			if diff := cmp.Diff(tc.want, s.Status); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

// spent returns a Session with these turns, tokens and cost; an empty cost is unknown.
func spent(turns, tokens int64, cost string, b *v1alpha1.SessionBudget) *v1alpha1.Session {
	s := &v1alpha1.Session{
		Spec:   v1alpha1.SessionSpec{Budget: b},
		Status: v1alpha1.SessionStatus{Turns: turns, Usage: &v1alpha1.Usage{TotalTokens: tokens}},
	}
	if cost != "" {
		s.Status.Usage.Cost = &v1alpha1.Cost{Amount: cost, Currency: "USD"}
	}
	return s
}

// partly returns a Session whose cost is known only in part.
func partly(known string, b *v1alpha1.SessionBudget) *v1alpha1.Session {
	s := spent(2, 9, "", b)
	s.Status.KnownCost = known
	return s
}

func TestBudgets(t *testing.T) {
	type budget = v1alpha1.SessionBudget
	type limits = v1alpha1.Limits
	for name, tc := range map[string]struct {
		reason  string
		session *v1alpha1.Session
		used    string
		left    *limits
	}{
		"no budget": {"a session without a budget is never closed", spent(1000, 1e12, "1000000", nil), "", nil},
		"nothing spent": {"a new session has all of its budget", &v1alpha1.Session{Spec: v1alpha1.SessionSpec{
			Budget: &budget{MaxTokens: new(int64(5)), MaxCost: new("0.50")},
		}}, "", &limits{MaxTokens: new(int64(5)), MaxCost: new("0.5")}},
		"turns left": {"maxTurns does not limit tokens", spent(2, 10, "1", &budget{MaxTurns: new(int32(3))}), "", nil},
		"turns used": {
			"the last turn is used", spent(3, 10, "1", &budget{MaxTurns: new(int32(3))}),
			"3 of 3 turns (spec.budget.maxTurns)", nil,
		},
		"turns lowered": {
			"a budget may be lowered below what is used", spent(3, 10, "1", &budget{MaxTurns: new(int32(2))}),
			"3 of 2 turns (spec.budget.maxTurns)", nil,
		},
		"tokens left": {
			"one token is left", spent(1, 99, "1", &budget{MaxTokens: new(int64(100))}), "",
			&limits{MaxTokens: new(int64(1))},
		},
		"tokens used": {
			"no token is left, and a limit of 0 would be no limit", spent(1, 100, "1", &budget{MaxTokens: new(int64(100))}),
			"100 of 100 tokens (spec.budget.maxTokens)", &limits{MaxTokens: new(int64(1))},
		},
		"cost left": {
			"costs are decimals, not texts or floats", spent(1, 9, "0.3", &budget{MaxCost: new("10.00")}),
			"", &limits{MaxCost: new("9.7")},
		},
		"cost used": {
			"0.50 is equal to 0.5", spent(1, 9, "0.5", &budget{MaxCost: new("0.50")}),
			"a cost of 0.5 of 0.50 (spec.budget.maxCost)", &limits{MaxCost: new("0.0000000001")},
		},
		"cost beyond": {"a Turn may have cost a little more than was left", spent(1, 9, "0.500000000000001", &budget{
			MaxCost: new("0.5"),
		}), "a cost of 0.500000000000001 of 0.5 (spec.budget.maxCost)", &limits{MaxCost: new("0.0000000001")}},
		"cost unknown": {
			"an unknown cost does not count", spent(1, 9, "", &budget{MaxCost: new("0.5")}), "",
			&limits{MaxCost: new("0.5")},
		},
		"known left": {"the known part counts", partly("0.3", &budget{MaxCost: new("0.5")}), "", &limits{MaxCost: new("0.2")}},
		"known used": {
			"a Turn without a price does not reopen a session", partly("5", &budget{MaxCost: new("1.00")}),
			"a cost of 5 of 1.00 (spec.budget.maxCost)", &limits{MaxCost: new("0.0000000001")},
		},
		"several": {
			"all used parts are listed", spent(3, 100, "1", &budget{MaxTurns: new(int32(3)), MaxTokens: new(int64(100))}),
			"3 of 3 turns (spec.budget.maxTurns), 100 of 100 tokens (spec.budget.maxTokens)", &limits{MaxTokens: new(int64(1))},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := BudgetUsed(tc.session); got != tc.used {
				t.Errorf("%s: used is %q, want %q", tc.reason, got, tc.used)
			}
			if diff := cmp.Diff(tc.left, RemainingLimits(tc.session)); diff != "" {
				t.Errorf("%s: RemainingLimits (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
	if got := RemainingLimits(nil); got != nil {
		t.Errorf("RemainingLimits(nil) = %+v, want nil", got)
	}
}

// TestLoseHistory checks that a loss is written once, keeps the totals, and makes Turns wait only as long as
// onHistoryLoss is Wait and the spec does not change.
func TestLoseHistory(t *testing.T) {
	s := &v1alpha1.Session{}
	s.Generation, s.Spec.OnHistoryLoss, s.Status.Turns = 2, v1alpha1.OnHistoryLossWait, 5
	if !LoseHistory(s, 4, time.Unix(1, 0)) || LoseHistory(s, 4, time.Unix(2, 0)) || s.Status.MissingTurns != 4 || s.Status.Turns != 5 {
		t.Errorf("status is %+v, want a loss of 4 of 5 turns that is written once", s.Status)
	}
	if why := WaitsForHistory(s); !strings.Contains(why, "4 of 5 turns") || !strings.Contains(why, "set spec.onHistoryLoss to Continue") {
		t.Errorf("Turns wait because %q, want the loss and what to do", why)
	}
	s.Generation++
	if why := WaitsForHistory(s); why != "" {
		t.Errorf("Turns wait because %q, want no wait after a change of the spec", why)
	}
	s.Spec.OnHistoryLoss = v1alpha1.OnHistoryLossContinue
	if LoseHistory(s, 4, time.Unix(3, 0)); WaitsForHistory(s) != "" {
		t.Error("Turns wait, want them to continue")
	}
	if known := KnownTotals(s); known.Turns != 5 || known.Missing != 4 {
		t.Errorf("KnownTotals = %+v, want the totals of the status", known)
	}
}
