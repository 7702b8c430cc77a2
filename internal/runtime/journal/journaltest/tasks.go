package journaltest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/budget"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/task"
	"github.com/capstan-dev/capstan/internal/runtime/turnrecord"
	"github.com/capstan-dev/capstan/internal/store"
)

// TaskStore is a journal with tasks.
type TaskStore interface {
	journal.Journal
	budget.Ledger
	store.Keeper
	store.Records
	store.Tasks
}

// RunTasks tests the contract of a TaskStore. open returns a new, empty store and closes it when the test ends. reopen
// returns the same store after a restart.
func RunTasks(t *testing.T, open func(t *testing.T) TaskStore, reopen func(t *testing.T, s TaskStore) TaskStore) {
	t.Run("a task is written with the end of its Turn, once", func(t *testing.T) { testTaskWithEnd(t, open(t), reopen) })
	t.Run("namespaces take turns", func(t *testing.T) { testTasksTakeTurns(t, open(t)) })
	t.Run("namespaces are left out", func(t *testing.T) { testTasksLeftOut(t, open(t)) })
	t.Run("an attempt that was cut off counts", func(t *testing.T) { testTaskCutOff(t, open(t)) })
	t.Run("a task has one claim at a time", func(t *testing.T) { testTaskClaimedOnce(t, open(t)) })
	t.Run("an expired claim is not valid after the next claim", func(t *testing.T) { testTaskClaimExpires(t, open(t)) })
	t.Run("a result is stored before it is published", func(t *testing.T) { testTaskResult(t, open(t), reopen) })
	t.Run("an Agent begins a limited number of tasks", func(t *testing.T) { testTaskLimits(t, open(t)) })
	t.Run("without a daily limit, the tasks of the day are not read", func(t *testing.T) { testTaskWithoutDailyLimit(t, open(t)) })
	t.Run("a task that a clock ahead has begun does not count", func(t *testing.T) { testTaskBegunAhead(t, open(t)) })
	t.Run("a task that a clock ahead has added or claimed does not wait", func(t *testing.T) { testTaskDueAhead(t, open(t)) })
	t.Run("a request of a task reserves budgets, and is charged once", func(t *testing.T) { testTaskBudget(t, open(t)) })
	t.Run("the requests of all attempts are in the record", func(t *testing.T) { testTaskExpenses(t, open(t), reopen) })
	t.Run("an attempt that is cut off leaves its partial result", func(t *testing.T) { testPartialResults(t, open(t), reopen) })
	t.Run("attempts that used tokens keep counting", func(t *testing.T) { testTaskKeepsCounting(t, open(t)) })
	t.Run("a task that is postponed before it has used tokens does not count", func(t *testing.T) { testTaskPostponed(t, open(t)) })
	t.Run("the task of a deleted Turn ends, and still counts", func(t *testing.T) { testTaskRetired(t, open(t)) })
	t.Run("old tasks are purged", func(t *testing.T) { testTasksPurged(t, open(t)) })
	t.Run("concurrent claims share the tasks", func(t *testing.T) { testConcurrentClaims(t, open(t)) })
	t.Run("a call whose context has ended does nothing", func(t *testing.T) { testEndedContextOfTasks(t, open(t)) })
}

// endTime is the time at which the Turns of the suite end.
var endTime = entryTime.Truncate(time.Microsecond)

// later returns the time that is the given number of minutes after endTime.
func later(minutes int) time.Time { return endTime.Add(time.Duration(minutes) * time.Minute) }

// taskOf returns the task of a Turn. Its namespace is the part of the UID before the hyphen.
func taskOf(uid string) task.Task {
	namespace, _, _ := strings.Cut(uid, "-")
	return task.Task{
		UID: uid, Kind: task.Evaluate, Namespace: namespace, Turn: "turn-" + uid, Agent: "desk", Session: "talk",
		Requester: "ada@example.com", Created: endTime,
	}
}

// endTurns ends Turns, and adds a task for each of them.
func endTurns(t *testing.T, s TaskStore, uids ...string) {
	t.Helper()
	for _, uid := range uids {
		e := ending(1, 1, recordOf(uid, 0))
		e.Tasks = []task.Task{taskOf(uid)}
		add(t, s, uid, nil, e)
	}
}

// claim claims a task for half an hour, and expects the task of the Turn with this UID, or no task if want is empty.
func claim(t testing.TB, s TaskStore, after string, now time.Time, want string) *task.Task {
	t.Helper()
	k, err := s.ClaimTask(t.Context(), task.Search{After: after, Now: now, Until: now.Add(30 * time.Minute)})
	var got string
	if k != nil {
		got = k.UID
	}
	if err != nil || got != want {
		t.Fatalf("ClaimTask: %q, %v; want %q", got, err, want)
	}
	return k
}

// expectError expects an error.
func expectError(t testing.TB, what string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

// starting returns a start within all limits.
func starting(now time.Time) task.Start { return task.Start{Now: now, MaxPerHour: 100, Tokens: 10} }

func testTaskWithEnd(t *testing.T, s TaskStore, reopen func(t *testing.T, s TaskStore) TaskStore) {
	end := ending(2, 1, recordOf("a-1", 0))
	end.Tasks = []task.Task{taskOf("a-1")}
	add(t, s, "a-1", journal.ErrSequence, end) // entry 1 is missing
	claim(t, s, "", later(1), "")
	add(t, s, "a-1", nil, entry(1, 1))
	add(t, s, "a-1", nil, end)
	add(t, s, "a-1", journal.ErrSequence, end)
	s = reopen(t, s)
	claim(t, s, "", endTime.Add(-time.Microsecond), "")
	k := claim(t, s, "", endTime, "a-1")
	want := taskOf("a-1")
	want.Claim = 1
	if diff := cmp.Diff(&want, k); diff != "" {
		t.Errorf("the task: -want +got:\n%s", diff)
	}
	claim(t, s, "", later(1), "")
	again := ending(3, 1, recordOf("a-1", 0))
	again.Tasks = []task.Task{taskOf("a-1")}
	add(t, s, "a-1", nil, again)
	claim(t, s, "", later(1), "")
}

func testTasksTakeTurns(t *testing.T, s TaskStore) {
	endTurns(t, s, "a-1", "a-2", "a-3", "b-1", "c-1", "c-2")
	after := ""
	for _, want := range []string{"a-1", "b-1", "c-1", "a-2", "c-2", "a-3"} {
		after = claim(t, s, after, later(1), want).Namespace
	}
	claim(t, s, after, later(1), "")
	use, err := s.TaskUse(t.Context())
	slices.SortFunc(use, func(a, b task.Use) int { return strings.Compare(a.Namespace, b.Namespace) })
	want := []task.Use{
		{Namespace: "a", Waiting: 3, Oldest: endTime},
		{Namespace: "b", Waiting: 1, Oldest: endTime},
		{Namespace: "c", Waiting: 2, Oldest: endTime},
	}
	if diff := cmp.Diff(want, use); diff != "" || err != nil {
		t.Errorf("TaskUse (error %v): -want +got:\n%s", err, diff)
	}
}

func testTasksLeftOut(t *testing.T, s TaskStore) {
	endTurns(t, s, "a-1", "a-2", "b-1", "c-1")
	for _, step := range []struct {
		after  string
		except []string
		want   string
	}{
		{"", []string{"a"}, "b-1"},
		{"b", []string{"c", "none"}, "a-1"},
		{"c", []string{"a", "c"}, ""},
		{"b", []string{"a"}, "c-1"},
		{"c", []string{}, "a-2"},
	} {
		k, err := s.ClaimTask(t.Context(), task.Search{After: step.after, Except: step.except, Now: later(1), Until: later(30)})
		if err != nil || (k == nil) != (step.want == "") || k != nil && k.UID != step.want {
			t.Errorf("after %q without %q: %+v, %v; want %q", step.after, step.except, k, err, step.want)
		}
	}
}

func testTaskClaimedOnce(t *testing.T, s TaskStore) {
	endTurns(t, s, "a-1")
	k := claim(t, s, "", later(1), "a-1")
	claim(t, s, "", later(30), "")
	expectError(t, "RenewTask", s.RenewTask(t.Context(), k.Held(), later(90)), nil)
	claim(t, s, "", later(89), "")
	claim(t, s, "", later(90), "a-1")
}

func testTaskClaimExpires(t *testing.T, s TaskStore) {
	endTurns(t, s, "a-1")
	old := claim(t, s, "", later(0), "a-1").Held()
	expectError(t, "BeginTask", s.BeginTask(t.Context(), old, starting(later(1))), nil)
	current := claim(t, s, "", later(30), "a-1")
	if current.Claim <= old.Claim || current.Attempts != 1 {
		t.Errorf("claim %d after claim %d, attempts %d; want a greater claim and one attempt", current.Claim, old.Claim, current.Attempts)
	}
	for what, err := range map[string]error{
		"RenewTask":    s.RenewTask(t.Context(), old, later(90)),
		"BeginTask":    s.BeginTask(t.Context(), old, starting(later(31))),
		"ChargeTask":   s.ChargeTask(t.Context(), old, asking(budget.Limits{})),
		"PostponeTask": s.PostponeTask(t.Context(), old, task.Delay{Until: later(90)}),
		"FinishTask":   s.FinishTask(t.Context(), old, task.Result{Skipped: task.NotEnabled}, 0),
		"PublishTask":  s.PublishTask(t.Context(), old, later(31)),
		"unknown task": s.RenewTask(t.Context(), task.Held{UID: "unknown"}, later(90)),
	} {
		expectError(t, what, err, task.ErrLost)
	}
	expectError(t, "PublishTask before FinishTask", s.PublishTask(t.Context(), current.Held(), later(31)), task.ErrLost)
	expectError(t, "FinishTask", s.FinishTask(t.Context(), current.Held(), task.Result{Skipped: task.NotEnabled}, 0), nil)
	expectError(t, "FinishTask again", s.FinishTask(t.Context(), current.Held(), task.Result{Skipped: task.Expired}, 0), task.ErrLost)
	expectError(t, "ChargeTask after FinishTask", s.ChargeTask(t.Context(), current.Held(), asking(budget.Limits{})), task.ErrLost)
	expectAccounts(t, s)
}

// result returns a result with one evaluation whose fields are all set.
func result() task.Result {
	return task.Result{Evaluations: []task.Evaluation{{
		Evaluation: turnrecord.Evaluation{
			Judge: "faithful", Kind: "Faithfulness", Verdict: "Passed", Score: "0.9", Threshold: "0.7", Provider: "p", Model: "m",
			Usage: model.Usage{InputTokens: 7, OutputTokens: 2}, Cost: &turnrecord.Cost{Amount: "0.1", Currency: "USD"}, Time: endTime,
		}, Reason: "as it says \u0000<",
	}}}
}

func testTaskResult(t *testing.T, s TaskStore, reopen func(t *testing.T, s TaskStore) TaskStore) {
	endTurns(t, s, "a-1", "a-2")
	k := claim(t, s, "", later(0), "a-1")
	want := result()
	expectError(t, "FinishTask", s.FinishTask(t.Context(), k.Held(), want, 0), nil)
	s = reopen(t, s) // killed before the result is published
	claim(t, s, "", later(30), "a-2")
	k = claim(t, s, "", later(30), "a-1")
	if diff := cmp.Diff(&want, k.Result); diff != "" {
		t.Errorf("the result of another executor: -want +got:\n%s", diff)
	}
	expectError(t, "BeginTask of a finished task", s.BeginTask(t.Context(), k.Held(), starting(later(31))), task.ErrLost)
	expectError(t, "PublishTask", s.PublishTask(t.Context(), k.Held(), later(31)), nil)
	expectError(t, "PublishTask again", s.PublishTask(t.Context(), k.Held(), later(31)), task.ErrLost)
	claim(t, s, "", later(59), "")
	claim(t, s, "", later(60), "a-2")
	claim(t, s, "", later(89), "")
	for _, r := range records(t, s, store.RecordQuery{}) {
		var recorded []turnrecord.Evaluation
		if r.UID == "a-1" {
			recorded = want.Recorded()
		}
		if diff := cmp.Diff(recorded, r.Evaluations); diff != "" {
			t.Errorf("the record of %s: -want +got:\n%s", r.UID, diff)
		}
	}
}

func testTaskLimits(t *testing.T, s TaskStore) {
	endTurns(t, s, "a-1", "a-2", "a-3", "b-1")
	held := map[string]task.Held{}
	for _, uid := range []string{"a-1", "a-2", "a-3", "b-1"} {
		held[uid] = claim(t, s, "", later(0), uid).Held()
	}
	beginTask := func(uid string, minutes int, perHour, perDay int64) error {
		return s.BeginTask(t.Context(), held[uid], task.Start{
			Now: later(minutes), MaxPerHour: perHour, MaxTokensPerDay: perDay, Tokens: 10,
		})
	}
	refused := func(what string, err error, skip task.Skip) {
		t.Helper()
		if r, ok := errors.AsType[*task.Refusal](err); !ok || r.Skip != skip {
			t.Errorf("%s: %v, want %s", what, err, skip)
		}
	}
	expectError(t, "the first task", beginTask("a-1", 1, 1, 10), nil)
	expectError(t, "another attempt of the same task", beginTask("a-1", 2, 1, 0), nil)
	refused("the second task", beginTask("a-2", 3, 1, 0), task.HourlyLimit)
	refused("the tokens of two attempts", beginTask("a-2", 3, 2, 29), task.TokenLimit)
	expectError(t, "the second task within the limits", beginTask("a-2", 3, 2, 30), nil)
	expectError(t, "another namespace", beginTask("b-1", 3, 1, 10), nil)
	expectError(t, "FinishTask", s.FinishTask(t.Context(), held["a-2"], task.Result{Skipped: task.Expired}, 4), nil)
	refused("the tokens after a task used less", beginTask("a-3", 4, 9, 33), task.TokenLimit)
	expectError(t, "the third task", beginTask("a-3", 4, 9, 34), nil)
	expectError(t, "the third task after an hour", beginTask("a-3", 64, 1, 0), nil)
	expectError(t, "the third task after a day", beginTask("a-3", 26*60, 1, 10), nil)
}

// testTaskWithoutDailyLimit checks that BeginTask does not read the tasks of a whole day if there is no limit for a
// day: the sum of their tokens would be too large for an integer.
func testTaskWithoutDailyLimit(t *testing.T, s TaskStore) {
	endTurns(t, s, "a-1", "a-2", "a-3")
	for i, uid := range []string{"a-1", "a-2"} {
		h := claim(t, s, "", later(0), uid).Held()
		start := task.Start{Now: later(120 * i), MaxPerHour: 1, Tokens: math.MaxInt64}
		expectError(t, "BeginTask of "+uid, s.BeginTask(t.Context(), h, start), nil)
	}
	h := claim(t, s, "", later(0), "a-3").Held()
	expectError(t, "BeginTask hours later", s.BeginTask(t.Context(), h, task.Start{Now: later(240), MaxPerHour: 1, Tokens: 1}), nil)
}

// testTaskBegunAhead checks that tasks that were begun while the clock was ahead do not use up the limits of later
// tasks, but that the clocks of executors may differ by seconds.
func testTaskBegunAhead(t *testing.T, s TaskStore) {
	endTurns(t, s, "a-1", "a-2", "a-3")
	start := task.Start{Now: later(180), MaxPerHour: 1, MaxTokensPerDay: 10, Tokens: 10}
	expectError(t, "BeginTask with a clock ahead", s.BeginTask(t.Context(), claim(t, s, "", later(0), "a-1").Held(), start), nil)
	start.Now = later(0).Add(30 * time.Second)
	expectError(t, "BeginTask after the clock was set back", s.BeginTask(t.Context(), claim(t, s, "", later(0), "a-2").Held(), start), nil)
	start.Now = later(0)
	err := s.BeginTask(t.Context(), claim(t, s, "", later(0), "a-3").Held(), start)
	if r, ok := errors.AsType[*task.Refusal](err); !ok || r.Skip != task.HourlyLimit {
		t.Errorf("BeginTask: %v, want a refusal, because another executor has just begun a task", err)
	}
}

// testTaskDueAhead checks that tasks that were added or claimed while the clock was ahead can be claimed, but that the
// claims of other executors, whose clocks may differ, stay valid.
func testTaskDueAhead(t *testing.T, s TaskStore) {
	endTurns(t, s, "a-1", "a-2")
	claim(t, s, "", endTime.Add(-time.Minute), "") // Until is later than the creation
	before := endTime.Add(-3 * time.Hour)
	claim(t, s, "", before, "a-1")
	held := claim(t, s, "", before, "a-2").Held()
	claim(t, s, "", before, "")
	expectError(t, "RenewTask with a clock slightly ahead", s.RenewTask(t.Context(), held, before.Add(40*time.Minute)), nil)
	claim(t, s, "", before, "")
	expectError(t, "RenewTask with a clock ahead", s.RenewTask(t.Context(), held, endTime), nil)
	again := claim(t, s, "", before, "a-2")
	if again.Claim <= held.Claim {
		t.Errorf("claim %d after claim %d, want a greater one", again.Claim, held.Claim)
	}
	claim(t, s, "", before, "")
	expectError(t, "PostponeTask with a clock ahead", s.PostponeTask(t.Context(), again.Held(), task.Delay{Until: endTime}), nil)
	claim(t, s, "", before, "a-2")
}

// testTaskKeepsCounting checks that an attempt that used tokens counts against the limits, even if a later attempt is
// refused.
func testTaskKeepsCounting(t *testing.T, s TaskStore) {
	endTurns(t, s, "a-1", "a-2")
	k := claim(t, s, "", later(0), "a-1").Held()
	expectError(t, "BeginTask", s.BeginTask(t.Context(), k, starting(later(0))), nil)
	expectError(t, "PostponeTask", s.PostponeTask(t.Context(), k, task.Delay{Until: later(1), Used: 7}), nil)
	k = claim(t, s, "b", later(1), "a-2").Held()
	other := k
	first := claim(t, s, "", later(1), "a-1")
	if first.Attempts != 0 {
		t.Errorf("the task has %d attempts, want none, because its attempt was not cut off", first.Attempts)
	}
	k = first.Held()
	expectError(t, "BeginTask", s.BeginTask(t.Context(), k, starting(later(1))), nil)
	expectError(t, "PostponeTask", s.PostponeTask(t.Context(), k, task.Delay{Until: later(1), Used: 7, CutOff: true}), nil)
	first = claim(t, s, "", later(1), "a-1")
	if first.Attempts != 1 {
		t.Errorf("the task has %d attempts, want only the attempt that was cut off", first.Attempts)
	}
	k = first.Held()
	expectError(t, "BeginTask again", s.BeginTask(t.Context(), k, starting(later(1))), nil)
	expectError(t, "FinishTask", s.FinishTask(t.Context(), k, task.Result{Skipped: task.BudgetExceeded}, 0), nil)
	expectError(t, "PublishTask", s.PublishTask(t.Context(), k, later(1)), nil)
	err := s.BeginTask(t.Context(), other, task.Start{Now: later(2), MaxPerHour: 1})
	if r, ok := errors.AsType[*task.Refusal](err); !ok || r.Skip != task.HourlyLimit {
		t.Errorf("BeginTask: %v, want a refusal, because the first attempt still counts", err)
	}
}

func testTaskPostponed(t *testing.T, s TaskStore) {
	endTurns(t, s, "a-1", "a-2")
	k := claim(t, s, "", later(0), "a-1").Held()
	expectError(t, "BeginTask", s.BeginTask(t.Context(), k, starting(later(0))), nil)
	expectError(t, "PostponeTask", s.PostponeTask(t.Context(), k, task.Delay{Until: later(10)}), nil)
	expectError(t, "PostponeTask again", s.PostponeTask(t.Context(), k, task.Delay{Until: later(10)}), task.ErrLost)
	expectAccounts(t, s)
	second := claim(t, s, "", later(9), "a-2").Held()
	first := claim(t, s, "", later(10), "a-1")
	if first.Attempts != 0 {
		t.Errorf("the postponed task has %d attempts, want none", first.Attempts)
	}
	expectError(t, "BeginTask of the other task, the first of the hour",
		s.BeginTask(t.Context(), second, task.Start{Now: later(10), MaxPerHour: 1, MaxTokensPerDay: 10, Tokens: 10}), nil)
}

func testTaskRetired(t *testing.T, s TaskStore) {
	endTurns(t, s, "a-1", "a-2", "a-3")
	k := claim(t, s, "", later(0), "a-1").Held()
	expectError(t, "BeginTask", s.BeginTask(t.Context(), k, starting(later(0))), nil)
	expectError(t, "ChargeTask", s.ChargeTask(t.Context(), k, asking(budget.Limits{})), nil)
	for range 2 {
		expectError(t, "Retire", s.Retire(t.Context(), later(1), "a-1", "a-2"), nil)
	}
	expectError(t, "RenewTask", s.RenewTask(t.Context(), k, later(90)), task.ErrLost)
	expectError(t, "ChargeTask after the deletion",
		s.ChargeTask(t.Context(), k, task.Charge{Ended: new(expense(40, "0.4"))}), task.ErrLost)
	expectError(t, "FinishTask", s.FinishTask(t.Context(), k, result(), 40), task.ErrLost)
	expectAccounts(t, s, spent("x", 0, 10, "0.1"))
	expectExpenses(t, s, "a-1", expense(10, "0.1"))
	third := claim(t, s, "", later(40), "a-3").Held()
	err := s.BeginTask(t.Context(), third, task.Start{Now: later(41), MaxPerHour: 1})
	if r, ok := errors.AsType[*task.Refusal](err); !ok || r.Skip != task.HourlyLimit {
		t.Errorf("BeginTask: %v, want a refusal, because the task of the deleted Turn still counts", err)
	}
}

func testTasksPurged(t *testing.T, s TaskStore) {
	endTurns(t, s, "a-0", "a-1", "a-2", "a-3")
	for i, uid := range []string{"a-0", "a-1", "a-2"} {
		k := claim(t, s, "", later(0), uid).Held()
		end := task.Result{Skipped: task.NotEnabled}
		if i > 0 { // a task that has not begun is deleted immediately
			expectError(t, "BeginTask", s.BeginTask(t.Context(), k, starting(later(0))), nil)
			end = result()
		}
		expectError(t, "FinishTask", s.FinishTask(t.Context(), k, end, 0), nil)
		expectError(t, "PublishTask", s.PublishTask(t.Context(), k, later(i)), nil)
		expectError(t, "PublishTask again", s.PublishTask(t.Context(), k, later(i)), task.ErrLost)
	}
	for _, step := range []struct {
		before time.Time
		limit  int
		want   int
	}{{later(1), 10, 0}, {later(5), 0, 0}, {later(5), 1, 1}, {later(5), 10, 1}, {later(5000), 10, 0}} {
		if n, err := s.PurgeTasks(t.Context(), step.before, step.limit); n != step.want || err != nil {
			t.Errorf("PurgeTasks(%s, %d) = %d, %v; want %d", step.before, step.limit, n, err, step.want)
		}
	}
	claim(t, s, "", later(5000), "a-3")
}

func testConcurrentClaims(t *testing.T, s TaskStore) {
	var uids []string
	for i := range 12 {
		uids = append(uids, fmt.Sprintf("a-%02d", i))
	}
	endTurns(t, s, uids...)
	var mu sync.Mutex
	var got []string
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 3 {
				k, err := s.ClaimTask(t.Context(), task.Search{Now: later(1), Until: later(30)})
				mu.Lock()
				if err != nil || k == nil {
					t.Errorf("ClaimTask: %v, %v; want a task", k, err)
				} else {
					got = append(got, k.UID)
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	slices.Sort(got)
	if diff := cmp.Diff(uids, got); diff != "" {
		t.Errorf("claimed tasks: -want +got:\n%s", diff)
	}
}

func testEndedContextOfTasks(t *testing.T, s TaskStore) {
	endTurns(t, s, "a-1")
	k := claim(t, s, "", later(0), "a-1").Held()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for what, call := range map[string]func() error{
		"ClaimTask":    func() error { _, err := s.ClaimTask(ctx, task.Search{Now: later(100), Until: later(200)}); return err },
		"RenewTask":    func() error { return s.RenewTask(ctx, k, later(200)) },
		"BeginTask":    func() error { return s.BeginTask(ctx, k, starting(later(1))) },
		"PostponeTask": func() error { return s.PostponeTask(ctx, k, task.Delay{Until: later(200)}) },
		"ChargeTask":   func() error { return s.ChargeTask(ctx, k, asking(budget.Limits{})) },
		"FinishTask":   func() error { return s.FinishTask(ctx, k, result(), 0) },
		"PublishTask":  func() error { return s.PublishTask(ctx, k, later(1)) },
		"TaskUse":      func() error { _, err := s.TaskUse(ctx); return err },
		"PurgeTasks":   func() error { _, err := s.PurgeTasks(ctx, later(100), 10); return err },
	} {
		expectError(t, what, call(), context.Canceled)
	}
	if again := claim(t, s, "", later(30), "a-1"); again.Attempts != 0 || again.Claim != k.Claim+1 {
		t.Errorf("the task is %+v, want no change", again)
	}
}
