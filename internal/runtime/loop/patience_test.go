package loop_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// slowModel is a model whose answers begin after the latency. If ownTimeout is not 0, its provider gives up after that
// time. slowModel records how long each request waited.
type slowModel struct {
	latency, ownTimeout time.Duration
	waited              []time.Duration
}

func (s *slowModel) Generate(ctx context.Context, req *model.Request) (*model.Reply, error) {
	begin := time.Now()
	defer func() { s.waited = append(s.waited, time.Since(begin)) }()
	limit := s.latency
	for _, bound := range []time.Duration{s.ownTimeout, req.FirstEventTimeout} {
		if bound > 0 {
			limit = min(limit, bound)
		}
	}
	select {
	case <-time.After(limit):
	case <-ctx.Done():
		return nil, &model.Error{Kind: model.Cancelled, Message: "the request was cancelled"}
	}
	if limit < s.latency {
		return nil, &model.Error{Kind: model.Timeout, MayBeBilled: true, Message: "it is slow"}
	}
	return new(says("Slow.").reply), nil
}

func slowCandidate(name string, latency, ownTimeout time.Duration) (loop.Candidate, *slowModel) {
	s := &slowModel{latency: latency, ownTimeout: ownTimeout}
	return loop.Candidate{
		ProviderName: name, Model: "m", Provider: s,
		Retry: loop.Retry{MaxAttempts: 4, InitialBackoff: time.Second, MaxBackoff: time.Second},
	}, s
}

// TestSlowModel checks how often, and for how long, a slow model is asked in a Turn of 5 minutes.
func TestSlowModel(t *testing.T) {
	const second, minute = time.Second, time.Minute
	for name, tc := range map[string]struct {
		reason              string
		latency, ownTimeout time.Duration
		fallback            bool // there is another model
		unusable            bool // nothing can be sent to it
		waited              []time.Duration
		answer              string
		err                 string
	}{
		"slow, and no other model": {
			"a slow model is not a dead model", 4 * minute, 0, false, false, []time.Duration{4 * minute}, "Slow.", "",
		},
		"slow, and another model without a provider": {
			"no time is kept for a model that cannot be asked", 4 * minute, 0, true, true, []time.Duration{4 * minute}, "Slow.", "",
		},
		"slow, and another model": {
			"the answer arrives before the other model must be asked", 2 * minute, 0, true, false, []time.Duration{2 * minute}, "Slow.", "",
		},
		"dead, and no other model": {
			"the deadline ends the Turn", time.Hour, 0, false, false, []time.Duration{5 * minute}, "", "context deadline exceeded",
		},
		"dead, and another model": {
			"half of the time is left for the other model", time.Hour, 0, true, false, []time.Duration{150 * second}, "Fast.", "",
		},
		"own timeout, and no other model": {
			"a request that may be billed is repeated once", time.Hour, 10 * second, false, false,
			[]time.Duration{10 * second, 10 * second},
			"", "it is slow (2 attempts)",
		},
		"own timeout, and another model": {
			"after the repetition, the other model answers", time.Hour, 10 * second, true, false,
			[]time.Duration{10 * second, 10 * second},
			"Fast.", "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				slow, s := slowCandidate("slow", tc.latency, tc.ownTimeout)
				chain := []loop.Candidate{slow}
				if tc.fallback {
					fast, _ := candidate("fast", 1, says("Fast."))
					fast.Unusable = tc.unusable
					chain = append(chain, fast)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
				defer cancel()
				in := input(t, chain...)
				_, err := loop.Run(ctx, &in)
				if got := fmt.Sprint(err); tc.err != "" && got != tc.err || tc.err == "" && err != nil {
					t.Errorf("Run: %v, want %q: %s", err, tc.err, tc.reason)
				}
				if fmt.Sprint(s.waited) != fmt.Sprint(tc.waited) || in.State.AnswerText() != tc.answer {
					t.Errorf("waited %v for the answer %q, want %v and %q: %s",
						s.waited, in.State.AnswerText(), tc.waited, tc.answer, tc.reason)
				}
			})
		})
	}
}

// TestBilledTimeoutsCountOverRuns checks that a run counts the time-outs of earlier runs, which are in the journal.
func TestBilledTimeoutsCountOverRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := &journaltest.Store{}
		c, s := slowCandidate("slow", time.Hour, 10*time.Second)
		lost := errors.New("the store is lost")
		for epoch := range int64(2) {
			in := inputOf(t, j, epoch+1, c)
			in.Record = runAfterError(in.Record, journal.ModelFailed, lost)
			if _, err := loop.Run(t.Context(), &in); !errors.Is(err, lost) {
				t.Fatalf("Run: %v, want it cut off", err)
			}
		}
		in := inputOf(t, j, 3, c)
		_, err := loop.Run(t.Context(), &in)
		if failure, ok := errors.AsType[*loop.Error](err); !ok || failure.Kind != model.Timeout || len(s.waited) != 2 {
			t.Errorf("%d requests, %v; want a time-out after 2 requests, one in each of the first two runs", len(s.waited), err)
		}
	})
}

// TestCancelledRequestsAreNotTimeouts checks that requests that were cancelled when their runs ended do not use up the
// repetition of a time-out, although they may be billed and count with their prompts.
func TestCancelledRequestsAreNotTimeouts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := &journaltest.Store{}
		for epoch := range int64(2) {
			c, _ := candidate("slow", 4, answer{err: &model.Error{Kind: model.Cancelled, MayBeBilled: true, Message: "stopped"}})
			in := inputOf(t, j, epoch+1, c)
			if _, err := loop.Run(t.Context(), &in); err == nil {
				t.Fatal("Run: no error, want it cut off")
			}
		}
		c, s := slowCandidate("slow", time.Hour, 10*time.Second)
		in := inputOf(t, j, 3, c)
		if _, err := loop.Run(t.Context(), &in); err == nil || len(s.waited) != 2 {
			t.Errorf("%d requests, %v; want a time-out and its repetition", len(s.waited), err)
		}
		for one := range in.State.Spendings {
			if one.Usage.InputTokens == 0 || !one.Usage.Estimated {
				t.Errorf("a request that may be billed counts %+v, want an estimate of its prompt", one.Usage)
			}
		}
	})
}

// runAfterError returns a Record function that fails each time after it has written a record of a kind.
func runAfterError(record func(...journal.Record) error, kind journal.Kind, failure error) func(...journal.Record) error {
	return func(records ...journal.Record) error {
		if err := record(records...); err != nil || records[0].Kind != kind {
			return err
		}
		return failure
	}
}

// TestSlowSummary checks that a summary leaves half of the time for its step, and is asked for once, also by a run that
// continues.
func TestSlowSummary(t *testing.T) {
	for name, cut := range map[string]bool{"one run": false, "two runs": true} {
		t.Run(name, func(t *testing.T) { testSlowSummary(t, cut) })
	}
}

func testSlowSummary(t *testing.T, cut bool) {
	synctest.Test(t, func(t *testing.T) {
		j, lost := &journaltest.Store{}, errors.New("the store is lost")
		c, s := slowCandidate("slow", 2*time.Minute, 0)
		c.ContextWindow = 1000
		var history []model.Message
		for range 4 {
			history = append(history,
				model.Message{Role: model.RoleUser, Content: "Go on."}, model.Message{Role: model.RoleAssistant, Content: words(500)})
		}
		compacting := func(epoch int64) loop.Input {
			in := withHistory(inputOf(t, j, epoch, c), history...)
			in.Context = loop.ContextPolicy{Compact: true, CompactPercent: 90}
			return in
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		defer cancel()
		if cut {
			in := compacting(1)
			in.Record = runAfterError(in.Record, journal.ModelFailed, lost)
			if _, err := loop.Run(ctx, &in); !errors.Is(err, lost) {
				t.Fatalf("Run: %v, want it cut off", err)
			}
		}
		in := compacting(2)
		_, err := loop.Run(ctx, &in)
		if got := fmt.Sprint(s.waited); got != "[1m30s 1m30s]" {
			t.Errorf("waited %s, %v; want half of the time for one request for a summary, and the rest for the step", got, err)
		}
	})
}

// TestRetryAfterWithAnotherModel checks that a wait that the endpoint asks for is compared with the time that another
// model needs: that of the newest reply, or 10 seconds.
func TestRetryAfterWithAnotherModel(t *testing.T) {
	busy := func(after time.Duration) answer {
		return answer{err: &model.Error{Kind: model.RateLimited, Message: "busy", RetryAfter: after}}
	}
	slowStep := asksFor("", call("c1", "find", `{}`))
	slowStep.after = 30 * time.Second
	for name, tc := range map[string]struct {
		reason  string
		answers []answer
		want    string
		took    time.Duration
	}{
		"a short wait": {
			"the wait costs less than another model", []answer{busy(9 * time.Second), says("One.")}, "One.", 9 * time.Second,
		},
		"a long wait": {"the other model answers immediately", []answer{busy(11 * time.Second)}, "Two.", 0},
		"replies take longer": {
			"the newest reply took 30s", []answer{slowStep, busy(29 * time.Second), says("One.")}, "One.", 59 * time.Second,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				one, _ := candidate("one", 4, tc.answers...)
				two, _ := candidate("two", 1, says("Two."))
				find, _ := toolOf("find", tool.ReadOnly, result{content: "found"})
				in := withTools(input(t, one, two), find)
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
				defer cancel()
				begin := time.Now()
				_, err := loop.Run(ctx, &in)
				if took := time.Since(begin); err != nil || in.State.AnswerText() != tc.want || took != tc.took {
					t.Errorf("answer %q, %v after %s; want %q after %s: %s", in.State.AnswerText(), err, took, tc.want, tc.took, tc.reason)
				}
			})
		})
	}
}
