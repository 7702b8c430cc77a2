package executor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
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

// approvalOf returns a call whose approval was requested after the run began.
func approvalOf(callID, name string) loop.Approval {
	return loop.Approval{
		Request: "request of " + callID, Step: 1, CallID: callID, Name: name, ToolServerUID: "server",
		SchemaHash: "schema", Arguments: []byte(`{"secret":1}`), ArgumentsHash: "hash", Requested: now.Add(time.Second),
		Expires: now.Add(time.Hour),
	}
}

// toolApproval returns a decision about a call of the tool "x".
func toolApproval(name, callID string, d v1alpha1.ApprovalDecision) *v1alpha1.ToolApproval {
	return &v1alpha1.ToolApproval{
		ObjectMeta: metav1.ObjectMeta{Namespace: "helpdesk", Name: name, CreationTimestamp: metav1.NewTime(now)},
		Spec: v1alpha1.ToolApprovalSpec{
			TurnRef: v1alpha1.ObjectReference{Name: "one"}, TurnUID: "uid-one", RequestID: "request of " + callID,
			Step: 1, CallID: callID, ToolName: "x", ToolServerUID: "server", SchemaHash: "schema", ArgumentsHash: "hash",
			Decision: d, DecidedBy: "jane", Reason: "because",
		},
	}
}

// decided returns jane's decision about the call "a" of the tool "x".
func decided(approved bool) *loop.Decision {
	a := approvalOf("a", "x")
	d := a.Decided(approved)
	d.By, d.Reason = "jane", "because"
	return d
}

// listing adds the call "a" of the tool "x" to the pending approvals in the status of a Turn.
func listing(t *v1alpha1.Turn) {
	boundTo(me, 1)(t)
	t.Status.PendingApprovals = []v1alpha1.PendingApproval{translate.PendingApproval(approvalOf("a", "x"))}
}

// recorded returns the Events so far.
func recorded(e *Executor) []string {
	var got []string
	for all := e.Events.(*events.FakeRecorder).Events; len(all) > 0; {
		got = append(got, <-all)
	}
	return got
}

func TestParkNeedsOneWrite(t *testing.T) {
	writes := 0
	funcs := interceptor.Funcs{SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object,
		opts ...client.SubResourceUpdateOption,
	) error {
		writes++
		return c.SubResource(sub).Update(ctx, o, opts...)
	}}
	e, _ := newExecutor(t, funcs, turnWith())
	r := newRun(t, e)
	r.progress.note(turn.Progress{Counts: turn.Counts{Steps: 1}, Calls: []turn.CallRecord{{CallID: "a", Name: "delete", Step: 1}}})
	r.turn = r.progress.stop()
	r.park(t.Context(), &loop.Parked{
		Approvals: []loop.Approval{approvalOf("a", "delete"), approvalOf("b", "delete"), approvalOf("c", "send")},
	})
	got := stored(t, e)
	s := got.Status
	if got.BoundTo() != "" || got.Epoch() != 1 || got.StateReason() != v1alpha1.TurnReasonAwaitingApproval ||
		s.ParkedTime == nil || len(s.PendingApprovals) != 3 {
		t.Errorf("status %+v, want an unbound Turn that waits for three decisions", s)
	}
	if s.Steps == nil || s.Steps.Count != 1 || len(s.ToolCalls) != 1 || s.ToolCalls[0].Outcome != v1alpha1.ToolCallPending || writes != 1 {
		t.Errorf("%d writes: steps %+v, calls %+v; want one write with the progress so far", writes, s.Steps, s.ToolCalls)
	}
	want := []string{"Normal AwaitingApproval approval required for tool delete, tool send: " +
		"run capstan approve helpdesk/one or capstan deny helpdesk/one"}
	if diff := cmp.Diff(want, recorded(e)); diff != "" {
		t.Errorf("Events: -want +got:\n%s", diff)
	}
}

func TestApprovalIsRequestedOnce(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		before []v1alpha1.PendingApproval
		parked loop.Parked
		want   int
	}{
		"known": {"it was requested before", []v1alpha1.PendingApproval{{
			RequestID: "request of a", Step: 1,
			CallID: "a", ArgumentsHash: "hash",
		}}, loop.Parked{Approvals: []loop.Approval{approvalOf("a", "x")}}, 0},
		"another call": {"another one was requested before", []v1alpha1.PendingApproval{{
			RequestID: "request of another",
			Step:      1, CallID: "a", ArgumentsHash: "hash",
		}}, loop.Parked{Approvals: []loop.Approval{approvalOf("a", "x")}}, 1},
		"a sub-agent": {"no person must do anything", nil, loop.Parked{Turns: []string{"child"}}, 0},
		"a long list": {"still one Event", nil, loop.Parked{Approvals: manyApprovals(100)}, 1},
		"superseded":  {"it no longer belongs to this run", nil, loop.Parked{Approvals: []loop.Approval{approvalOf("a", "x")}}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			holder := me
			if name == "superseded" {
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
		all = append(all, approvalOf(fmt.Sprint(i), fmt.Sprintf("tool-%d", i)))
	}
	return all
}

// newRun returns a run of the Turn that has begun.
func newRun(t *testing.T, e *Executor) *run {
	t.Helper()
	r := &run{
		executor: e, turn: stored(t, e), namespace: stored(t, e).Namespace, epoch: 1, begun: now,
		cancellation: newCancellation(t.Context()), interrupt: make(chan struct{}),
	}
	r.progress.begin(t.Context(), r.turn, r.writeProgress)
	t.Cleanup(func() { r.progress.stop() })
	return r
}

// TestParkWhoseWriteResponseIsLost checks that the Event that asks for approval is emitted once if the API server
// applies the write of the wait and the response is lost.
func TestParkWhoseWriteResponseIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, _ := newExecutor(t, losingResponse(broken), turnWith())
		r := newRun(t, e)
		r.park(t.Context(), &loop.Parked{Approvals: []loop.Approval{approvalOf("a", "x")}})
		if got := recorded(e); len(got) != 1 || !strings.Contains(got[0], v1alpha1.EventAwaitingApproval) {
			t.Errorf("the Events are %q, want one that asks for approval", got)
		}
	})
}

func TestRunThatParksAgainWithoutProgressWaits(t *testing.T) {
	early := approvalOf("a", "x")
	early.Requested = now.Add(-time.Second)
	for name, tc := range map[string]struct {
		reason string
		epoch  int64
		noted  bool
		parked loop.Parked
		want   bool
	}{
		"the first run":     {"it has requested approval", 1, false, loop.Parked{Approvals: []loop.Approval{early}}, false},
		"a call was ended":  {"it made progress", 2, true, loop.Parked{Approvals: []loop.Approval{early}}, false},
		"a new request":     {"it made progress", 2, false, loop.Parked{Approvals: []loop.Approval{early, approvalOf("b", "x")}}, false},
		"no progress":       {"it was bound too early", 2, false, loop.Parked{Approvals: []loop.Approval{early}}, true},
		"a sub-agent works": {"it was bound too early", 3, false, loop.Parked{Turns: []string{"child"}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			e, _ := newExecutor(t, interceptor.Funcs{}, turnWith())
			r := newRun(t, e)
			if r.epoch = tc.epoch; tc.noted {
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
		// cached and stored are the decisions in the cache and in the API server.
		cached, stored []client.Object
		want           *loop.Decision
		reads          int
	}{
		"none yet, in the first run": {"no approval was requested before", 1, nil, nil, nil, 0},
		"none yet, in a later run":   {"the cache may be behind", 2, nil, nil, nil, 1},
		"in the cache": {
			"that is enough", 2,
			[]client.Object{toolApproval("x", "a", v1alpha1.ApprovalApproved)},
			nil, approved, 0,
		},
		"not in the cache yet": {
			"the controller has seen it", 2,
			[]client.Object{toolApproval("y", "b", v1alpha1.ApprovalDenied)},
			[]client.Object{toolApproval("x", "a", v1alpha1.ApprovalApproved)},
			approved, 1,
		},
		"about another call": {
			"there is no decision", 2, nil,
			[]client.Object{toolApproval("y", "b", v1alpha1.ApprovalDenied)},
			nil, 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			e, _ := newExecutor(t, interceptor.Funcs{}, append(tc.cached, turnWith(listing))...)
			reads := 0
			live, _ := newExecutor(t, interceptor.Funcs{
				List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
					reads++
					return c.List(ctx, list, opts...)
				},
			}, append(tc.stored, turnWith(listing))...)
			e.Reader = live.Reader
			r := newRun(t, e)
			r.epoch = tc.epoch
			got, err := r.decide(t.Context(), approvalOf("a", "x"))
			if diff := cmp.Diff(tc.want, got); diff != "" || err != nil || reads != tc.reads {
				t.Errorf("%s (error %v, %d reads of the API server, want %d): -want +got:\n%s", tc.reason, err, reads, tc.reads, diff)
			}
		})
	}
}

// TestDecisionAboutAnUnlistedCallDoesNotCount checks that a decision about a call that the status did not list does not
// count, because no user was shown that call.
func TestDecisionAboutAnUnlistedCallDoesNotCount(t *testing.T) {
	for name, change := range map[string]func(*v1alpha1.PendingApproval){
		"no call":        nil,
		"other request":  func(p *v1alpha1.PendingApproval) { p.RequestID = "other" },
		"other tool":     func(p *v1alpha1.PendingApproval) { p.Name = "wipe_all" },
		"other server":   func(p *v1alpha1.PendingApproval) { p.ToolServerUID = "other" },
		"other schema":   func(p *v1alpha1.PendingApproval) { p.SchemaHash = "other" },
		"other argument": func(p *v1alpha1.PendingApproval) { p.ArgumentsHash = "other" },
	} {
		t.Run(name, func(t *testing.T) {
			e, _ := newExecutor(t, interceptor.Funcs{}, turnWith(), toolApproval("x", "a", v1alpha1.ApprovalApproved))
			r := newRun(t, e)
			r.epoch = 2
			if change != nil {
				listing(r.turn)
				change(&r.turn.Status.PendingApprovals[0])
			}
			if d, err := r.decide(t.Context(), approvalOf("a", "x")); d != nil || !errors.Is(err, loop.ErrNotListed) {
				t.Errorf("decision %+v, error %v; want no decision, and %v", d, err, loop.ErrNotListed)
			}
		})
	}
}

// TestUncheckedDecisionDoesNotCount checks that a decision whose author may not decide does not count, in the cache or
// in the API server. A valid decision about the same call counts.
func TestUncheckedDecisionDoesNotCount(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		epoch  int64
		// usable is the name of the decision that may be used.
		usable string
		want   *loop.Decision
		asks   int
	}{
		"the first run":  {"there is no decision", 1, "", nil, 1},
		"a later run":    {"the API server has no other decision", 2, "", nil, 2},
		"another one":    {"the denial came first, and does not count", 1, "second", decided(true), 1},
		"the first one":  {"it denies", 1, "first", decided(false), 1},
		"of other calls": {"it is not about this one", 1, "other", nil, 1},
	} {
		t.Run(name, func(t *testing.T) {
			first := toolApproval("first", "a", v1alpha1.ApprovalDenied)
			first.CreationTimestamp = metav1.NewTime(now.Add(-time.Second))
			e, _ := newExecutor(t, interceptor.Funcs{}, turnWith(listing), first,
				toolApproval("second", "a", v1alpha1.ApprovalApproved), toolApproval("other", "b", v1alpha1.ApprovalApproved))
			asked := 0
			e.Approvals = func(_ context.Context, made []v1alpha1.ToolApproval) ([]v1alpha1.ToolApproval, string, error) {
				asked++
				if len(made) != 2 {
					t.Errorf("asked about %d decisions, want the two about the call", len(made))
				}
				return slices.DeleteFunc(slices.Clone(made), func(a v1alpha1.ToolApproval) bool { return a.Name != tc.usable }),
					"some are not used", nil
			}
			r := newRun(t, e)
			r.epoch = tc.epoch
			got, err := r.decide(t.Context(), approvalOf("a", "x"))
			if diff := cmp.Diff(tc.want, got); diff != "" || err != nil || asked != tc.asks {
				t.Errorf("%s (error %v, asked %d times, want %d): -want +got:\n%s", tc.reason, err, asked, tc.asks, diff)
			}
		})
	}
}

// TestRunRetriesWhenDecisionsCannotBeChecked checks that the run makes another attempt.
func TestRunRetriesWhenDecisionsCannotBeChecked(t *testing.T) {
	e, _ := newExecutor(t, interceptor.Funcs{}, turnWith(listing), toolApproval("x", "a", v1alpha1.ApprovalApproved))
	e.Approvals = func(context.Context, []v1alpha1.ToolApproval) ([]v1alpha1.ToolApproval, string, error) {
		return nil, "", broken
	}
	d, err := newRun(t, e).decide(t.Context(), approvalOf("a", "x"))
	if _, again := errors.AsType[*retryError](err); !again || outcomeOf(nil, err, false, false) != tryAgain || d != nil {
		t.Errorf("decision %v, error %v; want no decision, and an error after which the run is tried again", d, err)
	}
}

// TestRunRetriesWhenDecisionsCannotBeRead checks that the run makes another attempt.
func TestRunRetriesWhenDecisionsCannotBeRead(t *testing.T) {
	e, _ := newExecutor(t, interceptor.Funcs{
		List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error { return broken },
	}, turnWith())
	r := newRun(t, e)
	listing(r.turn)
	_, err := r.decide(t.Context(), approvalOf("a", "x"))
	if _, again := errors.AsType[*retryError](err); !again || outcomeOf(nil, err, false, false) != tryAgain {
		t.Errorf("error %v, want one after which the run is tried again", err)
	}
}
