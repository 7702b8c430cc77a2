package executor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/budget"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/store"
	"github.com/capstan-dev/capstan/internal/store/sqlite"
	"github.com/capstan-dev/capstan/internal/turnstatus"
)

// errKilled is the end of a process in these tests: the process writes nothing after it.
var errKilled = errors.New("killed")

// purchaseHarness is a Turn that buys something once, and the processes that run it one after another. Their store
// is a real file.
type purchaseHarness struct {
	*Executor
	t    *testing.T
	path string
	// effect is the effect of the tool, and calls counts its calls. during is called within each call; it may be
	// nil.
	effect tool.Effect
	calls  int
	during func(*run)
	// onRequest is called for each request to the model; it may be nil.
	onRequest func(*run)
	// reply returns the reply to each request; if it is nil, Generate replies.
	reply func() (*model.Reply, error)
	// current is the run of the Turn in the current process, and journals is the store of this process.
	current  *run
	journals *sqlite.Store
	// writes counts the writes of status.
	writes int
	// published is the position of the store that the Leases publish.
	published int64
	// bug makes the engine panic.
	bug bool
}

func newPurchaseHarness(t *testing.T, change ...func(*v1alpha1.Turn)) *purchaseHarness {
	t.Helper()
	s := &purchaseHarness{t: t, path: filepath.Join(t.TempDir(), "journal.db"), effect: tool.Destructive}
	unbound := func(o *v1alpha1.Turn) { o.Spec.Execution, o.Status.Executor = v1alpha1.ExecutionRun, nil }
	s.Executor, _ = newExecutor(t, interceptor.Funcs{
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object,
			opts ...client.SubResourceUpdateOption,
		) error {
			s.writes++
			return c.SubResource(sub).Update(ctx, o, opts...)
		},
	}, append(surroundings(), turnWith(append([]func(*v1alpha1.Turn){unbound}, change...)...))...)
	s.Provider = func(*v1alpha1.ModelProvider) model.Provider { return s }
	return s
}

// Generate makes one call, and then answers.
func (s *purchaseHarness) Generate(ctx context.Context, r *model.Request) (*model.Reply, error) {
	if s.onRequest != nil {
		s.onRequest(s.current)
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if s.reply != nil {
		return s.reply()
	}
	usage := model.Usage{InputTokens: 10, OutputTokens: 1}
	if r.Messages[len(r.Messages)-1].Role == model.RoleTool {
		return &model.Reply{Text: "Done.", FinishReason: model.FinishStop, Usage: usage}, nil
	}
	return &model.Reply{
		FinishReason: model.FinishToolCalls, Usage: usage,
		ToolCalls: []model.ToolCall{{ID: "c1", Name: "buy", Arguments: `{}`}},
	}, nil
}

// open opens the existing store.
func (s *purchaseHarness) open() *sqlite.Store {
	s.t.Helper()
	journals, err := sqlite.Open(s.t.Context(), s.path)
	if err != nil {
		s.t.Fatal(err)
	}
	return journals
}

// bind binds the Turn as the controller does. predicted is the controller's expectation whether the Turn has side
// effects.
func (s *purchaseHarness) bind(predicted bool) {
	s.t.Helper()
	journals, t := s.open(), stored(s.t, s.Executor)
	id, err := s.newTracker(journals).Identity(s.t.Context())
	if err := errors.Join(err, journals.Close()); err != nil {
		s.t.Fatal(err)
	}
	turnstatus.Bind(t, turnstatus.Binding{Executor: me, Store: id, SideEffects: predicted}, now)
	if err := s.Client.Status().Update(s.t.Context(), t); err != nil {
		s.t.Fatal(err)
	}
}

// newTracker returns the tracker of a process that starts.
func (s *purchaseHarness) newTracker(journals store.PositionStore) *store.Tracker {
	return store.NewTracker(journals, store.TrackerOptions{Published: func(context.Context, string) (int64, error) {
		if s.bug {
			panic("a bug")
		}
		return s.published, nil
	}})
}

// run starts a process that runs the Turn as it is bound. The function during can kill it.
func (s *purchaseHarness) run(change ...func(*run)) *v1alpha1.Turn {
	s.t.Helper()
	journals := s.open()
	defer func() {
		if err := journals.Close(); err != nil {
			s.t.Error(err)
		}
	}()
	s.Engine, s.Store = &turn.Engine{Journal: journals, Now: s.Now}, s.newTracker(journals)
	ctx, abandon := context.WithCancelCause(s.t.Context())
	defer abandon(nil)
	t := stored(s.t, s.Executor)
	r := &run{
		executor: s.Executor, turn: t, binding: *t.Status.Executor.DeepCopy(), epoch: t.Epoch(),
		first: t.Epoch() == 1 || turnstatus.NothingBegun(t.Status.Executor), begun: now, abandon: abandon,
		cancellation: newCancellation(s.t.Context()), interrupt: make(chan struct{}),
	}
	for _, f := range change {
		f(r)
	}
	s.current, s.journals = r, journals
	s.Tools = func(context.Context, *v1alpha1.Agent) []tool.Tool {
		return []tool.Tool{{
			Tool: prompt.Tool{Name: "buy"}, Effect: s.effect,
			Caller: tool.CallerFunc(func(ctx context.Context, _ tool.Call) (tool.Result, error) {
				s.calls++
				if s.during != nil {
					s.during(r)
				}
				return tool.Result{Content: "bought"}, context.Cause(ctx)
			}),
		}}
	}
	r.progress.begin(ctx, r.turn, r.writeProgress)
	result, err := r.execute(ctx)
	r.turn = r.progress.stop()
	if !errors.Is(err, errKilled) {
		r.writeOutcome(ctx, result, err)
	}
	return stored(s.t, s.Executor)
}

// kill ends a process immediately.
func kill(r *run) { r.abandon(errKilled) }

// suspend suspends a Turn while it runs.
func suspend(r *run) { r.handleDesiredState(v1alpha1.DesiredStateSuspended) }

// lose deletes the store.
func (s *purchaseHarness) lose() {
	s.t.Helper()
	for _, suffix := range []string{"", "-wal", "-shm"} {
		if err := os.Remove(s.path + suffix); err != nil && !errors.Is(err, os.ErrNotExist) {
			s.t.Fatal(err)
		}
	}
}

// killedOnce returns a purchaseHarness whose first process was killed during the purchase.
func killedOnce(t *testing.T, predicted bool, change ...func(*v1alpha1.Turn)) *purchaseHarness {
	t.Helper()
	s := newPurchaseHarness(t, change...)
	s.during = kill
	s.bind(predicted)
	if got := s.run(); s.calls != 1 || got.IsFinished() {
		t.Fatalf("%d calls, status %+v; want the process killed within the first", s.calls, got.Status)
	}
	s.during = nil
	return s
}

func rerun(t *v1alpha1.Turn) { t.Spec.OnJournalLoss = v1alpha1.JournalLossRerun }

// mustBeLost fails the test unless the Turn has ended for the given reason and reports the loss of its journal.
func (s *purchaseHarness) mustBeLost(got *v1alpha1.Turn, reason, loss string) {
	s.t.Helper()
	main, lost := meta.FindStatusCondition(got.Status.Conditions, v1alpha1.ConditionSucceeded),
		meta.FindStatusCondition(got.Status.Conditions, v1alpha1.ConditionJournalLost)
	if main.Status != metav1.ConditionFalse || main.Reason != reason ||
		!strings.Contains(main.Message, "the journal of the turn was lost: ") {
		s.t.Errorf("Succeeded is %+v, want False, reason %s and a message that the journal was lost", main, reason)
	}
	if lost == nil || lost.Status != metav1.ConditionTrue || lost.Reason != loss {
		s.t.Errorf("JournalLost is %+v, want it True with reason %s", lost, loss)
	}
	if events := strings.Join(recorded(s.Executor), "\n"); !strings.Contains(events,
		"Warning JournalLost the journal of the turn was lost") && !strings.Contains(events, "Warning JournalLost the turn ") {
		s.t.Errorf("Events %q, want one that says so", events)
	}
	if n := got.Status.Steps.UnknownOutcomes; n != 1 {
		s.t.Errorf("%d unknown outcomes, want 1", n)
	}
	if s.calls != 1 {
		s.t.Errorf("%d calls, want none made twice", s.calls)
	}
}

func TestCallIsNotRepeatedAfterJournalLoss(t *testing.T) {
	s := killedOnce(t, true)
	s.lose()
	s.bind(true)
	s.writes = 0
	got := s.run()
	s.mustBeLost(got, v1alpha1.TurnReasonInterrupted, v1alpha1.TurnReasonOtherStore)
	if got.Status.StopReason != v1alpha1.StopInterrupted || s.writes != 1 {
		t.Errorf("stopReason %s after %d writes, want Interrupted after one", got.Status.StopReason, s.writes)
	}
}

func TestCallIsNotRepeatedAfterJournalLossOfASuspendedTurn(t *testing.T) {
	s := newPurchaseHarness(t)
	s.during = suspend
	s.bind(true)
	if got := s.run(); got.StateReason() != v1alpha1.TurnReasonSuspended || *got.Status.Executor.JournalEntries == 0 {
		t.Fatalf("status %+v, want it suspended, with the number of its entries", got.Status)
	}
	s.during = nil
	s.lose()
	s.bind(true)
	s.mustBeLost(s.run(), v1alpha1.TurnReasonInterrupted, v1alpha1.TurnReasonOtherStore)
}

// copied returns a copy of the current store.
func (s *purchaseHarness) copied() []byte {
	s.t.Helper()
	if err := s.open().Close(); err != nil { // so that the file contains everything
		s.t.Fatal(err)
	}
	data, err := os.ReadFile(s.path)
	if err != nil {
		s.t.Fatal(err)
	}
	return data
}

// restore replaces the store with a copy.
func (s *purchaseHarness) restore(data []byte) {
	s.t.Helper()
	s.lose()
	if err := os.WriteFile(s.path, data, 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// publish writes the position of the store into a Lease, as each executor does.
func (s *purchaseHarness) publish() {
	s.t.Helper()
	journals := s.open()
	tracker := s.newTracker(journals)
	err := tracker.Mark(s.t.Context())
	s.published = tracker.Last().Position
	if err := errors.Join(err, journals.Close()); err != nil {
		s.t.Fatal(err)
	}
}

// TestCallIsNotRepeatedAfterAnOlderStoreIsRestored checks that a restored store never leads to a second
// call. The copy is from before the Turn began, or from before the call. The Turn was suspended, so that its status
// has the number of entries; or it was killed, so that only a Lease has the position of the store.
func TestCallIsNotRepeatedAfterAnOlderStoreIsRestored(t *testing.T) {
	for name, tc := range map[string]struct {
		during func(*run)
		begun  bool
		loss   string
	}{
		"suspended, copy from before the Turn": {suspend, false, v1alpha1.TurnReasonEntriesMissing},
		"suspended, copy from before the call": {suspend, true, v1alpha1.TurnReasonEntriesMissing},
		"killed, copy from before the Turn":    {kill, false, v1alpha1.TurnReasonJournalMissing},
		"killed, copy from before the call":    {kill, true, v1alpha1.TurnReasonEntriesUncertain},
	} {
		t.Run(name, func(t *testing.T) {
			s := newPurchaseHarness(t)
			s.bind(true)
			old := s.copied()
			if tc.begun {
				s.onRequest = kill
				s.run()
				s.onRequest = nil
				old = s.copied()
				s.bind(true)
			}
			s.during = tc.during
			s.run()
			s.during = nil
			s.publish()
			s.restore(old)
			s.bind(true)
			s.mustBeLost(s.run(), v1alpha1.TurnReasonInterrupted, tc.loss)
			journals := s.open()
			state, err := journals.State(t.Context())
			if err := errors.Join(err, journals.Close()); err != nil || state.Incarnation == "1" || state.Position <= s.published {
				t.Errorf("store %+v, %v; want another incarnation, and a position above %d", state, err, s.published)
			}
		})
	}
}

// TestTurnContinuesInACompleteRestoredStore checks that a Turn continues in a copy that was made after the Turn
// was suspended.
func TestTurnContinuesInACompleteRestoredStore(t *testing.T) {
	s := newPurchaseHarness(t)
	s.bind(true)
	s.during = suspend
	s.run()
	s.during = nil
	old := s.copied()
	s.published = 100 // other Turns have written since
	s.restore(old)
	s.bind(true)
	got := s.run()
	if got.StateReason() != v1alpha1.TurnReasonCompleted || s.calls != 1 ||
		meta.FindStatusCondition(got.Status.Conditions, v1alpha1.ConditionJournalLost) != nil {
		t.Errorf("%s after %d calls, want it completed, with one call and no lost journal", got.StateReason(), s.calls)
	}
}

// TestEmptyJournalOfALaterRunProvesNothing checks that a later run that found no entries, and handed the Turn back,
// does not prove that there never were any.
func TestEmptyJournalOfALaterRunProvesNothing(t *testing.T) {
	s := newPurchaseHarness(t)
	s.bind(true)
	old := s.copied()
	s.during = kill
	s.run()
	s.during = nil
	s.restore(old)
	s.bind(true)
	profile := &v1alpha1.PromptProfile{}
	if err := errors.Join(s.Client.Get(t.Context(), client.ObjectKey{Namespace: "helpdesk", Name: "house"}, profile),
		s.Client.Delete(t.Context(), profile)); err != nil {
		t.Fatal(err)
	}
	s.run()
	profile.ResourceVersion = ""
	if err := s.Client.Create(t.Context(), profile); err != nil {
		t.Fatal(err)
	}
	if got := stored(t, s.Executor); got.IsFinished() || got.BoundTo() != "" || got.Status.Executor.JournalComplete {
		t.Fatalf("executor %+v, want the Turn handed back, and its journal not marked as complete", got.Status.Executor)
	}
	s.published = 100 // another executor, which was unavailable before, has published this position
	s.bind(true)
	s.mustBeLost(s.run(), v1alpha1.TurnReasonInterrupted, v1alpha1.TurnReasonJournalMissing)
}

// TestRunSurvivesAFailoverOfTheStore checks that the progress of a run after a failover of the store says that the
// journal is complete in the new incarnation.
func TestRunSurvivesAFailoverOfTheStore(t *testing.T) {
	s := newPurchaseHarness(t)
	s.bind(true)
	s.during = func(r *run) {
		s.published = 100
		if _, err := s.newTracker(s.journals).Identity(t.Context()); err != nil { // another process checks the store
			t.Error(err)
		}
		if _, err := s.Store.Identity(t.Context()); err != nil {
			t.Error(err)
		}
		if written, err := r.writeProgress(t.Context(), r.turn, statusUpdate{}); written == nil || err != nil {
			t.Errorf("writeProgress: %v, %v", written, err)
		}
		kill(r)
	}
	if got := s.run(); got.Status.Executor.StoreIncarnation != s.Store.Last().Incarnation || s.Store.Last().Incarnation == "1" {
		t.Fatalf("executor %+v, want the new incarnation of %+v", got.Status.Executor, s.Store.Last())
	}
	s.during = nil
	s.bind(true)
	if got := s.run(); got.StateReason() != v1alpha1.TurnReasonCompleted || got.Status.Steps.UnknownOutcomes != 1 || s.calls != 1 {
		t.Errorf("%s after %d calls, %+v; want it completed, with the call unknown", got.StateReason(), s.calls, got.Status.Steps)
	}
}

// TestStatusSurvivesADamagedJournalAndAPanic checks that the Turn ends with the data of its status if
// its run could not read the journal.
func TestStatusSurvivesADamagedJournalAndAPanic(t *testing.T) {
	for name, harm := range map[string]func(*purchaseHarness){
		"damaged": func(s *purchaseHarness) {
			journals := s.open()
			e := journal.Entry{Epoch: 1, Kind: journal.ModelReplied, Time: now, Payload: []byte(`[]`)}
			last, err := journals.Last(s.t.Context(), "uid-one")
			e.Seq = last + 1
			if err := errors.Join(err, journals.Append(s.t.Context(), "uid-one", e), journals.Close()); err != nil {
				s.t.Fatal(err)
			}
		},
		"panic": func(s *purchaseHarness) { s.bug = true },
	} {
		for _, unlisted := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, and the status lists no call: %t", name, unlisted), func(t *testing.T) {
				s := killedOnce(t, true)
				if !unlisted {
					known := stored(t, s.Executor)
					known.Status.Steps = &v1alpha1.StepCounts{Count: 3, ModelRequests: 3, ToolCalls: 2}
					known.Status.Usage = &v1alpha1.Usage{InputTokens: 30, TotalTokens: 30}
					known.Status.ToolCalls = []v1alpha1.ToolCallRecord{
						{CallID: "a", Name: "buy", Step: 1, Outcome: v1alpha1.ToolCallSucceeded},
						{CallID: "b", Name: "buy", Step: 2, Outcome: v1alpha1.ToolCallPending},
					}
					if err := s.Client.Status().Update(t.Context(), known); err != nil {
						t.Fatal(err)
					}
				}
				s.bind(true)
				harm(s)
				got := s.run()
				steps, usage := got.Status.Steps, got.Status.Usage
				if unlisted {
					if got.StateReason() != v1alpha1.TurnReasonInterrupted || steps == nil || steps.UnknownOutcomes < 1 {
						t.Errorf("%s, steps %+v; want it interrupted, and an unknown outcome for the call that the status does not list",
							got.StateReason(), steps)
					}
					return
				}
				if got.StateReason() != v1alpha1.TurnReasonInterrupted || steps == nil || steps.Count < 3 ||
					steps.ModelRequests < 3 || steps.UnknownOutcomes < 1 ||
					usage == nil || usage.InputTokens < 30 || len(got.Status.ToolCalls) != 2 ||
					got.Status.ToolCalls[1].Outcome != v1alpha1.ToolCallUnknown {
					t.Errorf("%s, steps %+v, usage %+v, calls %+v; want it interrupted, with at least the known usage and calls",
						got.StateReason(), steps, usage, got.Status.ToolCalls)
				}
			})
		}
	}
}

// TestTurnThatStartsOverCountsOnce checks that a budget counts a Turn whose journal was lost, unless a request may have
// been sent before a loss: then the budget has counted the Turn already.
func TestTurnThatStartsOverCountsOnce(t *testing.T) {
	parks := func(_ *purchaseHarness, limits *budget.Limits) { limits.Tokens = new(int64(0)) }
	asks := func(s *purchaseHarness, _ *budget.Limits) { s.during = suspend }
	dies := func(s *purchaseHarness, _ *budget.Limits) { s.onRequest = kill }
	answers := func(s *purchaseHarness, _ *budget.Limits) {
		s.onRequest = suspend
		s.reply = func() (*model.Reply, error) { return &model.Reply{Text: "Done.", FinishReason: model.FinishStop}, nil }
	}
	type run func(*purchaseHarness, *budget.Limits)
	for name, tc := range map[string]struct {
		lost []run // each run is followed by a loss
		want int64
	}{
		"waited for the budget": {[]run{parks}, 1},
		"waited twice":          {[]run{parks, parks}, 1},
		"asked":                 {[]run{asks}, 0},
		"asked, and waited":     {[]run{asks, parks}, 0},
		"waited, and asked":     {[]run{parks, asks}, 0},
		"its process was killed during its first request": {[]run{dies}, 0},
		"suspended during the request for its answer":     {[]run{answers}, 0},
		"suspended during a request, and waited":          {[]run{answers, parks}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := newPurchaseHarness(t)
			s.effect = tool.ReadOnly
			var limits budget.Limits
			s.Budgets = func(context.Context, *v1alpha1.Turn, map[string]string, func() (string, error)) ([]budget.Rule, error) {
				return []budget.Rule{{
					UID: "b", Name: "team", Unit: budget.Day, Zone: time.UTC, Limits: limits, Queue: true, Currency: "USD",
				}}, nil
			}
			for _, prepare := range tc.lost {
				prepare(s, &limits)
				s.bind(false)
				if got := s.run(); got.IsFinished() {
					t.Fatalf("the Turn is %s, want it unfinished", got.StateReason())
				}
				s.lose()
				limits, s.during, s.onRequest, s.reply = budget.Limits{}, nil, nil, nil
			}
			s.bind(false)
			got := s.run()
			journals := s.open()
			accounts, err := journals.Accounts(t.Context(), now)
			if err := errors.Join(err, journals.Close()); err != nil || got.StateReason() != v1alpha1.TurnReasonCompleted ||
				len(accounts) != 1 || accounts[0].Turns != tc.want {
				t.Errorf("%s, accounts %+v, %v; want it completed, and counted %d times in the new store", got.StateReason(),
					accounts, err, tc.want)
			}
		})
	}
}

func TestTurnWithoutSideEffectsStartsOverAfterJournalLoss(t *testing.T) {
	for name, tc := range map[string]struct {
		reason  string
		effect  tool.Effect
		effects bool
		change  []func(*v1alpha1.Turn)
	}{
		"read-only": {"a repetition is harmless", tool.ReadOnly, false, nil},
		"Rerun":     {"the spec asks for it", tool.Destructive, true, []func(*v1alpha1.Turn){rerun}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newPurchaseHarness(t, tc.change...)
			s.effect, s.during = tc.effect, kill
			s.bind(tc.effects)
			s.run()
			s.during = nil
			s.lose()
			s.bind(tc.effects)
			got := s.run()
			lost := meta.FindStatusCondition(got.Status.Conditions, v1alpha1.ConditionJournalLost)
			if got.StateReason() != v1alpha1.TurnReasonCompleted || s.calls != 2 || lost == nil || lost.Status != metav1.ConditionTrue ||
				!strings.Contains(lost.Message, "starts over, and its status does not count its earlier usage") {
				t.Errorf("%s after %d calls, JournalLost %+v; want it started over, and the condition to report it: %s", got.StateReason(),
					s.calls, lost, tc.reason)
			}
			if events := recorded(s.Executor); len(events) != 2 || !strings.HasPrefix(events[0], "Warning JournalLost ") {
				t.Errorf("Events %q, want the loss and the end", events)
			}
			if b := got.Status.Executor; b.StoreID != s.Store.Last().ID {
				t.Errorf("the binding names store %q, want the new one", b.StoreID)
			}
		})
	}
}

// TestTurnThatHasNotBegunContinues covers a Turn whose process was killed before the first append to the journal, and a
// Turn that was handed back before the first append.
func TestTurnThatHasNotBegunContinues(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		before func(*purchaseHarness)
	}{
		"killed": {"a store that keeps confirmed entries has none", func(*purchaseHarness) {}},
		"handed back, and another store": {"its status says that no run has begun anything", func(s *purchaseHarness) {
			s.draining = true // so that the Turn is handed back immediately
			s.mu.Lock()
			s.start(s.t.Context(), stored(s.t, s.Executor))
			s.mu.Unlock()
			s.handBacks.Wait()
			got := stored(s.t, s.Executor)
			if n := got.Status.Executor.JournalEntries; got.BoundTo() != "" || n == nil || *n != 0 {
				s.t.Fatalf("executor %+v, want the Turn handed back with no entries", got.Status.Executor)
			}
			s.lose()
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newPurchaseHarness(t)
			s.bind(true)
			tc.before(s)
			s.bind(true)
			got := s.run()
			if got.StateReason() != v1alpha1.TurnReasonCompleted || s.calls != 1 ||
				meta.FindStatusCondition(got.Status.Conditions, v1alpha1.ConditionJournalLost) != nil {
				t.Errorf("%s after %d calls, want it completed, with one call and no lost journal: %s",
					got.StateReason(), s.calls, tc.reason)
			}
		})
	}
}

func TestEndAfterJournalLossReportsTheLoss(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		change func(*run)
	}{
		v1alpha1.TurnReasonCancelled:        {"it was cancelled", func(r *run) { r.handleDesiredState(v1alpha1.DesiredStateCancelled) }},
		v1alpha1.TurnReasonDeadlineExceeded: {"its time is over", func(r *run) { r.turn.Status.StartTime.Time = now.AddDate(0, 0, -2) }},
	} {
		t.Run(name, func(t *testing.T) {
			s := killedOnce(t, true, rerun)
			s.lose()
			s.bind(true)
			s.mustBeLost(s.run(tc.change), name, v1alpha1.TurnReasonOtherStore)
		})
	}
}

// TestSideEffectIsRecordedBeforeTheCall checks that the status reports side effects before the first call that has
// one, although the binding expected none.
func TestSideEffectIsRecordedBeforeTheCall(t *testing.T) {
	for effect, want := range map[tool.Effect]bool{tool.Destructive: true, tool.Idempotent: true, tool.ReadOnly: false} {
		t.Run(string(effect), func(t *testing.T) {
			s := newPurchaseHarness(t)
			s.effect = effect
			var known bool
			s.during = func(*run) { known = stored(t, s.Executor).Status.Executor.SideEffects }
			s.bind(false)
			s.writes = 0
			s.run()
			writes := 1
			if want {
				writes = 2
			}
			if known != want || s.writes != writes {
				t.Errorf("sideEffects is %t within the call, and there were %d writes; want %t and %d", known, s.writes, want, writes)
			}
		})
	}
}

func TestExpectedSideEffectsNeedNoExtraWrite(t *testing.T) {
	s := newPurchaseHarness(t)
	s.bind(true)
	s.writes = 0
	if got := s.run(); got.StateReason() != v1alpha1.TurnReasonCompleted || s.writes != 1 {
		t.Errorf("%s after %d writes, want it completed with one", got.StateReason(), s.writes)
	}
}

// TestStatusSurvivesJournalLoss covers calls that had ended, and calls that wait for approval.
func TestStatusSurvivesJournalLoss(t *testing.T) {
	s := killedOnce(t, true)
	s.lose()
	s.bind(true)
	known := stored(t, s.Executor)
	call := func(id string, o v1alpha1.ToolCallOutcome) v1alpha1.ToolCallRecord {
		return v1alpha1.ToolCallRecord{CallID: id, Name: "buy", Step: 1, Outcome: o}
	}
	known.Status.Steps = &v1alpha1.StepCounts{Count: 3, ModelRequests: 3, ToolCalls: 3, UnknownOutcomes: 1}
	known.Status.Usage = &v1alpha1.Usage{InputTokens: 30, TotalTokens: 30}
	known.Status.ToolCalls = []v1alpha1.ToolCallRecord{
		call("a", v1alpha1.ToolCallSucceeded), call("b", v1alpha1.ToolCallPending), call("c", v1alpha1.ToolCallPending),
	}
	known.Status.PendingApprovals = []v1alpha1.PendingApproval{{Step: 1, CallID: "c", Name: "buy"}}
	known.Status.AwaitedTurns = []string{"one-child"}
	if err := s.Client.Status().Update(t.Context(), known); err != nil {
		t.Fatal(err)
	}
	got := s.run()
	var outcomes []string
	for _, c := range got.Status.ToolCalls {
		outcomes = append(outcomes, c.CallID+" "+string(c.Outcome))
	}
	if all := strings.Join(outcomes, ", "); all != "a Succeeded, b Unknown, c Unknown" {
		t.Errorf("calls %s, want all calls without a result unknown, even the call that waits: it may have been approved", all)
	}
	if got.Status.Steps.Count != 3 || got.Status.Steps.UnknownOutcomes != 3 || got.Status.Usage.InputTokens != 30 ||
		len(got.Status.PendingApprovals) > 0 {
		t.Errorf("status %+v, want the known data, two more unknown outcomes, and no waiting call", got.Status)
	}
	main := meta.FindStatusCondition(got.Status.Conditions, v1alpha1.ConditionSucceeded)
	for _, want := range []string{"can no longer be approved; one that was approved before may have been made", "one-child"} {
		if !strings.Contains(main.Message, want) {
			t.Errorf("message %q, want %q in it", main.Message, want)
		}
	}
}
