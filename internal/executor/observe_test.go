package executor

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
)

// TestObserveOfARun checks the effect of changes of a Turn on its run of epoch 2.
func TestObserveOfARun(t *testing.T) {
	deleted := func(t *v1alpha1.Turn) { t.DeletionTimestamp = &metav1.Time{Time: now} }
	version := func(v string) func(*v1alpha1.Turn) { return func(t *v1alpha1.Turn) { t.ResourceVersion = v } }
	newer := version("8")
	for name, tc := range map[string]struct {
		turn *v1alpha1.Turn
		// wantCause is the cause that ends the run, and wantStop reports whether it stops at the next safe point.
		wantCause  error
		wantStop   bool
		wantCancel bool
		// wantNext reports whether the Turn gets a run after this one.
		wantNext bool
	}{
		"an irrelevant change":             {turn: turnWith(boundTo(me, 2))},
		"an old event":                     {turn: turnWith(boundTo(me, 1))},
		"an old event of another executor": {turn: turnWith(boundTo("other", 1))},
		"an old unbinding":                 {turn: turnWith(boundTo("", 1))},
		"an edit that lowers the epoch":    {turn: turnWith(boundTo(me, 1), newer), wantCause: errSuperseded, wantNext: true},
		"an edit that removes the binding": {turn: turnWith(boundTo("", 0), newer), wantCause: errSuperseded},
		"a suspension":                     {turn: turnWith(boundTo(me, 2), desires(v1alpha1.DesiredStateSuspended)), wantStop: true},
		"a cancellation":                   {turn: turnWith(boundTo(me, 2), desires(v1alpha1.DesiredStateCancelled)), wantCancel: true},
		"a deletion with a finalizer":      {turn: turnWith(boundTo(me, 2), deleted), wantCancel: true},
		"a deletion after a new binding":   {turn: turnWith(boundTo(me, 3), deleted), wantCause: errSuperseded, wantNext: true},
		"a new binding to this executor":   {turn: turnWith(boundTo(me, 3)), wantCause: errSuperseded, wantNext: true},
		"a binding to another executor":    {turn: turnWith(boundTo("other", 3)), wantCause: errSuperseded},
		"an unbinding":                     {turn: turnWith(boundTo("", 2)), wantCause: errSuperseded},
		"the run's own last write":         {turn: turnWith(boundTo(me, 2), finished), wantCause: errSuperseded},
	} {
		t.Run(name, func(t *testing.T) {
			e, _ := newExecutor(t, interceptor.Funcs{})
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			r := &run{
				executor: e, turn: turnWith(boundTo(me, 2)), version: "7", epoch: 2, abandon: cancel,
				cancellation: newCancellation(t.Context()), interrupt: make(chan struct{}),
			}
			e.runs["uid-one"] = r
			e.observe(t.Context(), tc.turn)
			if got := context.Cause(ctx); !errors.Is(got, tc.wantCause) || (tc.wantCause == nil) != (got == nil) {
				t.Errorf("the run ended with %v, want %v", got, tc.wantCause)
			}
			if got := isClosed(r.interrupt); got != tc.wantStop {
				t.Errorf("asked to stop soon: %t, want %t", got, tc.wantStop)
			}
			if got := r.cancelled.Err() != nil; got != tc.wantCancel {
				t.Errorf("cancelled: %t, want %t", got, tc.wantCancel)
			}
			if got := r.next != nil; got != tc.wantNext {
				t.Errorf("another run follows: %t, want %t", got, tc.wantNext)
			}
			if len(e.runs) != 1 {
				t.Error("no other run may start at the same time")
			}
		})
	}
}

// TestObserveStartsRuns checks which Turns without a run get one.
func TestObserveStartsRuns(t *testing.T) {
	for name, tc := range map[string]struct {
		turn *v1alpha1.Turn
		// doneEpoch is the epoch of an earlier binding of the Turn that needs no run any more, or 0 if there is none.
		doneEpoch int64
		want      bool
	}{
		"a Turn that is bound here":               {turn: turnWith(), want: true},
		"a Turn that is bound here again":         {turn: turnWith(boundTo(me, 2)), doneEpoch: 1, want: true},
		"an event from before it was handed back": {turn: turnWith(boundTo(me, 1)), doneEpoch: 1},
		"a Turn whose epoch a person has lowered": {turn: turnWith(boundTo(me, 1)), doneEpoch: 2, want: true},
		"a Turn of another executor":              {turn: turnWith(boundTo("other", 1))},
		"a Turn that is unbound":                  {turn: turnWith(boundTo("", 1))},
		"a Turn that has ended":                   {turn: turnWith(finished)},
		"a Turn that only a finalizer keeps": {
			turn: turnWith(func(t *v1alpha1.Turn) { t.DeletionTimestamp = &metav1.Time{Time: now} }), want: true,
		},
		"a Turn that was cancelled in the meantime": {turn: turnWith(desires(v1alpha1.DesiredStateCancelled)), want: true},
	} {
		t.Run(name, func(t *testing.T) {
			e, store := newExecutor(t, interceptor.Funcs{}, append(surroundings(), turnWith())...)
			tc.turn.ResourceVersion = stored(t, e).ResourceVersion
			if tc.doneEpoch > 0 {
				e.done["uid-one"] = endedRun{tc.doneEpoch, "1"}
			}
			e.observe(t.Context(), tc.turn)
			e.all.Wait()
			if got := len(store.entries(t)) > 0 || stored(t, e).BoundTo() == ""; got != tc.want {
				t.Errorf("a run was started: %t, want %t", got, tc.want)
			}
		})
	}
}

// TestRecreatedTurnGetsItsOwnRun checks that a Turn that was deleted and created again gets its own run. After
// a gap in the watch, a list shows the new Turn as a change.
func TestRecreatedTurnGetsItsOwnRun(t *testing.T) {
	second := turnWith(func(t *v1alpha1.Turn) { t.UID = "uid-two" })
	for name, tc := range map[string]struct {
		reason string
		after  *v1alpha1.Turn
		cause  error
	}{
		"recreated": {"the run of the deleted Turn ends, and the new Turn gets its own", second, errSuperseded},
		"changed":   {"the run of a changed Turn continues", turnWith(), nil},
	} {
		t.Run(name, func(t *testing.T) {
			e, _ := newExecutor(t, interceptor.Funcs{}, append(surroundings(), tc.after)...)
			before := turnWith()
			ctx, abandon := context.WithCancelCause(t.Context())
			defer abandon(nil)
			first := &run{
				executor: e, turn: before, epoch: 1, abandon: abandon,
				cancellation: newCancellation(t.Context()), interrupt: make(chan struct{}),
			}
			e.runs["uid-one"] = first
			newWatch(t.Context(), e).OnUpdate(before, stored(t, e))
			e.all.Wait()
			if cause := context.Cause(ctx); !errors.Is(cause, tc.cause) || first.gone != (tc.cause != nil) {
				t.Errorf("%s: its run was abandoned for %v, want %v", tc.reason, cause, tc.cause)
			}
			if ran := stored(t, e).StateReason() == v1alpha1.TurnReasonPrepared; ran != (tc.cause != nil) {
				t.Errorf("%s: another run began: %t, want %t", tc.reason, ran, tc.cause != nil)
			}
		})
	}
}

func TestRunThatCannotBeginHandsTheTurnBackOnce(t *testing.T) {
	e, _ := newExecutor(t, interceptor.Funcs{}, turnWith()) // without its Agent
	read := stored(t, e)
	e.observe(t.Context(), read)
	e.all.Wait()
	got := stored(t, e)
	if got.BoundTo() != "" || got.StateReason() != v1alpha1.TurnReasonPending {
		t.Fatalf("the Turn must be handed back: %+v", got.Status)
	}
	e.observe(t.Context(), read) // the event of its binding, late
	if len(e.runs) != 0 {
		t.Error("an old event must not start the Turn again")
	}
	e.observe(t.Context(), got)
	if len(e.done) != 0 {
		t.Error("the executor has not forgotten the epoch, although the watch has shown the change")
	}
}

// TestFinishedRunIsForgotten checks that the executor forgets a finished Turn, and that, while the watch is behind, an
// older event does not start another run.
func TestFinishedRunIsForgotten(t *testing.T) {
	for name, early := range map[string]bool{"the watch is behind the run": false, "the watch shows the end before the run is over": true} {
		t.Run(name, func(t *testing.T) {
			var onWrite func()
			funcs := interceptor.Funcs{SubResourceUpdate: func(ctx context.Context, c client.Client, sub string,
				o client.Object, opts ...client.SubResourceUpdateOption,
			) error {
				err := c.SubResource(sub).Update(ctx, o, opts...)
				onWrite()
				return err
			}}
			e, store := newExecutor(t, funcs, append(surroundings(), turnWith())...)
			read := stored(t, e)
			onWrite = func() {
				if early {
					e.onGone(read)
				}
			}
			e.observe(t.Context(), read)
			e.all.Wait()
			if got := stored(t, e); got.StateReason() != v1alpha1.TurnReasonPrepared {
				t.Fatalf("the end must be written: %+v", got.Status)
			}
			written := len(store.entries(t))
			if !early {
				e.observe(t.Context(), read) // as if a client had changed a label before the end
				e.all.Wait()
				e.onGone(read)
			}
			if n := len(store.entries(t)); n != written {
				t.Errorf("%d entries more, want none: the Turn was run again", n-written)
			}
			if len(e.runs)+len(e.done) > 0 {
				t.Errorf("%d runs and %d entries in done are left, want none", len(e.runs), len(e.done))
			}
		})
	}
}

// TestTurnThatIsBoundAgainWhileItsRunEndsRunsAgain checks that a new binding starts a new run, even if the watch
// reports the binding only once, while the earlier run is ending.
func TestTurnThatIsBoundAgainWhileItsRunEndsRunsAgain(t *testing.T) {
	for name, tc := range map[string]struct {
		then func(*Executor, *v1alpha1.Turn)
		want bool
	}{
		"and stays bound":     {func(*Executor, *v1alpha1.Turn) {}, true},
		"and is then deleted": {func(e *Executor, t *v1alpha1.Turn) { e.onGone(t) }, false},
		"and is then bound elsewhere": {func(e *Executor,
			_ *v1alpha1.Turn,
		) {
			e.observe(context.Background(), turnWith(boundTo("other", 3)))
		}, false},
		"and the executor then stops":    {func(e *Executor, _ *v1alpha1.Turn) { e.draining = true }, false},
		"and the watch reports it twice": {func(e *Executor, t *v1alpha1.Turn) { e.observe(context.Background(), t) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			e, store := newExecutor(t, interceptor.Funcs{}, append(surroundings(), turnWith(boundTo(me, 2)))...)
			ending, again := &run{executor: e, turn: turnWith(), epoch: 1, abandon: func(error) {}}, stored(t, e)
			e.runs["uid-one"] = ending
			e.observe(t.Context(), again)
			tc.then(e, again)
			e.onEnd(t.Context(), ending)
			e.all.Wait()
			e.handBacks.Wait()
			if got := len(store.entries(t)) > 0; got != tc.want {
				t.Errorf("another run was made: %t, want %t", got, tc.want)
			}
		})
	}
}

// TestStoppingExecutorHandsBackNewTurns checks that Turns are handed back if the controller binds them before
// it learns that the executor stops.
func TestStoppingExecutorHandsBackNewTurns(t *testing.T) {
	e, store := newExecutor(t, interceptor.Funcs{}, append(surroundings(), turnWith())...)
	e.draining = true
	read := stored(t, e)
	e.observe(t.Context(), read)
	e.observe(t.Context(), read)
	e.handBacks.Wait()
	if got := stored(t, e); got.BoundTo() != "" || got.StateReason() != v1alpha1.TurnReasonPending || len(store.entries(t)) > 0 {
		t.Errorf("the status is %+v, want the Turn handed back immediately, and not begun", got.Status)
	}
}

// TestRunContinuesAfterAnAppendOfUnknownOutcome checks that a run continues if an append succeeded although it
// returned an error. The next append then finds the journal longer than expected.
func TestRunContinuesAfterAnAppendOfUnknownOutcome(t *testing.T) {
	for name, failure := range map[string]error{
		"a failure": errors.New("disk I/O error"), "a journal that grew": journal.ErrSequence,
	} {
		t.Run(name, func(t *testing.T) {
			e, store := newExecutor(t, interceptor.Funcs{}, append(surroundings(), turnWith())...)
			store.appendErrors = []error{failure, failure}
			e.observe(t.Context(), stored(t, e))
			e.all.Wait()
			if got := stored(t, e); got.StateReason() != v1alpha1.TurnReasonPrepared {
				t.Errorf("the Turn must end: %+v", got.Status)
			}
		})
	}
}

func TestFencedRun(t *testing.T) {
	for name, tc := range map[string]struct {
		stored, want *v1alpha1.ExecutorBinding
	}{
		"does not change a Turn that is bound elsewhere": {
			&v1alpha1.ExecutorBinding{Name: "other", Epoch: 5}, &v1alpha1.ExecutorBinding{Name: "other", Epoch: 5},
		},
		"hands back a Turn that is still bound here, to get a newer epoch": {
			&v1alpha1.ExecutorBinding{Name: me, Epoch: 1}, &v1alpha1.ExecutorBinding{Epoch: 1},
		},
	} {
		t.Run(name, func(t *testing.T) {
			e, store := newExecutor(t, interceptor.Funcs{},
				append(surroundings(), turnWith(func(t *v1alpha1.Turn) { t.Status.Executor = tc.stored }))...)
			if err := store.Append(t.Context(), "uid-one",
				journal.Entry{Seq: 1, Epoch: 5, Kind: "note", Version: 1, Payload: []byte("{}")}); err != nil {
				t.Fatal(err)
			}
			read := turnWith()
			if tc.stored.Name == me {
				read.ResourceVersion = stored(t, e).ResourceVersion
			} else {
				read.ResourceVersion = "1" // an older version
			}
			e.observe(t.Context(), read)
			e.all.Wait()
			if diff := cmp.Diff(tc.want, stored(t, e).Status.Executor); diff != "" {
				t.Errorf("the binding is another (-want +got):\n%s", diff)
			}
			if len(store.entries(t)) != 1 {
				t.Error("a fenced run must not write to the journal")
			}
		})
	}
}

// TestTurnWaitsForItsStore checks that nothing ends a Turn without its journal, which holds the work that was paid
// for.
func TestTurnWaitsForItsStore(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*v1alpha1.Turn)
		reason string
	}{
		"beyond its deadline": {
			func(t *v1alpha1.Turn) { t.Status.StartTime = new(metav1.NewMicroTime(now.Add(-time.Hour))) },
			v1alpha1.TurnReasonDeadlineExceeded,
		},
		"after its cancellation": {desires(v1alpha1.DesiredStateCancelled), v1alpha1.TurnReasonCancelled},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e, store := newExecutor(t, interceptor.Funcs{}, append(surroundings(), turnWith(tc.change, func(t *v1alpha1.Turn) {
					t.Spec.Execution = v1alpha1.ExecutionRun
				}))...)
				store.readError = errors.New("disk I/O error")
				e.observe(t.Context(), stored(t, e))
				time.Sleep(24 * time.Hour) // on the fake clock
				if got := stored(t, e); got.IsFinished() || got.BoundTo() != me {
					t.Errorf("after a day without its store the Turn is %+v, want it where it was", got.Status)
				}
				store.mu.Lock()
				store.readError = nil
				store.mu.Unlock()
				e.all.Wait()
				if got := stored(t, e); got.StateReason() != tc.reason {
					t.Errorf("the Turn is %s, want %s when the store is back", got.StateReason(), tc.reason)
				}
			})
		})
	}
}

func TestJournalOfANewerVersionIsNotTouched(t *testing.T) {
	e, store := newExecutor(t, interceptor.Funcs{}, append(surroundings(), turnWith())...)
	newer := journal.Entry{Seq: 1, Epoch: 1, Kind: journal.Prepared, Version: journal.PayloadVersion + 1, Payload: []byte("{}")}
	if err := store.Append(t.Context(), "uid-one", newer); err != nil {
		t.Fatal(err)
	}
	if got := runTurn(t, e); got.IsFinished() || got.BoundTo() != "" {
		t.Errorf("the Turn must be handed back: %+v", got.Status)
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestStoppingIsCalled(t *testing.T) {
	e, _ := newExecutor(t, interceptor.Funcs{}, turnWith())
	called := 0
	e.Stopping, e.Grace = func() { called++ }, time.Hour
	e.drain(func(error) { t.Error("runs were abandoned although there are none") })
	if called != 1 || !e.draining {
		t.Errorf("called %d times, draining %t; want once, true", called, e.draining)
	}
}
