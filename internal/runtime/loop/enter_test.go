package loop_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/capstan-dev/capstan/internal/pace"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// gatedCandidate returns a candidate behind a gate with these limits.
func gatedCandidate(name string, limits pace.Limits, answers ...answer) (loop.Candidate, *scriptedModel, *pace.Gate) {
	c, s := candidate(name, 4, answers...)
	gate := pace.New(name)
	gate.SetLimits(limits, nil, 1)
	c.Provider = gate.Provider(pace.Caller{Namespace: "helpdesk", Agent: "support"}, s)
	return c, s, gate
}

// occupy lets a request in, so that the next one waits.
func occupy(t *testing.T, gate *pace.Gate) *pace.Permit {
	t.Helper()
	permit, err := gate.Enter(t.Context(), &pace.Request{Wait: model.Wait{Model: "m"}})
	if err != nil {
		t.Fatal(err)
	}
	return permit
}

// TestWaitAtTheGate checks how a run ends if its request waits at the gate of its provider, and that the journal
// contains a request only if it was about to be sent.
func TestWaitAtTheGate(t *testing.T) {
	one := pace.Limits{MaxConcurrent: 1}
	for name, tc := range map[string]struct {
		reason string
		after  func(stop chan struct{}, other *pace.Permit)
		err    error
		asked  int
		gate   bool // the error names the gate
	}{
		"its turn comes": {
			"the other request has ended", func(_ chan struct{}, p *pace.Permit) { p.Done(pace.Outcome{}) }, nil, 1, false,
		},
		"interrupted": {
			"the run has sent nothing", func(stop chan struct{}, _ *pace.Permit) { close(stop) }, loop.ErrInterrupted, 0, false,
		},
		"out of time": {
			"the message can name the cause", func(chan struct{}, *pace.Permit) {}, context.DeadlineExceeded, 0, true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, s, gate := gatedCandidate("one", one, says("Fine."))
				other := occupy(t, gate)
				in := input(t, c)
				stop := make(chan struct{})
				in.Interrupt = stop
				time.AfterFunc(10*time.Second, func() { tc.after(stop, other) })
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				_, err := loop.Run(ctx, &in)
				if !errors.Is(err, tc.err) {
					t.Errorf("Run: %v, want %v: %s", err, tc.err, tc.reason)
				}
				if _, named := errors.AsType[*loop.GateError](err); named != tc.gate {
					t.Errorf("the error %v names the gate: %t, want %t", err, named, tc.gate)
				}
				if len(s.asked) != tc.asked || len(in.State.Requests) != tc.asked {
					t.Errorf("%d requests were sent and %d are in the journal, want %d", len(s.asked), len(in.State.Requests), tc.asked)
				}
			})
		})
	}
}

// TestRefusalAtTheGate checks that the chain continues when a gate refuses a request, and that the journal says so.
func TestRefusalAtTheGate(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		limits pace.Limits
		before func(t *testing.T, gate *pace.Gate)
		after  time.Duration
		kind   model.ErrorKind
	}{
		"an open circuit": {"the other model answers immediately", pace.Limits{}, func(t *testing.T, gate *pace.Gate) {
			t.Helper()
			for range 5 {
				occupy(t, gate).Done(pace.Outcome{Failure: &model.Error{Kind: model.Network, Message: "refused"}})
			}
		}, 0, model.Network},
		"a long pause": {"it takes longer than another model", pace.Limits{}, func(t *testing.T, gate *pace.Gate) {
			t.Helper()
			occupy(t, gate).Done(pace.Outcome{Failure: &model.Error{Kind: model.RateLimited, RetryAfter: time.Minute}})
		}, 0, model.RateLimited},
		"a long queue": {
			"half of the time is left for the other model",
			pace.Limits{MaxConcurrent: 1},
			func(t *testing.T, gate *pace.Gate) {
				t.Helper()
				occupy(t, gate)
			},
			2 * time.Minute, model.RateLimited,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				one, first, gate := gatedCandidate("one", tc.limits, says("One."))
				two, _ := candidate("two", 1, says("Two."))
				tc.before(t, gate)
				in := input(t, one, two)
				ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
				defer cancel()
				begin := time.Now()
				if _, err := loop.Run(ctx, &in); err != nil || in.State.AnswerText() != "Two." {
					t.Errorf("Run: %v, and the answer is %q, want the answer of the other model: %s", err, in.State.AnswerText(), tc.reason)
				}
				if took := time.Since(begin); took != tc.after || len(first.asked) != 0 {
					t.Errorf("%d requests after %s, want none and %s: %s", len(first.asked), took, tc.after, tc.reason)
				}
				failed := in.State.FailedRequests
				if len(failed) != 1 || !failed[0].Unsent || failed[0].Kind != tc.kind || failed[0].Provider != "one" {
					t.Errorf("the journal has %+v, want one request that was not sent", failed)
				}
			})
		})
	}
}

// TestInterruptedInTheSecondWait interrupts a run whose request waits at the gate for the second time, because its
// ticket expired while the journal was unavailable. The next run sends the request.
func TestInterruptedInTheSecondWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := &journaltest.Store{}
		c, s, gate := gatedCandidate("one", pace.Limits{MaxConcurrent: 1}, says("Fine."))
		in := inputOf(t, j, 1, c)
		record, stop, done := in.Record, make(chan struct{}), make(chan struct{})
		in.Interrupt = stop
		in.Record = func(records ...journal.Record) error {
			if records[0].Kind == journal.ModelRequested {
				go func() { // another request enters the gate once the ticket has expired
					permit := occupy(t, gate)
					close(stop)
					<-done
					permit.Done(pace.Outcome{})
				}()
				time.Sleep(time.Minute)
			}
			return record(records...)
		}
		if _, err := loop.Run(t.Context(), &in); !errors.Is(err, loop.ErrInterrupted) || len(s.asked) != 0 {
			t.Errorf("Run: %v after %d requests, want an interrupt before the first request", err, len(s.asked))
		}
		if failed := in.State.FailedRequests; len(failed) != 1 || !failed[0].Unsent || failed[0].GaveUp != "" {
			t.Errorf("the journal has %+v, want one request that was not sent", failed)
		}
		close(done)
		in = inputOf(t, j, 2, c)
		if _, err := loop.Run(t.Context(), &in); err != nil || in.State.AnswerText() != "Fine." {
			t.Errorf("Run: %v, and the answer is %q, want the answer of the next run", err, in.State.AnswerText())
		}
	})
}

// TestTicketIsGivenBack checks that a request that the budget does not allow does not occupy the gate.
func TestTicketIsGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s, gate := gatedCandidate("one", pace.Limits{MaxConcurrent: 1}, says("Fine."))
		in := input(t, c)
		in.Limits.MaxTokens = 1
		end, err := loop.Run(t.Context(), &in)
		if err != nil || end.Reason != loop.OverBudget || len(s.asked) != 0 {
			t.Errorf("Run: %v, %v after %d requests, want OverBudget and no request", end, err, len(s.asked))
		}
		occupy(t, gate).Done(pace.Outcome{})
	})
}

// TestPanicLeavesTheGate checks that a request leaves the gate if the journal panics, so that other Turns do not wait
// forever.
func TestPanicLeavesTheGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _, gate := gatedCandidate("one", pace.Limits{MaxConcurrent: 1}, says("Fine."))
		in := input(t, c)
		in.Record = func(...journal.Record) error { panic("a bug") }
		func() {
			defer func() {
				if recover() == nil {
					t.Error("there was no panic")
				}
			}()
			_, _ = loop.Run(t.Context(), &in)
		}()
		occupy(t, gate).Done(pace.Outcome{})
	})
}

// watchedGate calls a function before each request enters.
type watchedGate struct {
	model.Gate
	enter func()
}

// Enter calls the function first.
func (g watchedGate) Enter(ctx context.Context, w model.Wait) (model.Ticket, error) {
	g.enter()
	return g.Gate.Enter(ctx, w)
}

// TestNoReplyIsKeptAtTheGate checks that the memory of a reply is released before the next request waits at the gate,
// even if nothing was recorded after the reply.
func TestNoReplyIsKeptAtTheGate(t *testing.T) {
	var history []model.Message
	for range 4 {
		history = append(history,
			model.Message{Role: model.RoleUser, Content: "Go on."}, model.Message{Role: model.RoleAssistant, Content: words(500)})
	}
	for name, tc := range map[string]struct {
		answers []answer
		change  func(in *loop.Input)
	}{
		"a draft before its reflection": {
			[]answer{says("Draft."), says("Better.")}, func(in *loop.Input) { in.Reflect = true },
		},
		"an unusable summary before its step": {
			[]answer{says(" "), says("Done.")}, func(in *loop.Input) {
				*in = withHistory(*in, history...)
				in.Context = loop.ContextPolicy{Compact: true, CompactPercent: 90}
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			kept, times := false, 0
			for i := range tc.answers {
				tc.answers[i].reply.Release = func() {}
			}
			c, s, _ := gatedCandidate("one", pace.Limits{}, tc.answers...)
			c.ContextWindow = 1000
			c.Provider = watchedGate{c.Provider.(model.Gate), func() {
				if kept {
					t.Error("a request enters the gate, but the memory of the last reply is still reserved")
				}
			}}
			in := input(t, c)
			tc.change(&in)
			in.Keep = func(func()) error { kept = true; times++; return nil }
			in.CountReply = func() error { kept = false; return nil }
			if _, err := loop.Run(t.Context(), &in); err != nil || len(s.asked) != 2 || times != 2 {
				t.Errorf("Run: %v after %d requests, and the memory of %d replies was kept; want 2 and 2", err, len(s.asked), times)
			}
		})
	}
}

// TestRetryAfterAtTheGate checks that the gate and not the loop waits as long as the endpoint asks, at most 5
// minutes. If another model can answer in that time, or the Turn ends before, no attempt follows.
func TestRetryAfterAtTheGate(t *testing.T) {
	const late = "busy (the next attempt in 5m0s would be after the turn's deadline)"
	for name, tc := range map[string]struct {
		reason          string
		asks, left      time.Duration
		fallback        bool
		attempts        int
		took            time.Duration
		answer, problem string
	}{
		"a minute":        {"the endpoint knows best", time.Minute, time.Hour, false, 2, time.Minute, "One.", ""},
		"an hour":         {"after 5 minutes, one request tries again", time.Hour, time.Hour, false, 2, 5 * time.Minute, "One.", ""},
		"another model":   {"it answers in that time", time.Minute, time.Hour, true, 1, 0, "Two.", ""},
		"too little time": {"the wait would be useless", time.Hour, 5 * time.Minute, false, 1, 0, "", late},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				busy := answer{err: &model.Error{Kind: model.RateLimited, Message: "busy", RetryAfter: tc.asks}}
				one, _, _ := gatedCandidate("one", pace.Limits{}, busy, says("One."))
				begin, attempts := time.Now(), 0
				one.Provider = watchedGate{one.Provider.(model.Gate), func() {
					if attempts++; time.Since(begin) > one.Retry.MaxBackoff {
						t.Errorf("attempt %d enters after %s: the loop has waited for the endpoint", attempts, time.Since(begin))
					}
				}}
				chain := []loop.Candidate{one}
				if tc.fallback {
					two, _ := candidate("two", 1, says("Two."))
					chain = append(chain, two)
				}
				ctx, cancel := context.WithTimeout(t.Context(), tc.left)
				defer cancel()
				in := input(t, chain...)
				_, err := loop.Run(ctx, &in)
				if (err == nil) != (tc.problem == "") || err != nil && err.Error() != tc.problem || in.State.AnswerText() != tc.answer {
					t.Errorf("answer %q, %v; want %q, %q: %s", in.State.AnswerText(), err, tc.answer, tc.problem, tc.reason)
				}
				if took := time.Since(begin); took != tc.took || attempts != tc.attempts {
					t.Errorf("%d attempts in %s, want %d in %s: %s", attempts, took, tc.attempts, tc.took, tc.reason)
				}
			})
		})
	}
}
