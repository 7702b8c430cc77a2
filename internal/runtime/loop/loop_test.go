package loop_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

func TestKindsOfFailure(t *testing.T) {
	for kind, tc := range map[model.ErrorKind]struct {
		reason             string
		retried, fallsBack bool
	}{
		model.RateLimited:     {"the rate limit is temporary", true, true},
		model.Overloaded:      {"the load is temporary", true, true},
		model.Timeout:         {"the endpoint may be quick again", true, true},
		model.Network:         {"the network may come back", true, true},
		model.Malformed:       {"the next reply may be whole", true, true},
		model.Auth:            {"the same key would be refused again, but another provider has its own", false, true},
		model.QuotaExceeded:   {"a wait does not help, but another account may have credit", false, true},
		model.Unusable:        {"the next model may have a provider", false, true},
		model.InvalidRequest:  {"the same request would be refused again, but another model may accept it", false, true},
		model.ContextLength:   {"the window of the next model may be larger: TestLargerWindow", false, true},
		model.ContentFiltered: {"a fallback must not bypass a filter", false, false},
		model.ReplyTooLong:    {"the reply is not paid for twice", false, false},
		model.Cancelled:       {"no answer is wanted", false, false},
	} {
		t.Run(string(kind), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				first, one := candidate("one", 3, fails(kind))
				second, two := candidate("two", 1, says("yes"))
				in := input(t, first, second)
				_, err := loop.Run(t.Context(), &in)
				if want := map[bool]int{true: 3, false: 1}[tc.retried]; len(one.asked) != want {
					t.Errorf("the model was asked %d times, want %d: %s", len(one.asked), want, tc.reason)
				}
				if got := len(two.asked) == 1; got != tc.fallsBack {
					t.Errorf("the next model was asked: %t, want %t: %s", got, tc.fallsBack, tc.reason)
				}
				if tc.fallsBack {
					step := in.State.LastStep()
					if err != nil || step == nil || step.Provider != "two" || two.prompt(0) != "for two" {
						t.Errorf("the last step is %+v, %v; want the answer of two, with a prompt that was prepared for two", step, err)
					}
					return
				}
				failure, ok := errors.AsType[*loop.Error](err)
				if !ok || failure.Kind != kind || failure.Message != "it is "+string(kind) {
					t.Errorf("Run: %v, want the failure itself", err)
				}
			})
		})
	}
}

func TestBackoff(t *testing.T) {
	for range 20 { // the waits have jitter
		synctest.Test(t, func(t *testing.T) {
			c, s := candidate("one", 6, fails(model.Overloaded))
			in := input(t, c)
			_, err := loop.Run(t.Context(), &in)
			if want := "it is Overloaded (6 attempts)"; err == nil || err.Error() != want {
				t.Errorf("Run: %v, want %q", err, want)
			}
			for i, bounds := range [][2]time.Duration{
				{500 * time.Millisecond, 1500 * time.Millisecond},
				{time.Second, 3 * time.Second},
				{2 * time.Second, 4 * time.Second},
				{2 * time.Second, 4 * time.Second},
				{2 * time.Second, 4 * time.Second},
			} {
				if wait := s.asked[i+1].Sub(s.asked[i]); wait < bounds[0] || wait > bounds[1] {
					t.Errorf("wait %d is %s, want %s to %s: it doubles, with jitter, and never exceeds maxBackoff", i+1,
						wait, bounds[0], bounds[1])
				}
			}
			for i, a := range in.State.FailedRequests {
				if a.Usage.InputTokens != 7 {
					t.Errorf("attempt %d is journalled as %+v", i+1, a)
				}
			}
			requests := in.State.Requests
			for i, r := range requests {
				if want := (loop.Request{
					Step: 1, Provider: "one", Model: c.Model, Place: 1, Attempt: i + 1, ID: s.requests[i].ID,
					EstimatedTokens: 6,
				}); r != want {
					t.Errorf("request %d is journalled as %+v, want %+v", i+1, r, want)
				}
			}
			if len(requests) != len(s.asked) {
				t.Errorf("%d requests are journalled, want one for each of the %d sent", len(requests), len(s.asked))
			}
		})
	}
}

func TestRetryAfter(t *testing.T) {
	asks := func(after time.Duration) answer {
		return answer{err: &model.Error{Kind: model.RateLimited, Message: "busy", RetryAfter: after}}
	}
	for name, tc := range map[string]struct {
		reason     string
		retryAfter time.Duration
		min, max   time.Duration
		err        string
	}{
		"longer than the backoff":  {"the wait of the endpoint counts", 9 * time.Second, 9 * time.Second, 9 * time.Second, ""},
		"shorter than the backoff": {"the backoff counts", time.Millisecond, 500 * time.Millisecond, 1500 * time.Millisecond, ""},
		"beyond the deadline": {
			"no wait begins that cannot end before the deadline", 90 * time.Second, 0, 0,
			"busy (the next attempt in 1m30s would be after the turn's deadline)",
		},
		"at the deadline": {
			"no wait begins that ends at the deadline", 60 * time.Second, 0, 0,
			"busy (the next attempt in 1m0s would be after the turn's deadline)",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, s := candidate("one", 2, asks(tc.retryAfter), says("yes"))
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				begin := time.Now()
				_, err := loop.Run(ctx, new(input(t, c)))
				if got := fmt.Sprint(err); tc.err != "" && got != tc.err || tc.err == "" && err != nil {
					t.Errorf("Run: %v, want %q: %s", err, tc.err, tc.reason)
				}
				if took := time.Since(begin); took < tc.min || took > tc.max {
					t.Errorf("took %s, want %s to %s: %s (asked %d times)", took, tc.min, tc.max, tc.reason, len(s.asked))
				}
			})
		})
	}
}

func TestShortWaitInTheMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := candidate("one", 2, answer{err: &model.Error{Kind: model.RateLimited, Message: "busy", RetryAfter: 250 * time.Millisecond}})
		c.Retry.InitialBackoff = time.Millisecond
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err := loop.Run(ctx, new(input(t, c)))
		if want := "busy (the next attempt in 250ms would be after the turn's deadline)"; err == nil || err.Error() != want {
			t.Errorf("Run: %v, want %q", err, want)
		}
	})
}

func TestChainFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, _ := candidate("one", 2, fails(model.Network))
		two, _ := candidate("two", 1, fails(model.Auth))
		_, err := loop.Run(t.Context(), new(input(t, one, two)))
		failure, ok := errors.AsType[*loop.Error](err)
		const want = "none of the 2 models that were tried answered; one/m: it is Network (2 attempts); two/m: it is Auth"
		if !ok || failure.Kind != model.Auth || failure.Message != want {
			t.Errorf("Run: %v, want %q: each model's last failure", err, want)
		}
	})
}

func TestAbortedRequestsCount(t *testing.T) {
	cause := errors.New("the executor stops")
	for name, tc := range map[string]struct {
		reason string
		do     func(cancel context.CancelCauseFunc, interrupt chan struct{})
		err    error
		want   []loop.FailedRequest
	}{
		"cancelled in a request": {
			"the request and its usage count", func(cancel context.CancelCauseFunc, _ chan struct{}) {
				time.AfterFunc(3*time.Second, func() { cancel(cause) })
			}, cause,
			[]loop.FailedRequest{{
				Step: 1, Provider: "one", Model: "m", Place: 1, Kind: model.Cancelled,
				Message: "the request was cancelled", Usage: model.Usage{InputTokens: 3}, DurationMS: 3000,
			}},
		},
		"interrupted in a request": {
			"a running request finishes, and its answer is kept", func(_ context.CancelCauseFunc, interrupt chan struct{}) {
				time.AfterFunc(3*time.Second, func() { close(interrupt) })
			}, nil, nil,
		},
		"interrupted before": {
			"no request is sent",
			func(_ context.CancelCauseFunc, interrupt chan struct{}) { close(interrupt) }, loop.ErrInterrupted, nil,
		},
		"cancelled before": {"no request is sent", func(cancel context.CancelCauseFunc, _ chan struct{}) { cancel(cause) }, cause, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				slow := says("yes")
				slow.after, slow.reply.Usage = 10*time.Second, model.Usage{InputTokens: 3}
				c, _ := candidate("one", 2, slow)
				in := input(t, c)
				interrupt := make(chan struct{})
				in.Interrupt = interrupt
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				tc.do(cancel, interrupt)
				if _, err := loop.Run(ctx, &in); !errors.Is(err, tc.err) {
					t.Errorf("Run: %v, want %v: %s", err, tc.err, tc.reason)
				}
				if diff := cmp.Diff(tc.want, in.State.FailedRequests); diff != "" {
					t.Errorf("%s: -want +got:\n%s", tc.reason, diff)
				}
			})
		})
	}
}

func TestStopsWhileWaiting(t *testing.T) {
	cause := errors.New("the executor stops")
	for name, want := range map[string]error{"interrupt": loop.ErrInterrupted, "cancel": cause} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, s := candidate("one", 5, answer{err: &model.Error{Kind: model.RateLimited, RetryAfter: time.Hour}})
				in := input(t, c)
				interrupt := make(chan struct{})
				in.Interrupt = interrupt
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				begin := time.Now()
				time.AfterFunc(time.Minute, func() {
					if name == "cancel" {
						cancel(cause)
						return
					}
					close(interrupt)
				})
				_, err := loop.Run(ctx, &in)
				if !errors.Is(err, want) || time.Since(begin) != time.Minute || len(s.asked) != 1 {
					t.Errorf("Run: %v after %s and %d requests, want %v immediately and no more requests", err,
						time.Since(begin), len(s.asked), want)
				}
			})
		})
	}
}
