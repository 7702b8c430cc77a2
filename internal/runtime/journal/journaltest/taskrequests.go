package journaltest

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/budget"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/task"
	"github.com/capstan-dev/capstan/internal/runtime/turnrecord"
	"github.com/capstan-dev/capstan/internal/store"
)

// asking returns a charge that begins a request. The request reserves 100 tokens and a cost of 1 in budget x. If its
// outcome stays unknown, a tenth of the reservation is charged.
func asking(l budget.Limits) task.Charge {
	r := reservation("x", 100, "1", l)
	r.CountTurn = false
	next := expense(10, "0.1")
	return task.Charge{Next: &next, Reserve: []budget.Reservation{r}}
}

// expense returns an expense of an evaluation in USD.
func expense(tokens int64, cost string) turnrecord.Expense {
	return turnrecord.Expense{
		For: string(task.Evaluate), Provider: "p", Model: "m", Requests: 1, Usage: model.Usage{InputTokens: tokens},
		Cost: &turnrecord.Cost{Amount: cost, Currency: "USD"},
	}
}

// expectExpenses checks the expenses in the record of a Turn.
func expectExpenses(t *testing.T, s TaskStore, uid string, want ...turnrecord.Expense) {
	t.Helper()
	for _, r := range records(t, s, store.RecordQuery{}) {
		if r.UID != uid {
			continue
		}
		if diff := cmp.Diff(want, r.Expenses); diff != "" {
			t.Errorf("the expenses of %s: -want +got:\n%s", uid, diff)
		}
		return
	}
	t.Errorf("Turn %s has no record", uid)
}

// testTaskCutOff checks an attempt that is cut off because its process is gone. The next process claims the task and
// postpones it without an attempt.
func testTaskCutOff(t *testing.T, s TaskStore) {
	endTurns(t, s, "a-1", "a-2")
	lost := claim(t, s, "", later(0), "a-1").Held()
	expectError(t, "BeginTask", s.BeginTask(t.Context(), lost, starting(later(0))), nil)
	expectError(t, "ChargeTask", s.ChargeTask(t.Context(), lost, asking(budget.Limits{})), nil)
	other := claim(t, s, "", later(29), "a-2").Held()
	k := claim(t, s, "", later(30), "a-1").Held()
	expectAccounts(t, s, spent("x", 0, 10, "0.1"))
	expectExpenses(t, s, "a-1", expense(10, "0.1"))
	expectError(t, "PostponeTask", s.PostponeTask(t.Context(), k, task.Delay{Until: later(40)}), nil)
	if again := claim(t, s, "b", later(40), "a-1"); again.Attempts != 1 {
		t.Errorf("the task has %d attempts, want only the attempt that was cut off", again.Attempts)
	}
	expectAccounts(t, s, spent("x", 0, 10, "0.1"))
	beginning := func(perHour, perDay int64) error {
		return s.BeginTask(t.Context(), other, task.Start{Now: later(20), MaxPerHour: perHour, MaxTokensPerDay: perDay, Tokens: 10})
	}
	for skip, err := range map[task.Skip]error{task.HourlyLimit: beginning(1, 0), task.TokenLimit: beginning(2, 19)} {
		if r, ok := errors.AsType[*task.Refusal](err); !ok || r.Skip != skip {
			t.Errorf("BeginTask of another task: %v, want %s", err, skip)
		}
	}
}

func testTaskBudget(t *testing.T, s TaskStore) {
	endTurns(t, s, "a-1", "a-2")
	charge := asking(budget.Limits{Tokens: new(int64(115))})
	k, other := claim(t, s, "", later(0), "a-1").Held(), claim(t, s, "", later(0), "a-2").Held()
	for _, h := range []task.Held{k, other} {
		expectError(t, "BeginTask", s.BeginTask(t.Context(), h, starting(later(0))), nil)
	}
	expectError(t, "ChargeTask", s.ChargeTask(t.Context(), k, charge), nil)
	reserved := budget.Account{Key: day("x"), ReservedTokens: 100, ReservedCost: charge.Reserve[0].Cost}
	expectAccounts(t, s, reserved)
	refused := func(h task.Held, c task.Charge, contended bool) {
		t.Helper()
		r, ok := errors.AsType[*budget.Refusal](s.ChargeTask(t.Context(), h, c))
		if !ok || len(r.Refused) != 1 || r.Refused[0].Contended != contended {
			t.Errorf("ChargeTask beyond the budget: %+v, want a refusal, contended: %v", r, contended)
		}
	}
	refused(other, charge, true)
	// The end of a request and the beginning of the next request are one change: both are made, or none.
	charge.Ended = new(expense(40, "0.4"))
	refused(k, charge, false)
	expectAccounts(t, s, reserved)
	for range 2 { // the second time, no request is open
		expectError(t, "ChargeTask of the end", s.ChargeTask(t.Context(), k, task.Charge{Ended: charge.Ended}), nil)
	}
	expectAccounts(t, s, spent("x", 0, 40, "0.4"))
	expectError(t, "FinishTask", s.FinishTask(t.Context(), k, result(), 40), nil)
	expectError(t, "FinishTask again", s.FinishTask(t.Context(), k, result(), 40), task.ErrLost)
	expectAccounts(t, s, spent("x", 0, 40, "0.4"))
	expectExpenses(t, s, "a-1", expense(40, "0.4"))
	expectExpenses(t, s, "a-2")
	// A task that is refused before it uses any tokens does not count.
	expectError(t, "FinishTask of the other", s.FinishTask(t.Context(), other, task.Result{Skipped: task.BudgetExceeded}, 0), nil)
	expectError(t, "PublishTask of the other", s.PublishTask(t.Context(), other, later(1)), nil)
	endTurns(t, s, "a-3")
	third := claim(t, s, "", later(0), "a-3").Held()
	expectError(t, "BeginTask of the second task that counts", s.BeginTask(t.Context(), third, task.Start{Now: later(1), MaxPerHour: 2}),
		nil)
}

// testTaskExpenses checks that all requests of the tasks of a Turn are in its record, even those whose end is not
// known, and that the record agrees with the ledger.
func testTaskExpenses(t *testing.T, s TaskStore, reopen func(t *testing.T, s TaskStore) TaskStore) {
	endTurns(t, s, "a-1")
	begin := func(minutes int) task.Held {
		t.Helper()
		h := claim(t, s, "", later(minutes), "a-1").Held()
		expectError(t, "BeginTask", s.BeginTask(t.Context(), h, starting(later(minutes))), nil)
		return h
	}
	next := func(h task.Held, ended *turnrecord.Expense) {
		t.Helper()
		c := asking(budget.Limits{})
		c.Ended = ended
		expectError(t, "ChargeTask", s.ChargeTask(t.Context(), h, c), nil)
	}
	h := begin(0)
	next(h, nil)
	next(h, new(expense(20, "0.25")))
	s = reopen(t, s) // killed during the second request
	h = begin(30)
	next(h, nil)
	free := expense(0, "0")
	free.Usage = model.Usage{}
	next(h, &free) // refused by the endpoint
	unpriced := expense(7, "")
	unpriced.Cost = nil
	next(h, &unpriced)
	// The last request is still open.
	expectError(t, "PostponeTask", s.PostponeTask(t.Context(), h, task.Delay{Until: later(60), Used: 7, CutOff: true}), nil)
	again := claim(t, s, "", later(60), "a-1")
	if again.Attempts != 2 {
		t.Errorf("%d attempts, want 2, because both were cut off", again.Attempts)
	}
	expectError(t, "PostponeTask before an attempt", s.PostponeTask(t.Context(), again.Held(), task.Delay{Until: later(60)}), nil)
	h = begin(60)
	next(h, nil)
	large := expense(30, "0.3")
	large.Model = "large"
	next(h, &large)
	expectError(t, "FinishTask", s.FinishTask(t.Context(), h, result(), 40), nil) // during a request
	sum := expense(50, "0.55")
	sum.Requests = 4
	expectExpenses(t, s, "a-1", sum, unpriced, large)
	want := spent("x", 0, 87, "0.85")
	want.Unpriced = 1
	expectAccounts(t, s, want)
}

// claimPartial claims a task. It expects no result, and a partial result that equals want.
func claimPartial(t *testing.T, s TaskStore, minutes int, uid string, want *task.Result) task.Held {
	t.Helper()
	k := claim(t, s, "", later(minutes), uid)
	if diff := cmp.Diff(want, k.Partial); diff != "" || k.Result != nil {
		t.Errorf("the result of %s is %+v, want nil; the partial result: -want +got:\n%s", uid, k.Result, diff)
	}
	return k.Held()
}

// testPartialResults checks that the partial result is stored with the end of a request, and stays until the work is
// done.
func testPartialResults(t *testing.T, s TaskStore, reopen func(t *testing.T, s TaskStore) TaskStore) {
	endTurns(t, s, "a-1")
	first, both := result(), result()
	second := first.Evaluations[0]
	second.Judge = "polite"
	both.Evaluations = append(both.Evaluations, second)

	h := claimPartial(t, s, 0, "a-1", nil)
	expectError(t, "BeginTask", s.BeginTask(t.Context(), h, starting(later(0))), nil)
	expectError(t, "ChargeTask", s.ChargeTask(t.Context(), h, asking(budget.Limits{})), nil)
	for range 2 { // a repetition changes nothing
		ended := task.Charge{Ended: new(expense(40, "0.4")), Found: &first}
		expectError(t, "ChargeTask with a result", s.ChargeTask(t.Context(), h, ended), nil)
	}
	expectError(t, "ChargeTask without a result", s.ChargeTask(t.Context(), h, asking(budget.Limits{})), nil)
	beyond := asking(budget.Limits{Tokens: new(int64(1))})
	beyond.Ended, beyond.Found = new(expense(1, "0.1")), &both
	if _, ok := errors.AsType[*budget.Refusal](s.ChargeTask(t.Context(), h, beyond)); !ok {
		t.Error("ChargeTask beyond the budget is not refused")
	}
	s = reopen(t, s) // killed during the second request
	old := h
	h = claimPartial(t, s, 30, "a-1", &first)
	expectError(t, "ChargeTask of the old claim", s.ChargeTask(t.Context(), old, task.Charge{Found: &both}), task.ErrLost)
	expectError(t, "PostponeTask", s.PostponeTask(t.Context(), h, task.Delay{Until: later(60)}), nil)
	h = claimPartial(t, s, 60, "a-1", &first)
	expectError(t, "BeginTask", s.BeginTask(t.Context(), h, starting(later(60))), nil)

	long := result()
	long.Evaluations[0].Reason = strings.Repeat("x", task.MaxResult)
	short := result()
	short.Evaluations[0].Reason = ""
	expectError(t, "ChargeTask with a long result", s.ChargeTask(t.Context(), h, task.Charge{Found: &long}), nil)
	h = claimPartial(t, s, 90, "a-1", &short)
	expectError(t, "ChargeTask with both evaluations", s.ChargeTask(t.Context(), h, task.Charge{Found: &both}), nil)
	for _, r := range records(t, s, store.RecordQuery{}) {
		if diff := cmp.Diff(both.Recorded(), r.Evaluations); diff != "" && r.UID == "a-1" {
			t.Errorf("the record of a Turn whose work is not done: -want +got:\n%s", diff)
		}
	}
	expectExpenses(t, s, "a-1", func() turnrecord.Expense {
		sum := expense(50, "0.5") // the estimate of the request that was cut off counts
		sum.Requests = 2
		return sum
	}())

	expectError(t, "FinishTask", s.FinishTask(t.Context(), h, both, 40), nil)
	k := claim(t, s, "", later(120), "a-1")
	if diff := cmp.Diff(&both, k.Result); diff != "" || k.Partial != nil {
		t.Errorf("the partial result is %+v, want nil; the result: -want +got:\n%s", k.Partial, diff)
	}
	expectError(t, "ChargeTask after FinishTask", s.ChargeTask(t.Context(), k.Held(), task.Charge{Found: &first}), task.ErrLost)

	endTurns(t, s, "a-2")
	h = claimPartial(t, s, 0, "a-2", nil)
	expectError(t, "BeginTask", s.BeginTask(t.Context(), h, starting(later(0))), nil)
	expectError(t, "ChargeTask of another Turn", s.ChargeTask(t.Context(), h, task.Charge{Found: &first}), nil)
	expectError(t, "Retire", s.Retire(t.Context(), later(1), "a-2"), nil)
	expectError(t, "ChargeTask after the deletion", s.ChargeTask(t.Context(), h, task.Charge{Found: &both}), task.ErrLost)
	for _, r := range records(t, s, store.RecordQuery{}) {
		if diff := cmp.Diff(first.Recorded(), r.Evaluations); diff != "" && r.UID == "a-2" {
			t.Errorf("the record of the deleted Turn must keep earlier evaluations: -want +got:\n%s", diff)
		}
	}
	claim(t, s, "", later(149), "")
}
