package executor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/translate"
)

// asks is a call that waits for a decision since the beginning of the run.
func asks(callID, name string) loop.Approval {
	return loop.Approval{Request: "request of " + callID, Step: 1, CallID: callID, Name: name, ToolServerUID: "server", SchemaHash: "schema", Arguments: []byte(`{"secret":1}`), ArgumentsHash: "hash", Requested: now.Add(time.Second), Expires: now.Add(time.Hour)}
}

func decides(name, callID string, d v1alpha1.ApprovalDecision) *v1alpha1.ToolApproval {
	return &v1alpha1.ToolApproval{
		ObjectMeta: metav1.ObjectMeta{Namespace: "helpdesk", Name: name, CreationTimestamp: metav1.NewTime(now)},
		Spec: v1alpha1.ToolApprovalSpec{
			TurnRef: v1alpha1.ObjectReference{Name: "one"}, TurnUID: "uid-one", RequestID: "request of " + callID, Step: 1, CallID: callID, ToolName: "x", ToolServerUID: "server", SchemaHash: "schema", ArgumentsHash: "hash",
			Decision: d, DecidedBy: "jane", Reason: "because",
		},
	}
}

// decided is the decision about a call of x that jane has made.
func decided(approved bool) *loop.Decision {
	a := asks("a", "x")
	d := a.Decided(approved)
	d.By, d.Reason = "jane", "because"
	return d
}

// listing is a Turn whose status lists a call of x.
func listing(t *v1alpha1.Turn) {
	boundTo(me, 1)(t)
	bound := t.Status.Executor
	translate.Park(t, &loop.Parked{Approvals: []loop.Approval{asks("a", "x")}}, now)
	t.Status.Executor = bound
	translate.Unpark(t, now)
}

// recorded takes the Events that there are.
func recorded(e *Executor) []string {
	var got []string
	for all := e.Events.(*events.FakeRecorder).Events; len(all) > 0; {
		got = append(got, <-all)
	}
	return got
}

func TestAParkedTurnIsReleasedByOneWrite(t *testing.T) {
	writes := 0
	funcs := interceptor.Funcs{SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object, opts ...client.SubResourceUpdateOption) error {
		writes++
		return c.SubResource(sub).Update(ctx, o, opts...)
	}}
	e, _ := newExecutor(t, funcs, turnWith())
	r := newRun(t, e)
	r.progress.note(turn.Progress{Counts: turn.Counts{Steps: 1}, Calls: []turn.CallRecord{{CallID: "a", Name: "delete", Step: 1}}})
	r.turn = r.progress.stop()
	r.park(t.Context(), &loop.Parked{Approvals: []loop.Approval{asks("a", "delete"), asks("b", "delete"), asks("c", "send")}})
	got := stored(t, e)
	s := got.Status
	if got.BoundTo() != "" || got.Epoch() != 1 || got.StateReason() != v1alpha1.TurnReasonAwaitingApproval || s.ParkedTime == nil || len(s.PendingApprovals) != 3 {
		t.Errorf("status %+v, want a Turn that is bound to nobody and waits for three decisions", s)
	}
	if s.Steps == nil || s.Steps.Count != 1 || len(s.ToolCalls) != 1 || s.ToolCalls[0].Outcome != v1alpha1.ToolCallPending || writes != 1 {
		t.Errorf("%d writes: steps %+v, calls %+v; want one write that says what was done by then", writes, s.Steps, s.ToolCalls)
	}
	want := []string{"Normal AwaitingApproval a decision is needed about tool delete, tool send: capstan approve one, or capstan deny one"}
	if diff := cmp.Diff(want, recorded(e)); diff != "" {
		t.Errorf("Events: -want +got:\n%s", diff)
	}
}

func TestPeopleAreAskedOnce(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		before []v1alpha1.PendingApproval
		parked loop.Parked
		want   int
	}{
		"known":       {"they were asked about it", []v1alpha1.PendingApproval{{RequestID: "request of a", Step: 1, CallID: "a", ArgumentsHash: "hash"}}, loop.Parked{Approvals: []loop.Approval{asks("a", "x")}}, 0},
		"another":     {"they were asked about another one", []v1alpha1.PendingApproval{{RequestID: "request of another", Step: 1, CallID: "a", ArgumentsHash: "hash"}}, loop.Parked{Approvals: []loop.Approval{asks("a", "x")}}, 1},
		"a sub-agent": {"nobody needs to do anything", nil, loop.Parked{Turns: []string{"child"}}, 0},
		"a long list": {"one Event all the same", nil, loop.Parked{Approvals: manyApprovals(100)}, 1},
		"somebody's":  {"it is not this run's any more", nil, loop.Parked{Approvals: []loop.Approval{asks("a", "x")}}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			holder := me
			if name == "somebody's" {
				holder = "other"
			}
			e, _ := newExecutor(t, interceptor.Funcs{}, turnWith(boundTo(holder, 1)))
			r := newRun(t, e)
			r.turn = r.progress.stop()
			r.turn.Status.PendingApprovals = tc.before
			r.park(t.Context(), &tc.parked)
			got := recorded(e)
			if len(got) != tc.want {
				t.Errorf("Events %v, want %d: %s", got, tc.want, tc.reason)
			}
			if strings.Contains(strings.Join(got, ""), "secret") {
				t.Error("an Event must not hold arguments")
			}
		})
	}
}

func manyApprovals(n int) []loop.Approval {
	var all []loop.Approval
	for i := range n {
		all = append(all, asks(fmt.Sprint(i), fmt.Sprintf("tool-%d", i)))
	}
	return all
}

// newRun is a run of the Turn that has begun.
func newRun(t *testing.T, e *Executor) *run {
	t.Helper()
	r := &run{executor: e, turn: stored(t, e), namespace: stored(t, e).Namespace, epoch: 1, begun: now, cancellation: newCancellation(t.Context()), interrupt: make(chan struct{})}
	r.progress.begin(t.Context(), r.turn, r.writeProgress)
	t.Cleanup(func() { r.progress.stop() })
	return r
}

func TestARunThatParksAgainWithoutNewsWaitsALittle(t *testing.T) {
	early := asks("a", "x")
	early.Requested = now.Add(-time.Second)
	for name, tc := range map[string]struct {
		reason string
		epoch  int64
		told   bool
		parked loop.Parked
		want   bool
	}{
		"the first run":    {"it has asked", 1, false, loop.Parked{Approvals: []loop.Approval{early}}, false},
		"a call was ended": {"there was something to do", 2, true, loop.Parked{Approvals: []loop.Approval{early}}, false},
		"a new request":    {"there was something to do", 2, false, loop.Parked{Approvals: []loop.Approval{early, asks("b", "x")}}, false},
		"nothing":          {"it was bound too early", 2, false, loop.Parked{Approvals: []loop.Approval{early}}, true},
		"no sub-agent":     {"it was bound too early", 3, false, loop.Parked{Turns: []string{"child"}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			e, _ := newExecutor(t, interceptor.Funcs{}, turnWith())
			r := newRun(t, e)
			if r.epoch = tc.epoch; tc.told {
				r.progress.note(steps(1))
			}
			if got := r.isFutile(fmt.Errorf("wrapped: %w", &tc.parked)); got != tc.want {
				t.Errorf("futile: %t, want %t: %s", got, tc.want, tc.reason)
			}
		})
	}
}

func TestDecide(t *testing.T) {
	approved := decided(true)
	for name, tc := range map[string]struct {
		reason string
		epoch  int64
		// cached and stored are the decisions that the cache and the API server have.
		cached, stored []client.Object
		want           *loop.Decision
		reads          int
	}{
		"none yet, of a first run":   {"nobody was asked before", 1, nil, nil, nil, 0},
		"none yet, of a later run":   {"the cache may be behind", 2, nil, nil, nil, 1},
		"in the cache":               {"that is enough", 2, []client.Object{decides("x", "a", v1alpha1.ApprovalApproved)}, nil, approved, 0},
		"not in the cache yet":       {"the controller has seen it", 2, []client.Object{decides("y", "b", v1alpha1.ApprovalDenied)}, []client.Object{decides("x", "a", v1alpha1.ApprovalApproved)}, approved, 1},
		"about another Turn's calls": {"nobody has decided", 2, nil, []client.Object{decides("y", "b", v1alpha1.ApprovalDenied)}, nil, 1},
	} {
		t.Run(name, func(t *testing.T) {
			e, _ := newExecutor(t, interceptor.Funcs{}, append(tc.cached, turnWith(listing))...)
			reads := 0
			live, _ := newExecutor(t, interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
				reads++
				return c.List(ctx, list, opts...)
			}}, append(tc.stored, turnWith(listing))...)
			e.Reader = live.Reader
			r := newRun(t, e)
			r.epoch = tc.epoch
			got, err := r.decide(t.Context(), asks("a", "x"))
			if diff := cmp.Diff(tc.want, got); diff != "" || err != nil || reads != tc.reads {
				t.Errorf("%s (error %v, %d reads of the API server, want %d): -want +got:\n%s", tc.reason, err, reads, tc.reads, diff)
			}
		})
	}
}

// TestADecisionAboutACallThatTheStatusDoesNotListIsNone, whatever it names: nobody was shown that call.
func TestADecisionAboutACallThatTheStatusDoesNotListIsNone(t *testing.T) {
	for name, change := range map[string]func(*v1alpha1.PendingApproval){
		"no call":        nil,
		"other request":  func(p *v1alpha1.PendingApproval) { p.RequestID = "other" },
		"other tool":     func(p *v1alpha1.PendingApproval) { p.Name = "wipe_all" },
		"other server":   func(p *v1alpha1.PendingApproval) { p.ToolServerUID = "other" },
		"other schema":   func(p *v1alpha1.PendingApproval) { p.SchemaHash = "other" },
		"other argument": func(p *v1alpha1.PendingApproval) { p.ArgumentsHash = "other" },
	} {
		t.Run(name, func(t *testing.T) {
			e, _ := newExecutor(t, interceptor.Funcs{}, turnWith(), decides("x", "a", v1alpha1.ApprovalApproved))
			r := newRun(t, e)
			r.epoch = 2
			if change != nil {
				listing(r.turn)
				change(&r.turn.Status.PendingApprovals[0])
			}
			if d, err := r.decide(t.Context(), asks("a", "x")); d != nil || err != nil {
				t.Errorf("decision %+v, error %v; want none", d, err)
			}
		})
	}
}

// TestADecisionThatMayNotBeUsedIsNone: neither one that the cache has nor one that the API server has. One that was made beside it
// counts.
func TestADecisionThatMayNotBeUsedIsNone(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		epoch  int64
		// may is the name of the decision that may be used.
		may  string
		want *loop.Decision
		asks int
	}{
		"the first run":  {"nobody has decided", 1, "", nil, 1},
		"a later run":    {"the API server has no other", 2, "", nil, 2},
		"another one":    {"the denial came first, and does not count", 1, "second", decided(true), 1},
		"the first one":  {"it denies", 1, "first", decided(false), 1},
		"of other calls": {"it is not about this one", 1, "other", nil, 1},
	} {
		t.Run(name, func(t *testing.T) {
			first := decides("first", "a", v1alpha1.ApprovalDenied)
			first.CreationTimestamp = metav1.NewTime(now.Add(-time.Second))
			e, _ := newExecutor(t, interceptor.Funcs{}, turnWith(listing), first, decides("second", "a", v1alpha1.ApprovalApproved), decides("other", "b", v1alpha1.ApprovalApproved))
			asked := 0
			e.Approvals = func(_ context.Context, made []v1alpha1.ToolApproval) ([]v1alpha1.ToolApproval, string, error) {
				asked++
				if len(made) != 2 {
					t.Errorf("asked about %d decisions, want the two about the call", len(made))
				}
				return slices.DeleteFunc(slices.Clone(made), func(a v1alpha1.ToolApproval) bool { return a.Name != tc.may }), "some are not used", nil
			}
			r := newRun(t, e)
			r.epoch = tc.epoch
			got, err := r.decide(t.Context(), asks("a", "x"))
			if diff := cmp.Diff(tc.want, got); diff != "" || err != nil || asked != tc.asks {
				t.Errorf("%s (error %v, asked %d times, want %d): -want +got:\n%s", tc.reason, err, asked, tc.asks, diff)
			}
		})
	}
}

// TestARunWaitsWhereNobodyCanSayWhetherADecisionMayBeUsed: it goes on with the next attempt.
func TestARunWaitsWhereNobodyCanSayWhetherADecisionMayBeUsed(t *testing.T) {
	e, _ := newExecutor(t, interceptor.Funcs{}, turnWith(listing), decides("x", "a", v1alpha1.ApprovalApproved))
	e.Approvals = func(context.Context, []v1alpha1.ToolApproval) ([]v1alpha1.ToolApproval, string, error) {
		return nil, "", broken
	}
	d, err := newRun(t, e).decide(t.Context(), asks("a", "x"))
	if _, again := errors.AsType[*unreadError](err); !again || isFinal(err) || d != nil {
		t.Errorf("decision %v, error %v; want none, and an error after which the run is tried again", d, err)
	}
}

// TestDecisionsThatCannotBeReadAreReadAgain: the run goes on with the next attempt.
func TestDecisionsThatCannotBeReadAreReadAgain(t *testing.T) {
	e, _ := newExecutor(t, interceptor.Funcs{List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error { return broken }}, turnWith())
	r := newRun(t, e)
	listing(r.turn)
	_, err := r.decide(t.Context(), asks("a", "x"))
	if _, again := errors.AsType[*unreadError](err); !again || isFinal(err) {
		t.Errorf("error %v, want one after which the run is tried again", err)
	}
	if !isFinal(fmt.Errorf("wrapped: %w", &loop.Parked{})) {
		t.Error("a parked Turn must not be tried again by its run")
	}
}
