package executor

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
)

// TestObserveOfARun: what a run of epoch 2 does when its Turn changes.
func TestObserveOfARun(t *testing.T) {
	deleted := func(t *v1alpha1.Turn) { t.DeletionTimestamp = &metav1.Time{Time: now} }
	for name, tc := range map[string]struct {
		turn *v1alpha1.Turn
		// wantCause ends the run, wantStop stops it at the next safe point.
		wantCause error
		wantStop  bool
	}{
		"nothing that matters":               {turn: turnWith(boundTo(me, 2))},
		"an event from before":               {turn: turnWith(boundTo(me, 1))},
		"an event from before, of another":   {turn: turnWith(boundTo("other", 1))},
		"an unbinding from before":           {turn: turnWith(boundTo("", 1))},
		"a suspension":                       {turn: turnWith(boundTo(me, 2), desires(v1alpha1.DesiredStateSuspended)), wantStop: true},
		"a cancellation":                     {turn: turnWith(boundTo(me, 2), desires(v1alpha1.DesiredStateCancelled)), wantCause: turn.ErrCancelled},
		"a deletion behind a finalizer":      {turn: turnWith(boundTo(me, 2), deleted), wantCause: errDeleted},
		"a new binding to this executor":     {turn: turnWith(boundTo(me, 3)), wantCause: errSuperseded},
		"a binding to another executor":      {turn: turnWith(boundTo("other", 3)), wantCause: errSuperseded},
		"an unbinding":                       {turn: turnWith(boundTo("", 2)), wantCause: errSuperseded},
		"its own last write, which ended it": {turn: turnWith(boundTo(me, 2), finished), wantCause: errSuperseded},
	} {
		t.Run(name, func(t *testing.T) {
			e, _ := newExecutor(t, interceptor.Funcs{})
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			r := &run{executor: e, turn: turnWith(boundTo(me, 2)), epoch: 2, cancel: cancel, interrupt: make(chan struct{})}
			e.runs["uid-one"] = r
			e.observe(t.Context(), tc.turn)
			if got := context.Cause(ctx); !errors.Is(got, tc.wantCause) || (tc.wantCause == nil) != (got == nil) {
				t.Errorf("the run ended with %v, want %v", got, tc.wantCause)
			}
			stopped := false
			select {
			case <-r.interrupt:
				stopped = true
			default:
			}
			if stopped != tc.wantStop {
				t.Errorf("asked to stop soon: %t, want %t", stopped, tc.wantStop)
			}
			if len(e.runs) != 1 {
				t.Error("no other run may start beside it")
			}
		})
	}
}

// TestObserveStartsRuns: which Turns without a run get one.
func TestObserveStartsRuns(t *testing.T) {
	for name, tc := range map[string]struct {
		turn     *v1alpha1.Turn
		released int64
		draining bool
		want     bool
	}{
		"a Turn that is bound here":                 {turn: turnWith(), want: true},
		"a Turn that is bound here again":           {turn: turnWith(boundTo(me, 2)), released: 1, want: true},
		"an event from before it was given back":    {turn: turnWith(boundTo(me, 1)), released: 1},
		"a Turn of another executor":                {turn: turnWith(boundTo("other", 1))},
		"a Turn that is unbound":                    {turn: turnWith(boundTo("", 1))},
		"a Turn that has ended":                     {turn: turnWith(finished)},
		"a Turn that is being deleted":              {turn: turnWith(func(t *v1alpha1.Turn) { t.DeletionTimestamp = &metav1.Time{Time: now} })},
		"any Turn while the executor is stopping":   {turn: turnWith(), draining: true},
		"a Turn that was cancelled in the meantime": {turn: turnWith(desires(v1alpha1.DesiredStateCancelled)), want: true},
	} {
		t.Run(name, func(t *testing.T) {
			e, store := newExecutor(t, interceptor.Funcs{}, append(surroundings(), turnWith())...)
			tc.turn.ResourceVersion = stored(t, e).ResourceVersion
			e.draining = tc.draining
			if tc.released > 0 {
				e.released["uid-one"] = tc.released
			}
			e.observe(t.Context(), tc.turn)
			e.all.Wait()
			if got := len(store.entries) > 0 || stored(t, e).BoundTo() == ""; got != tc.want {
				t.Errorf("a run was started: %t, want %t", got, tc.want)
			}
		})
	}
}

func TestRunThatCannotBeginGivesTheTurnBackOnce(t *testing.T) {
	e, store := newExecutor(t, interceptor.Funcs{}, turnWith()) // without its agent
	read := stored(t, e)
	e.observe(t.Context(), read)
	e.all.Wait()
	got := stored(t, e)
	if got.BoundTo() != "" || got.StateReason() != v1alpha1.TurnReasonPending {
		t.Fatalf("the Turn must be handed back: %+v", got.Status)
	}
	e.observe(t.Context(), read) // the event of its binding, late
	if len(e.runs) != 0 {
		t.Error("an event from before must not start it again")
	}
	e.gone(t.Context(), got)
	e.all.Wait()
	if len(e.released) != 0 {
		t.Error("a Turn that is gone must leave nothing behind")
	}
	if diff := cmp.Diff([]string{"uid-one"}, store.deleted); diff != "" {
		t.Errorf("its journal must be forgotten (-want +got):\n%s", diff)
	}
}

// TestRunGoesOnAfterAnAppendOfUnknownOutcome: an append may have been done although it failed; the next one then finds
// the journal longer than it should be.
func TestRunGoesOnAfterAnAppendOfUnknownOutcome(t *testing.T) {
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
		"leaves a Turn that is bound elsewhere as it is": {
			&v1alpha1.ExecutorBinding{Name: "other", Epoch: 5}, &v1alpha1.ExecutorBinding{Name: "other", Epoch: 5},
		},
		"gives a Turn back that is bound here still, to get a newer epoch": {
			&v1alpha1.ExecutorBinding{Name: me, Epoch: 1}, &v1alpha1.ExecutorBinding{Epoch: 1},
		},
	} {
		t.Run(name, func(t *testing.T) {
			e, store := newExecutor(t, interceptor.Funcs{}, append(surroundings(), turnWith(func(t *v1alpha1.Turn) { t.Status.Executor = tc.stored }))...)
			store.entries = []journal.Entry{{Seq: 1, Epoch: 5, Kind: "note", Payload: []byte("{}")}}
			read := turnWith()
			if tc.stored.Name == me {
				read.ResourceVersion = stored(t, e).ResourceVersion
			} else {
				read.ResourceVersion = "1" // from before
			}
			e.observe(t.Context(), read)
			e.all.Wait()
			if diff := cmp.Diff(tc.want, stored(t, e).Status.Executor); diff != "" {
				t.Errorf("the binding is another (-want +got):\n%s", diff)
			}
			if len(store.entries) != 1 {
				t.Error("a fenced run must not write to the journal")
			}
		})
	}
}

func TestAdoptClaimsWhatWasBoundHere(t *testing.T) {
	other := turnWith(boundTo("other", 3), func(t *v1alpha1.Turn) { t.Name, t.UID = "two", "uid-two" })
	// The API server is away at first.
	e, store := newExecutor(t, failing(broken), append(surroundings(), turnWith(boundTo(me, 4)), other)...)
	e.SweepStore = true
	if err := e.adopt(t.Context(), t.Context()); err != nil {
		t.Fatal(err)
	}
	e.all.Wait()
	got := stored(t, e)
	if got.Epoch() != 5 || got.StateReason() != v1alpha1.TurnReasonPrepared {
		t.Errorf("the Turn must be run with the next epoch: %+v", got.Status)
	}
	var untouched v1alpha1.Turn
	if err := e.Client.Get(t.Context(), client.ObjectKeyFromObject(other), &untouched); err != nil || untouched.Epoch() != 3 {
		t.Errorf("the Turn of another executor must be left alone: %v, %v", untouched.Status.Executor, err)
	}
	if diff := cmp.Diff([]string{"uid-gone"}, store.deleted); diff != "" {
		t.Errorf("the journals of Turns that are gone must be forgotten, no others (-want +got):\n%s", diff)
	}
}

func TestAdoptEndsWithTheProcess(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	e, _ := newExecutor(t, interceptor.Funcs{
		SubResourceUpdate: func(context.Context, client.Client, string, client.Object, ...client.SubResourceUpdateOption) error {
			cancel()
			return broken
		},
	}, turnWith())
	if err := e.adopt(ctx, t.Context()); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the end of the context", err)
	}
}

func TestATurnWhoseJournalFailsEndsAtItsDeadline(t *testing.T) {
	late := metav1.NewMicroTime(now.Add(-time.Hour))
	e, store := newExecutor(t, interceptor.Funcs{}, append(surroundings(), turnWith(func(t *v1alpha1.Turn) { t.Status.StartTime = &late }))...)
	store.loadError = errors.New("disk I/O error")
	e.observe(t.Context(), stored(t, e))
	e.all.Wait()
	got := stored(t, e)
	if got.StateReason() != v1alpha1.TurnReasonDeadlineExceeded {
		t.Fatalf("the Turn is %q, want DeadlineExceeded: it is bounded even where its record cannot be written", got.StateReason())
	}
	if want := "the turn reached its time limit of 1m0s and could not go on: failed to load the journal of turn \"uid-one\": disk I/O error"; got.Status.Conditions[0].Message != want {
		t.Errorf("message %q, want %q", got.Status.Conditions[0].Message, want)
	}
}
