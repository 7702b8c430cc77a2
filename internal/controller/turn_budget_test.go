package controller

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/budgets"
)

func TestWhenBudgetExceeded(t *testing.T) {
	ready := agentWith(metav1.ConditionTrue, "")
	exceeded := budgets.Verdict{Message: "all is spent", Until: now.Add(time.Hour)}
	refused := func(t *v1alpha1.Turn) {
		boundTo("gone")(t)
		handedBack(v1alpha1.TurnReasonWaitingForBudget)(t)
		t.Status.AwaitedBudget = &v1alpha1.AwaitedBudget{
			Name: "day", RetryTime: metav1.NewMicroTime(now.Add(time.Hour)), Message: "all is spent",
		}
	}
	stopped := func(t *v1alpha1.Turn) {
		refused(t)
		t.Status.ParkedTime = new(metav1.NewMicroTime(now.Add(-24 * time.Hour)))
	}
	for name, tc := range map[string]struct {
		reason  string
		turn    *v1alpha1.Turn
		verdict budgets.Verdict
		want    action
	}{
		"new, allowed":                {"", turnWith(), budgets.Verdict{}, schedule},
		"new, exceeded":               {"its first request would be refused", turnWith(), exceeded, wait},
		"refused":                     {"its next request would be refused again", turnWith(refused), exceeded, park},
		"refused, the wait is over":   {"it continues from its journal", turnWith(refused), budgets.Verdict{}, schedule},
		"bound":                       {"its executor asks the ledger", turnWith(boundTo("other")), exceeded, follow},
		"cancelled":                   {"it ends", turnWith(desired(v1alpha1.DesiredStateCancelled)), exceeded, end},
		"refused, past its deadline":  {"it ends with its journal", turnWith(refused, started(24*time.Hour)), exceeded, endFromJournal},
		"refused, its time is paused": {"the wait does not count", turnWith(stopped, started(24*time.Hour)), exceeded, park},
	} {
		for _, agent := range []*v1alpha1.Agent{ready, agentWith(metav1.ConditionFalse, "a Secret is missing"), agentWith("", "")} {
			if agent != ready && tc.turn.Status.AwaitedBudget == nil || tc.verdict.Message == "" {
				continue // it waits for its Agent
			}
			got := decide(snapshot{turn: tc.turn, agent: agent, executorAlive: true, budgets: tc.verdict, now: now})
			if got.action != tc.want {
				t.Errorf("%s, with the Agent %v: %s, want %s: %s", name, agent.Status.Conditions, got.action, tc.want, tc.reason)
			}
		}
		got := decide(snapshot{turn: tc.turn, agent: ready, executorAlive: true, budgets: tc.verdict, now: now})
		if got.action != tc.want {
			t.Errorf("%s: %s, want %s: %s", name, got.action, tc.want, tc.reason)
		}
		if waiting := got.action == wait || got.action == park; waiting && (got.reason != v1alpha1.TurnReasonWaitingForBudget ||
			got.message != "all is spent" || got.after <= 0 || got.after > time.Hour) {
			t.Errorf("%s: %+v, want the reason, the message, and a requeue at the reset or before", name, got)
		}
	}
}

// TestBudgetWaitWithoutAgent checks that the time limit of a Turn that waits for the reset of a Budget stays paused
// while its Agent does not exist.
func TestBudgetWaitWithoutAgent(t *testing.T) {
	waiting := func(until time.Duration) *v1alpha1.Turn {
		return turnWith(boundTo("gone"), handedBack(v1alpha1.TurnReasonWaitingForBudget), started(24*time.Hour), func(t *v1alpha1.Turn) {
			t.Status.AwaitedBudget = &v1alpha1.AwaitedBudget{Name: "day", RetryTime: metav1.NewMicroTime(now.Add(until))}
			t.Status.ParkedTime = new(metav1.NewMicroTime(now.Add(-24 * time.Hour)))
		})
	}
	for until, want := range map[time.Duration]action{time.Hour: park, -time.Second: wait} {
		got := decide(snapshot{turn: waiting(until), now: now})
		if got.action != want || got.reason != v1alpha1.TurnReasonWaitingForAgent || want == park && got.after != until {
			t.Errorf("%s before the reset: %+v, want %s, and a requeue at the reset", until, got, want)
		}
	}
}

func TestMayOpen(t *testing.T) {
	with := func(generation int64, exceeded metav1.ConditionStatus) *v1alpha1.Budget {
		return &v1alpha1.Budget{
			ObjectMeta: metav1.ObjectMeta{UID: "uid", Generation: generation},
			Status:     v1alpha1.BudgetStatus{Conditions: []metav1.Condition{{Type: v1alpha1.ConditionExceeded, Status: exceeded}}},
		}
	}
	for name, tc := range map[string]struct {
		before, after *v1alpha1.Budget
		want          bool
	}{
		"more was spent":     {with(1, metav1.ConditionFalse), with(1, metav1.ConditionFalse), false},
		"a limit is reached": {with(1, metav1.ConditionFalse), with(1, metav1.ConditionTrue), false},
		"the reset":          {with(1, metav1.ConditionTrue), with(1, metav1.ConditionFalse), true},
		"a new limit":        {with(1, metav1.ConditionTrue), with(2, metav1.ConditionTrue), true},
		"the deletion":       {with(1, metav1.ConditionTrue), nil, true},
	} {
		if got := mayOpen(tc.before, tc.after); got != tc.want {
			t.Errorf("%s: mayOpen = %t, want %t", name, got, tc.want)
		}
	}
}
