package executor

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cenkalti/backoff/v5"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	webhookerrors "k8s.io/apiserver/pkg/admission/plugin/webhook/errors"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/session"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
)

// storageLimit is the size limit of the API server of these tests, in bytes.
const storageLimit = 100_000

// storing refuses objects that are too large for it, as etcd does.
var storing = interceptor.Funcs{SubResourceUpdate: func(
	ctx context.Context, c client.Client, sub string, o client.Object, opts ...client.SubResourceUpdateOption,
) error {
	if data, err := json.Marshal(o); err != nil || len(data) > storageLimit {
		return apierrors.NewInternalError(errors.Join(errors.New("etcdserver: request is too large"), err))
	}
	return c.SubResource(sub).Update(ctx, o, opts...)
}}

// padding leaves space for about the given number of bytes in the object.
func padding(left int) string { return strings.Repeat("x", storageLimit-left) }

// setPadding changes the metadata of the Turn as a client does.
func setPadding(t *testing.T, e *Executor, text string) *v1alpha1.Turn {
	t.Helper()
	one := stored(t, e)
	one.Annotations = map[string]string{"example.com/padding": text}
	if err := e.Client.Update(t.Context(), one); err != nil {
		t.Fatal(err)
	}
	return stored(t, e)
}

// TestStuckTurn checks that a Turn whose every status is too large for etcd does not take a slot of its executor, and
// is handed back when it has become smaller.
func TestStuckTurn(t *testing.T) {
	for name, tc := range map[string]struct {
		begin func(t *testing.T, e *Executor)
		// epoch is the epoch at the end, and complete reports whether the status then has the number of all entries.
		epoch    int64
		complete bool
	}{
		"its end is too large": {func(t *testing.T, e *Executor) {
			e.observe(t.Context(), setPadding(t, e, padding(500)))
		}, 1, true},
		"it changed while it ran": {func(t *testing.T, e *Executor) {
			before := stored(t, e)
			setPadding(t, e, padding(500))
			e.observe(t.Context(), before) // its write meets a conflict first
		}, 1, true},
		"it is left by an earlier process, which may still write": {func(t *testing.T, e *Executor) {
			var adoptions sync.WaitGroup
			e.adopt(t.Context(), setPadding(t, e, padding(500)), &adoptions)
			adoptions.Wait()
		}, 2, false},
	} {
		t.Run(name, func(t *testing.T) {
			e, _ := newExecutor(t, storing, append(surroundings(), turnWith())...)
			tc.begin(t, e)
			e.all.Wait()
			if got := stored(t, e); got.IsFinished() || e.stuckTurns() != 1 {
				t.Fatalf("ended: %t, %d stuck; want a Turn that is stuck", got.IsFinished(), e.stuckTurns())
			}
			const want = "Warning StatusRejected the turn has stopped, but the API server rejects its status"
			if got := <-e.Events.(*events.FakeRecorder).Events; !strings.HasPrefix(got, want) {
				t.Errorf("Event %q, want %q", got, want)
			}

			e.observe(t.Context(), stored(t, e)) // the watch shows the state that the executor knows
			e.handBacks.Wait()
			if stored(t, e).IsFinished() || e.stuckTurns() != 1 {
				t.Fatal("an event without a change must not help")
			}
			e.observe(t.Context(), setPadding(t, e, padding(400)))
			e.handBacks.Wait()
			if stored(t, e).BoundTo() != me || e.stuckTurns() != 1 {
				t.Fatal("a change that does not make it smaller must not help")
			}
			e.observe(t.Context(), setPadding(t, e, ""))
			e.handBacks.Wait()
			got := stored(t, e)
			e.observe(t.Context(), got)
			if got.StateReason() != v1alpha1.TurnReasonPending || got.BoundTo() != "" || e.stuckTurns() != 0 {
				t.Errorf("%s, %d stuck; want it handed back once there is space", got.StateReason(), e.stuckTurns())
			}
			if b := got.Status.Executor; b.Epoch != tc.epoch || b.JournalComplete != tc.complete ||
				tc.complete && (b.JournalEntries == nil || *b.JournalEntries == 0) {
				t.Errorf("binding %+v, want epoch %d, and all entries known: %t", b, tc.epoch, tc.complete)
			}
		})
	}
}

// TestStuckTurnThatIsGone checks that a Turn that was deleted is not counted any more.
func TestStuckTurnThatIsGone(t *testing.T) {
	e, _ := newExecutor(t, storing, append(surroundings(), turnWith())...)
	e.observe(t.Context(), setPadding(t, e, padding(500)))
	e.all.Wait()
	e.onGone(stored(t, e))
	if e.stuckTurns() != 0 {
		t.Error("a Turn that is gone must not count as stuck")
	}
}

// TestRejectedWait checks that a Turn ends if the API server rejects the status that says what it waits for.
func TestRejectedWait(t *testing.T) {
	e, _ := newExecutor(t, failing(refusal), turnWith())
	r := &run{executor: e, turn: stored(t, e), epoch: 1}
	r.progress.newest.Counts.Steps, r.progress.notes = 3, 1
	r.writeOutcome(t.Context(), nil, &loop.Parked{Turns: []string{"child"}})
	got := stored(t, e)
	if s := got.Status.Steps; s == nil || s.Count != 3 {
		t.Errorf("steps %+v, want those of the run", s)
	}
	if got.StateReason() != v1alpha1.TurnReasonModelFailed || !got.EndedWithoutExecutor() {
		t.Errorf("status %+v, want an end; the leader then ends the journal and charges the Session", got.Status)
	}
	if e.stuckTurns() != 0 {
		t.Error("a Turn that has ended is not stuck")
	}
}

// TestRejectedHandBack checks that a Turn that cannot be handed back does not end: another process may be able to write
// its status.
func TestRejectedHandBack(t *testing.T) {
	e, _ := newExecutor(t, failing(refusal), turnWith())
	r := &run{executor: e, turn: stored(t, e), epoch: 1}
	e.runs["uid-one"] = r
	r.handBack(t.Context())
	if got := stored(t, e); got.BoundTo() != me || e.stuckTurns() != 1 {
		t.Errorf("bound to %q, %d stuck; want a Turn that stays bound", got.BoundTo(), e.stuckTurns())
	}
}

// TestTurnThatIsGoneIsNotStuck checks that a rejection that arrives after the end of a Turn has no effect.
func TestTurnThatIsGoneIsNotStuck(t *testing.T) {
	for name, change := range map[string]func(e *Executor, r *run){
		"it was deleted":     func(e *Executor, r *run) { e.onGone(r.turn) },
		"it is bound again":  func(e *Executor, _ *run) { e.runs["uid-one"] = &run{executor: e} },
		"it was handed back": func(e *Executor, _ *run) { delete(e.runs, "uid-one") },
		"it has a later run": func(e *Executor, _ *run) { delete(e.runs, "uid-one"); e.done["uid-one"] = endedRun{epoch: 2} },
	} {
		t.Run(name, func(t *testing.T) {
			e, _ := newExecutor(t, interceptor.Funcs{}, turnWith())
			r := &run{executor: e, turn: stored(t, e), epoch: 1, abandon: func(error) {}}
			e.runs["uid-one"] = r
			change(e, r)
			r.markStuck(refusal)
			if e.stuckTurns() != 0 {
				t.Error("it counts as stuck")
			}
		})
	}
}

// TestLeaseOffersSlotsOfStuckTurns checks that the Lease offers the slots of stuck Turns to other Turns.
func TestLeaseOffersSlotsOfStuckTurns(t *testing.T) {
	e, _ := newExecutor(t, interceptor.Funcs{}, turnWith())
	e.done["uid-one"] = endedRun{epoch: 1}
	e.markUnclaimed(stored(t, e), refusal)
	h, l := &heldLease{executor: e}, &coordinationv1.Lease{}
	h.acceptsTurns.Store(true)
	h.describe(l)
	if capacity, stuck := l.Annotations[CapacityAnnotation], l.Annotations[StuckAnnotation]; capacity != "10" || stuck != "1" {
		t.Errorf("the Lease has a capacity of %s and %s stuck Turns, want 10 and 1", capacity, stuck)
	}
	h.acceptsTurns.Store(false)
	if h.describe(l); l.Annotations[StuckAnnotation] != "" {
		t.Error("an executor that stops offers no slots")
	}
}

// denial is the error of an API server whose admission denies a status.
var denial = webhookerrors.ToStatusErr("check.example", &metav1.Status{Code: 403, Reason: metav1.StatusReasonForbidden, Message: "no"})

// denyingFor denies each status for a time since the beginning of a test.
func denyingFor(d time.Duration) interceptor.Funcs {
	begin := time.Now()
	return interceptor.Funcs{SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object,
		opts ...client.SubResourceUpdateOption,
	) error {
		if time.Since(begin) < d {
			return denial
		}
		return c.SubResource(sub).Update(ctx, o, opts...)
	}}
}

// TestDeniedStatus checks that a status that admission denies is written if the denial passes. Otherwise the Turn ends
// with its facts, and is stuck if its end is denied, too.
func TestDeniedStatus(t *testing.T) {
	const rejected = `its journal has the whole record: failed to write the status of turn "one": ` +
		`admission webhook "check.example" denied the request: no`
	for name, tc := range map[string]struct {
		denied  time.Duration
		reason  string
		message string
		stuck   int
	}{
		"its result, for some seconds": {denialPatience / 2, v1alpha1.TurnReasonPrepared, "", 0},
		"its result":                   {denialPatience * 3 / 2, v1alpha1.TurnReasonModelFailed, rejected, 0},
		"its result and end":           {time.Hour, v1alpha1.TurnReasonRunning, "", 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e, _ := newExecutor(t, denyingFor(tc.denied), append(surroundings(), turnWith())...)
				e.Now = time.Now
				e.observe(t.Context(), stored(t, e))
				e.all.Wait()
				got := stored(t, e)
				if got.StateReason() != tc.reason || e.stuckTurns() != tc.stuck {
					t.Fatalf("the Turn is %s, %d stuck; want %s and %d", got.StateReason(), e.stuckTurns(), tc.reason, tc.stuck)
				}
				if m := got.Status.Conditions[0].Message; !strings.Contains(m, tc.message) {
					t.Errorf("the message is %q, want %q in it", m, tc.message)
				}
			})
		})
	}
}

// TestDenialsEnd checks when the repetition of a write ends.
func TestDenialsEnd(t *testing.T) {
	at := now
	d := denials{now: func() time.Time { return at }}
	for i, step := range []struct {
		after time.Duration
		err   error
		final bool
	}{
		{0, refusal, true},
		{0, denial, false},
		{denialPatience - 1, denial, false},
		{1, broken, false}, // the denials are not in a row any more
		{0, denial, false},
		{denialPatience, denial, true},
		{0, nil, false},
	} {
		at = at.Add(step.after)
		got := d.judge(step.err)
		if _, final := errors.AsType[*backoff.PermanentError](got); final != step.final || !errors.Is(got, step.err) {
			t.Errorf("attempt %d: %v, want %v, final: %t", i, got, step.err, step.final)
		}
	}
}

// TestDeniedClaim checks that a Turn of an earlier process is claimed as soon as admission no longer denies that.
func TestDeniedClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, _ := newExecutor(t, denyingFor(denialPatience/2), turnWith())
		e.Now = time.Now
		var adoptions sync.WaitGroup
		e.adopt(t.Context(), stored(t, e), &adoptions)
		adoptions.Wait()
		e.all.Wait()
		if got := stored(t, e); got.Epoch() != 2 || e.stuckTurns() != 0 {
			t.Errorf("the Turn has epoch %d, %d stuck; want it claimed", got.Epoch(), e.stuckTurns())
		}
	})
}

// TestRejectedLossOfHistory checks that a Turn of a Session continues after a loss if the API server rejects the status
// of the Session, but repeats a denied status first. If the Turn must wait, the run tries again: the controller does
// not know of the loss then, and would bind the Turn.
func TestRejectedLossOfHistory(t *testing.T) {
	const goesOn, waits = v1alpha1.OnHistoryLossContinue, v1alpha1.OnHistoryLossWait
	for name, tc := range map[string]struct {
		policy v1alpha1.OnHistoryLoss
		funcs  func() interceptor.Funcs
		// duration is how long the Turn waits at least. again is true if the run must be tried again.
		duration time.Duration
		again    bool
		events   int
	}{
		"denied for some seconds": {
			goesOn, func() interceptor.Funcs { return denyingFor(denialPatience / 2) }, denialPatience / 2, false, 1,
		},
		"denied for a long time": {goesOn, func() interceptor.Funcs { return denyingFor(time.Hour) }, denialPatience, false, 0},
		"cannot be stored":       {goesOn, func() interceptor.Funcs { return failing(refusal) }, 0, false, 0},
		"conflict":               {goesOn, func() interceptor.Funcs { return failing(conflict) }, 0, true, 0},
		"denied, and must wait":  {waits, func() interceptor.Funcs { return failing(denial) }, 0, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := talk()
				s.Spec.OnHistoryLoss = tc.policy
				e, _ := newExecutor(t, tc.funcs(), s, turnWith(inTalk))
				e.Now = time.Now
				begin := time.Now()
				err := e.onLoss(stored(t, e))(t.Context(), 2)
				if _, again := errors.AsType[*retryError](err); again != tc.again || err != nil && !again {
					t.Errorf("error %v, want the Turn to try again: %t", err, tc.again)
				}
				if d := time.Since(begin); d < tc.duration || d > tc.duration+10*time.Second {
					t.Errorf("the Turn waited for %s, want about %s", d, tc.duration)
				}
				if n := len(e.Events.(*events.FakeRecorder).Events); n != tc.events {
					t.Errorf("%d Events, want %d: one if the loss is recorded", n, tc.events)
				}
			})
		})
	}
}

// TestTotalsThatAreTooLarge checks that an executor stops writing the totals of a Session that etcd refuses.
func TestTotalsThatAreTooLarge(t *testing.T) {
	e, _ := newExecutor(t, storing, append(surroundings(), talk(), turnWith(inTalk))...)
	read := func() *v1alpha1.Session {
		s := &v1alpha1.Session{}
		if err := e.Reader.Get(t.Context(), client.ObjectKeyFromObject(talk()), s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := read()
	s.Annotations = map[string]string{"example.com/padding": padding(100)}
	if err := e.Client.Update(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	place := &turn.SessionPosition{UID: string(s.UID), Name: s.Name, Number: 1, Last: "one", Totals: session.Totals{Turns: 1}}
	e.persistTotals(t.Context(), stored(t, e), place, now.Add(time.Second))
	if read().Status.Turns != 0 {
		t.Error("the totals were written, so this test checks nothing")
	}
}

// TestDeniedTotals checks that an executor repeats totals of a Session that admission denies, but not without end.
func TestDeniedTotals(t *testing.T) {
	for name, tc := range map[string]struct {
		denied time.Duration
		turns  int64
	}{
		"for some seconds": {denialPatience / 2, 1},
		"for a long time":  {time.Hour, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e, _ := newExecutor(t, denyingFor(tc.denied), talk(), turnWith(inTalk))
				e.Now = time.Now
				s := talk()
				place := &turn.SessionPosition{UID: string(s.UID), Name: s.Name, Number: 1, Last: "one", Totals: session.Totals{Turns: 1}}
				e.persistTotals(t.Context(), stored(t, e), place, now.Add(time.Second))
				if err := e.Reader.Get(t.Context(), client.ObjectKeyFromObject(s), s); err != nil || s.Status.Turns != tc.turns {
					t.Errorf("the Session has %d turns (error %v), want %d", s.Status.Turns, err, tc.turns)
				}
			})
		})
	}
}

// TestStuckTurnIsTriedAgain checks that a stuck Turn is handed back although it has not changed, when the API server no
// longer rejects its status, for example because an administrator has corrected an admission policy.
func TestStuckTurnIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, _ := newExecutor(t, failing(refusal, refusal), turnWith())
		r := &run{executor: e, turn: stored(t, e), epoch: 1}
		e.runs["uid-one"] = r
		r.handBack(t.Context())
		delete(e.runs, "uid-one")
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			e.retryStuck(ctx, t.Context())
		}()
		for _, want := range []string{me, ""} { // the second attempt is rejected, and the third one is not
			time.Sleep(stuckRetry)
			synctest.Wait()
			if got := stored(t, e).BoundTo(); got != want {
				t.Errorf("bound to %q, want %q", got, want)
			}
		}
		e.observe(t.Context(), stored(t, e))
		if e.stuckTurns() != 0 {
			t.Errorf("%d Turns are stuck, want none", e.stuckTurns())
		}
		cancel()
		<-done
	})
}

// TestStuckTurnThatChangesDuringAnAttempt checks that at most one attempt at a time hands a stuck Turn back, and that a
// change during an attempt causes the next one.
func TestStuckTurnThatChangesDuringAnAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		attempts := 0
		e, _ := newExecutor(t, interceptor.Funcs{SubResourceUpdate: func(ctx context.Context, c client.Client, sub string,
			o client.Object, opts ...client.SubResourceUpdateOption,
		) error {
			switch attempts++; attempts {
			case 1:
				return refusal
			case 2:
				<-release
				return refusal
			}
			return c.SubResource(sub).Update(ctx, o, opts...)
		}}, turnWith())
		r := &run{executor: e, turn: stored(t, e), epoch: 1}
		e.runs["uid-one"] = r
		r.handBack(t.Context())
		delete(e.runs, "uid-one")
		e.done["uid-one"] = endedRun{epoch: 1}
		for range 3 {
			e.observe(t.Context(), setPadding(t, e, padding(10+attempts)))
			synctest.Wait()
		}
		if attempts != 2 {
			t.Errorf("%d attempts, want the first and one that is running", attempts)
		}
		close(release)
		synctest.Wait()
		if got := stored(t, e).BoundTo(); got != "" || attempts != 3 {
			t.Errorf("bound to %q after %d attempts, want it handed back by the third", got, attempts)
		}
	})
}
