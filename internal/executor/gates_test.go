package executor

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/pace"
	"github.com/capstan-dev/capstan/internal/providers"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// TestTurnThatWaitsForItsProvider checks that a Turn whose request must wait is Queued, that the Turn has sent nothing,
// and how its wait can end.
func TestTurnThatWaitsForItsProvider(t *testing.T) {
	for name, tc := range map[string]struct {
		meanwhile func(r *run, leave func())
		want      string
		requested bool
	}{
		"its request is admitted": {func(_ *run, leave func()) { leave() }, v1alpha1.TurnReasonCompleted, true},
		"cancelled": {
			func(r *run, _ func()) { r.handleDesiredState(v1alpha1.DesiredStateCancelled) }, v1alpha1.TurnReasonCancelled, false,
		},
		"suspended": {
			func(r *run, _ func()) { r.handleDesiredState(v1alpha1.DesiredStateSuspended) }, v1alpha1.TurnReasonSuspended, false,
		},
		"out of time": {func(*run, func()) { time.Sleep(time.Hour) }, v1alpha1.TurnReasonDeadlineExceeded, false},
	} {
		t.Run(name, func(t *testing.T) {
			objects := surroundings()
			demo := objects[2].(*v1alpha1.ModelProvider)
			demo.Spec.Limits = &v1alpha1.RateLimits{MaxConcurrentRequests: new(int64(1))}
			objects = append(objects, turnWith(func(t *v1alpha1.Turn) { t.Spec.Execution = v1alpha1.ExecutionRun }))
			synctest.Test(t, func(t *testing.T) {
				e, journals := newExecutor(t, interceptor.Funcs{}, objects...)
				e.Provider = func(*v1alpha1.ModelProvider) model.Provider {
					return modelFunc(func(context.Context, *model.Request) (*model.Reply, error) {
						return &model.Reply{Text: "Done.", FinishReason: model.FinishStop}, nil
					})
				}
				e.Gates = providers.NewCache(nil, time.Now, nil, nil)
				other := e.Gates.Gated(demo, pace.Caller{Namespace: "helpdesk", Agent: "other"}, nil)
				ticket, err := other.(model.Gate).Enter(t.Context(), model.Wait{Model: "m"})
				if err != nil {
					t.Fatal(err)
				}
				e.observe(t.Context(), stored(t, e))
				time.Sleep(4 * time.Second)
				if got := stored(t, e); got.StateReason() != v1alpha1.TurnReasonRunning {
					t.Errorf("after 4 seconds the Turn is %s, want Running: a short wait is not written", got.StateReason())
				}
				time.Sleep(5 * time.Second)
				const message = `bound to executor "capstan-0", and waiting for ModelProvider "demo": its rate limits or its ` +
					`circuit breaker hold the next request back`
				if got := stored(t, e); got.StateReason() != v1alpha1.TurnReasonQueued || got.Status.Conditions[0].Message != message {
					t.Errorf("the Turn is %s: %s\nwant Queued: %s", got.StateReason(), got.Status.Conditions[0].Message, message)
				}
				if u := use(e); u.Waiting != 1 {
					t.Errorf("%d requests wait, want 1", u.Waiting)
				}
				e.mu.Lock()
				r := e.runs["uid-one"]
				e.mu.Unlock()
				tc.meanwhile(r, ticket.Leave)
				e.all.Wait()
				got := stored(t, e)
				if got.StateReason() != tc.want {
					t.Errorf("the Turn is %s: %s\nwant %s", got.StateReason(), got.Status.Conditions[0].Message, tc.want)
				}
				const late = `the turn reached its time limit of 1m0s while the next request waited for ModelProvider "demo", whose ` +
					`rate limits or circuit breaker held it back: raise the limits of the ModelProvider, or limits.timeoutSeconds`
				if m := got.Status.Conditions[0].Message; tc.want == v1alpha1.TurnReasonDeadlineExceeded && m != late {
					t.Errorf("the message is %q, want %q", m, late)
				}
				requested := slices.ContainsFunc(journals.entries(t),
					func(e journal.Entry) bool { return e.Kind == journal.ModelRequested })
				if requested != tc.requested {
					t.Errorf("the journal has a request: %v, want %v: nothing is sent during a wait", requested, tc.requested)
				}
				if u := use(e); u.Waiting != 0 {
					t.Errorf("%d requests wait, want none", u.Waiting)
				}
			})
		})
	}
}

// TestTurnWhoseProviderAsksForAPause checks that the gate holds a Turn whose request was refused: the Turn is Queued
// during the pause. It asks again when the pause ends, but after at most 5 minutes.
func TestTurnWhoseProviderAsksForAPause(t *testing.T) {
	for name, tc := range map[string]struct{ pause, want time.Duration }{
		"a minute":       {time.Minute, time.Minute},
		"twenty minutes": {20 * time.Minute, 5 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			objects := surroundings()
			objects[0].(*v1alpha1.Agent).Spec.Limits = &v1alpha1.Limits{TimeoutSeconds: new(int32(3600))}
			objects[2].(*v1alpha1.ModelProvider).Spec.Retry = v1alpha1.RetryPolicy{
				MaxAttempts: 2, InitialBackoffMilliseconds: 500, MaxBackoffSeconds: 20,
			}
			objects = append(objects, turnWith(func(t *v1alpha1.Turn) { t.Spec.Execution = v1alpha1.ExecutionRun }))
			synctest.Test(t, func(t *testing.T) {
				e, _ := newExecutor(t, interceptor.Funcs{}, objects...)
				var asked []time.Time
				e.Provider = func(*v1alpha1.ModelProvider) model.Provider {
					return modelFunc(func(context.Context, *model.Request) (*model.Reply, error) {
						if asked = append(asked, time.Now()); len(asked) == 1 {
							return nil, &model.Error{Kind: model.RateLimited, Message: "busy", RetryAfter: tc.pause}
						}
						return &model.Reply{Text: "Done.", FinishReason: model.FinishStop}, nil
					})
				}
				e.Gates = providers.NewCache(nil, time.Now, nil, nil)
				e.observe(t.Context(), stored(t, e))
				time.Sleep(30 * time.Second)
				if got := stored(t, e); got.StateReason() != v1alpha1.TurnReasonQueued {
					t.Errorf("during the pause the Turn is %s, want Queued", got.StateReason())
				}
				e.all.Wait()
				if got := stored(t, e); got.StateReason() != v1alpha1.TurnReasonCompleted || len(asked) != 2 {
					t.Fatalf("the Turn is %s after %d requests, want Completed after 2", got.StateReason(), len(asked))
				}
				if after := asked[1].Sub(asked[0]); after < tc.want || after > tc.want+time.Second {
					t.Errorf("asked again after %s, want %s", after, tc.want)
				}
			})
		})
	}
}

// use returns the use of the only gate.
func use(e *Executor) (u pace.Use) {
	for _, u = range e.Gates.GateUse() {
	}
	return u
}
