package pace_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/capstan-dev/capstan/internal/pace"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// TestCircuit checks which ends of requests open the circuit.
func TestCircuit(t *testing.T) {
	limited := failure(model.RateLimited, 0)
	own := failure(model.Timeout, 0)
	own.OwnTimeout = true
	memory := failure(model.Overloaded, 0)
	memory.Failure.Err = model.ErrOwnMemory
	unsent := failure(model.Network, 0)
	unsent.Failure.Unsent = true
	network := failure(model.Network, 0)
	notReached := failure(model.Network, 0)
	notReached.Failure.NotReached = true
	times := func(n int, o pace.Outcome) []pace.Outcome { return slices.Repeat([]pace.Outcome{o}, n) }
	for name, tc := range map[string]struct {
		reason string
		ends   []pace.Outcome
		open   bool
	}{
		"network":    {"five failures are enough", times(5, network), true},
		"refused":    {"an endpoint that refuses connections has failed", times(5, notReached), true},
		"four":       {"four failures are not enough", times(4, network), false},
		"overload":   {"a status of 5xx is a failure", times(5, failure(model.Overloaded, 0)), true},
		"timeouts":   {"an endpoint that does not answer has failed", times(5, failure(model.Timeout, 0)), true},
		"own bounds": {"a slow model is not a dead model", times(9, own), false},
		"memory":     {"this process had no memory left", times(9, memory), false},
		"unsent":     {"nothing was sent", times(9, unsent), false},
		"cancelled":  {"the caller has cancelled the requests", times(9, failure(model.Cancelled, 0)), false},
		"refusals":   {"an endpoint that refuses a request works", times(9, failure(model.InvalidRequest, 0)), false},
		"an answer between": {
			"the failures must be consecutive", append(slices.Repeat([]pace.Outcome{network, network, {}}, 4), limited), false,
		},
		"a refusal between": {
			"a refusal shows that the endpoint works", append(times(4, network), failure(model.Auth, 0), network), false,
		},
		"a cancellation between": {
			"a cancellation says nothing about the endpoint",
			append(times(4, network), failure(model.Cancelled, 0), failure(model.Overloaded, 0)), true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t, pace.Limits{})
				for _, o := range tc.ends {
					h.end(1, o)
				}
				if open := len(h.Use().Open) > 0; open != tc.open {
					t.Errorf("open: %v, want %v: %s", open, tc.open, tc.reason)
				}
			})
		})
	}
}

// TestCircuitAmongNamespaces checks that requests of one namespace to which the endpoint answers with HTTP 5xx, for
// example because they are malformed, do not open the circuit for other namespaces whose requests succeed.
func TestCircuitAmongNamespaces(t *testing.T) {
	type step func(*harness)
	ends := func(namespace string, times int, o pace.Outcome) step {
		return func(h *harness) {
			for range times {
				h.enter(request(namespace, "x")).Done(o)
			}
		}
	}
	ok := func(namespace string) step { return ends(namespace, 1, pace.Outcome{}) }
	fails := func(namespace string, times int) step { return ends(namespace, times, failure(model.Overloaded, 0)) }
	passes := func(d time.Duration) step { return func(*harness) { time.Sleep(d) } }
	begins := func(namespace string, after time.Duration) step {
		return func(h *harness) {
			p := h.enter(request(namespace, "x"))
			time.Sleep(after)
			p.ObserveBegin()
		}
	}
	// long sends a request whose answer takes a minute from its beginning to its end.
	long := func(h *harness) {
		p := h.enter(request("b", "x"))
		p.ObserveBegin()
		time.Sleep(time.Minute)
		p.Done(pace.Outcome{})
	}
	for name, tc := range map[string]struct {
		reason string
		steps  []step
		open   bool
	}{
		"another succeeded": {"only requests of a fail", []step{ok("b"), passes(19 * time.Second), fails("a", 20)}, false},
		"another began":     {"an answer that begins is enough", []step{begins("b", 0), fails("a", 20)}, false},
		"another ended":     {"the endpoint has worked until now", []step{long, fails("a", 20)}, false},
		"both succeeded":    {"the endpoint works for b", []step{ok("b"), ok("a"), ok("a"), fails("a", 20)}, false},
		"many failures": {
			"the endpoint may have failed while b is idle",
			[]step{begins("b", time.Minute), fails("a", 50)},
			true,
		},
		"only one namespace":        {"no other namespace shows that the endpoint works", []step{ok("a"), fails("a", 5)}, true},
		"another succeeded earlier": {"the endpoint may have failed since", []step{ok("b"), passes(20 * time.Second), fails("a", 5)}, true},
		"another succeeded earlier, from a slow model": {
			"an answer takes long to begin", []step{begins("b", time.Minute), passes(time.Minute), fails("a", 5)}, false,
		},
		"another failed later":  {"the endpoint fails for both", []step{ok("b"), fails("a", 9), fails("b", 1)}, true},
		"another failed first":  {"the endpoint fails for both", []step{ok("b"), fails("b", 1), fails("a", 4)}, true},
		"another failed before": {"b has succeeded since", []step{fails("b", 4), ok("b"), fails("a", 5)}, false},
		"another was refused": {
			"a refusal does not show that the model works", []step{ends("b", 1, failure(model.InvalidRequest, 0)), fails("a", 5)}, true,
		},
		"failures of the network": {"no request causes them", []step{ok("b"), ends("a", 5, failure(model.Network, 0))}, true},
		"one failure of the network": {
			"the endpoint may have failed", []step{ok("b"), fails("a", 4), ends("a", 1, failure(model.Network, 0))}, true,
		},
		"failures over a longer time": {
			"the answer for b is too old", []step{ok("b"), fails("a", 9), passes(20 * time.Second), fails("a", 1)}, true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t, pace.Limits{})
				for _, step := range tc.steps {
					step(h)
				}
				if open := len(h.Use().Open) > 0; open != tc.open {
					t.Errorf("open: %t, want %t: %s", open, tc.open, tc.reason)
				}
			})
		})
	}
}

// TestOpenCircuit checks that one request tries the endpoint, and that the others follow slowly once it works.
func TestOpenCircuit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, pace.Limits{})
		h.end(5, failure(model.Network, 0))
		h.send("first", request("a", "x"), time.Second, failure(model.Network, 0))
		h.send("second", request("a", "x"), time.Second, pace.Outcome{})
		for range 7 {
			h.send("n", request("a", "x"), time.Minute, pace.Outcome{})
		}
		if got, want := h.order(), "first second n n n n n n n"; got != want {
			t.Errorf("order %s, want %s", got, want)
		}
		// The circuit opens at 0 and 11, and closes at 22. Then twice as many may be sent each second.
		want := []float64{10, 21, 22, 23, 23.585, 24, 24.322, 24.585, 24.807}
		if got := h.seconds(); !nearly(got, want) {
			t.Errorf("let in after %v seconds, want %v", got, want)
		}
		h.end(20, pace.Outcome{})
	})
}

// TestTrialThatHangs checks that an endpoint is tried again although the first trial does not end, and that a late end
// of the first trial closes the circuit only if the first trial has succeeded.
func TestTrialThatHangs(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		late   pace.Outcome // of the first trial, while the second one runs
		want   []float64
	}{
		"the first one hangs":    {"one request tries it every 30 s", failure(model.Cancelled, 0), []float64{10, 40, 70, 70, 71}},
		"the first one fails":    {"the second one decides", failure(model.Network, 0), []float64{10, 40, 70, 70, 71}},
		"the first one succeeds": {"the endpoint works", pace.Outcome{}, []float64{10, 40, 45, 46, 46.585}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t, pace.Limits{})
				h.end(5, failure(model.Network, 0))
				h.send("first", request("a", "x"), 35*time.Second, tc.late)
				h.send("second", request("a", "x"), time.Hour, pace.Outcome{})
				for range 3 {
					h.send("n", request("a", "x"), 0, pace.Outcome{})
				}
				if got := h.seconds(); !nearly(got, tc.want) {
					t.Errorf("let in after %v seconds, want %v: %s", got, tc.want, tc.reason)
				}
				h.end(20, pace.Outcome{})
			})
		})
	}
}

// TestTrial checks how long a request that tries a failed endpoint holds back the others.
func TestTrial(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		// begins is when the answer to the first trial begins, after the trial has begun. 0 means never.
		begins time.Duration
		// end is the end of the first trial, which takes 5 minutes.
		end  pace.Outcome
		want []float64
	}{
		"an answer that begins": {"the endpoint works, although the whole answer takes long", time.Second, pace.Outcome{}, []float64{1, 2}},
		"no answer":             {"another request tries, and its answer is enough", 0, failure(model.Cancelled, 0), []float64{30, 31}},
		"a late answer": {
			"the endpoint works, so that requests need not wait for the second trial", 50 * time.Second, pace.Outcome{}, []float64{30, 50},
		},
		"a failure after the answer has begun": {
			"the circuit is already closed", time.Second, failure(model.Network, 0), []float64{1, 2},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t, pace.Limits{})
				h.end(5, failure(model.Network, 0))
				time.Sleep(11 * time.Second)
				first := h.enter(request("a", "x"))
				h.start = time.Now()
				h.all.Go(func() {
					time.Sleep(tc.begins)
					if tc.begins > 0 {
						first.ObserveBegin()
					}
					time.Sleep(5*time.Minute - tc.begins)
					first.Done(tc.end)
				})
				takes := time.Second
				if tc.begins > 30*time.Second {
					takes = time.Hour // the second trial never ends
				}
				for range 2 {
					h.send("", request("a", "x"), takes, pace.Outcome{})
				}
				if got := h.seconds(); !nearly(got, tc.want) {
					t.Errorf("let in after %v seconds, want %v: %s", got, tc.want, tc.reason)
				}
				if open := h.Use().Open; len(open) > 0 {
					t.Errorf("the circuit is open: %s", tc.reason)
				}
			})
		})
	}
}

// TestCircuitIsForgotten checks that the circuit of an unused model does not count as open for ever.
func TestCircuitIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, pace.Limits{})
		h.end(5, failure(model.Network, 0))
		time.Sleep(time.Minute)
		if len(h.Use().Open) != 1 || h.IsUnused(0) {
			t.Error("the circuit does not count as open, although no request has tried the endpoint")
		}
		time.Sleep(5 * time.Minute)
		if len(h.Use().Open) != 0 || !h.IsUnused(0) || h.IsUnused(time.Hour) {
			t.Error("the circuit counts as open, although nothing is known about the endpoint")
		}
	})
}

// TestFallbackDoesNotWait checks which requests are refused while an endpoint fails or asks for a pause.
func TestFallbackDoesNotWait(t *testing.T) {
	const noFallback, fallback = false, true
	for name, tc := range map[string]struct {
		reason   string
		before   func(h *harness)
		fallback bool
		deadline time.Duration
		after    float64
		want     string
	}{
		"open, another model": {
			"the other model answers without a wait", func(h *harness) { h.end(5, failure(model.Network, 0)) }, fallback, time.Minute, 0,
			`provider "main": no request was sent, because the last 5 requests to the model failed: it is Network`,
		},
		"open, no other model": {
			"the endpoint is tried again", func(h *harness) { h.end(5, failure(model.Network, 0)) }, noFallback, time.Minute, 10, "",
		},
		"open beyond the deadline": {
			"the wait would be useless", func(h *harness) { h.end(5, failure(model.Network, 0)) }, noFallback, 5 * time.Second, 0,
			`provider "main": no request was sent, because the last 5 requests to the model failed: it is Network`,
		},
		"half open": {
			"one request tries the endpoint, even if it has a fallback",
			func(h *harness) { h.end(5, failure(model.Network, 0)); time.Sleep(11 * time.Second) }, fallback, time.Minute, 11, "",
		},
		"being tried": {
			"one request is enough", func(h *harness) {
				h.end(5, failure(model.Network, 0))
				time.Sleep(11 * time.Second)
				h.send("probe", request("a", "x"), time.Minute, pace.Outcome{})
			}, fallback, time.Minute, 11,
			`provider "main": no request was sent, because the last 5 requests to the model failed: it is Network`,
		},
		"short pause, another model": {
			"the pause is shorter than an answer of the other model",
			func(h *harness) { h.end(1, failure(model.RateLimited, 2*time.Second)) },
			fallback, time.Minute, 2, "",
		},
		"long pause, another model": {
			"an answer of the other model is faster",
			func(h *harness) { h.end(1, failure(model.RateLimited, 30*time.Second)) }, fallback, time.Minute,
			0, `provider "main": no request was sent, because the endpoint accepts none for 30s`,
		},
		"long pause, no other model": {
			"the pause ends before the deadline",
			func(h *harness) { h.end(1, failure(model.RateLimited, 30*time.Second)) }, noFallback, time.Minute,
			30, "",
		},
		"pause beyond the deadline": {
			"the wait would be useless", func(h *harness) { h.end(1, failure(model.RateLimited, 90*time.Second)) }, noFallback,
			time.Minute, 0, `provider "main": no request was sent, because the endpoint accepts none for 1m30s`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t, pace.Limits{})
				tc.before(h)
				ctx, cancel := context.WithTimeout(t.Context(), tc.deadline)
				defer cancel()
				r := request("a", "x")
				r.Fallback, r.FallbackTime = tc.fallback, 10*time.Second
				p, err := h.Enter(ctx, r)
				after := time.Since(h.start).Round(10 * time.Millisecond).Seconds()
				got := ""
				if err != nil {
					got = err.Error()
					if e := model.AsError(err); !e.Unsent {
						t.Errorf("%v does not count as unsent", err)
					}
				} else {
					p.Done(pace.Outcome{})
				}
				if got != tc.want || after != tc.after {
					t.Errorf("%q after %v seconds, want %q after %v: %s", got, after, tc.want, tc.after, tc.reason)
				}
				h.all.Wait()
			})
		})
	}
}

// TestWaitingRequestsFallBack checks that requests that already wait fall back when the circuit opens.
func TestWaitingRequestsFallBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, pace.Limits{MaxConcurrent: 1})
		for range 5 {
			h.send("f", request("a", "x"), time.Second, failure(model.Overloaded, 0))
		}
		r := request("a", "x")
		r.Fallback = true
		h.send("falls back", r, time.Second, pace.Outcome{})
		h.send("waits", request("a", "x"), time.Second, pace.Outcome{})
		want := `f f f f f falls back: provider "main": no request was sent, because the last 5 requests to the model failed: ` +
			`it is Overloaded waits`
		if got := h.order(); got != want {
			t.Errorf("order %s, want %s", got, want)
		}
		if got, want := h.seconds()[5:], []float64{5, 15}; !nearly(got, want) {
			t.Errorf("let in after %v seconds, want %v", got, want)
		}
	})
}

// TestRefusalsSlowAllRequestsDown checks the pauses after refusals of an endpoint that does not say how long to wait.
func TestRefusalsSlowAllRequestsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, pace.Limits{})
		for range 3 { // requests that were sent together count as one refusal
			h.send("", request("a", "x"), time.Second, failure(model.RateLimited, 0))
		}
		time.Sleep(time.Second)
		synctest.Wait()
		for range 8 {
			h.send("", request("a", "x"), 100*time.Millisecond, failure(model.RateLimited, 0))
		}
		// Each pause is twice as long as the one before, and at most 30 s.
		want := []float64{0, 0, 0, 2, 4.1, 8.2, 16.3, 32.4, 62.5, 92.6, 122.7}
		if got := h.seconds(); !nearly(got, want) {
			t.Errorf("let in after %v seconds, want %v", got, want)
		}
	})
}

// TestStatedLimits checks when requests are sent under the limits that an endpoint states, whatever it states.
func TestStatedLimits(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		stated model.StatedLimits
		want   []float64
	}{
		"none":         {"nothing waits", model.StatedLimits{}, []float64{0, 0, 0}},
		"two requests": {"the third request waits", requestsLeft(2, 5*time.Second), []float64{0, 0, 5}},
		"no request":   {"all wait", requestsLeft(0, 5*time.Second), []float64{5, 5, 5}},
		"a long wait":  {"the pace grows after the wait", requestsLeft(0, 20*time.Second), []float64{20, 21, 21.585}},
		"tokens":       {"each prompt has 100", tokensLeft(250, 5*time.Second), []float64{0, 0, 5}},
		"too few":      {"no prompt fits, although some tokens are left", tokensLeft(50, 20*time.Second), []float64{20, 21, 21.585}},
		"no time":      {"a limit without a reset is ignored", requestsLeft(0, 0), []float64{0, 0, 0}},
		"for ever":     {"the wait is bounded", requestsLeft(0, math.MaxInt64), []float64{300, 301, 301.585}},
		"in the past":  {"the wait is over", requestsLeft(0, math.MinInt64), []float64{0, 0, 0}},
		"negative":     {"no requests are left", requestsLeft(math.MinInt64, time.Second), []float64{1, 1, 1}},
		"very many":    {"nothing waits", requestsLeft(math.MaxInt64, time.Hour), []float64{0, 0, 0}},
		"contradictions": {"the stricter limit counts", model.StatedLimits{
			Requests: model.StatedLimit{Remaining: 9, Reset: time.Second}, Tokens: model.StatedLimit{Remaining: 0, Reset: 2 * time.Second},
		}, []float64{2, 2, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t, pace.Limits{})
				p := h.enter(request("a", "x"))
				p.ObserveLimits(tc.stated)
				for range 3 {
					r := request("a", "x")
					r.Tokens = 100
					h.send("", r, 0, pace.Outcome{})
				}
				if got := h.seconds(); !nearly(got, tc.want) {
					t.Errorf("let in after %v seconds, want %v: %s", got, tc.want, tc.reason)
				}
				p.Done(pace.Outcome{})
				p.ObserveLimits(requestsLeft(0, time.Hour)) // has no effect after Done
				time.Sleep(time.Minute)
				h.enter(request("a", "x")).Done(pace.Outcome{})
			})
		})
	}
}

// requestsLeft returns a limit of requests that an endpoint states.
func requestsLeft(remaining int64, reset time.Duration) model.StatedLimits {
	return model.StatedLimits{Requests: model.StatedLimit{Remaining: remaining, Reset: reset}}
}

// tokensLeft returns a limit of tokens that an endpoint states.
func tokensLeft(remaining int64, reset time.Duration) model.StatedLimits {
	return model.StatedLimits{Tokens: model.StatedLimit{Remaining: remaining, Reset: reset}}
}

// TestEndOfStatedLimits checks that many requests that have waited for the limits of an endpoint are not all sent at
// the same time, however short the wait was according to the newest answer, and whatever ends the wait.
func TestEndOfStatedLimits(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		// after is the time between the first answer and another answer that states limits.
		after  time.Duration
		second model.StatedLimits
		want   []int // the requests in each second from the end of the wait
	}{
		"one answer": {"the wait was long", time.Hour, model.StatedLimits{}, []int{1, 2, 4, 8, 16, 32}},
		"an answer shortly before the reset": {
			"the requests have waited since the first answer", 18 * time.Second, requestsLeft(0, 2*time.Second), []int{1, 2, 4, 8, 16, 32},
		},
		"an answer that allows many": {
			"the requests have waited for long", 20*time.Second - time.Millisecond, requestsLeft(1000, time.Minute),
			[]int{1, 2, 4, 8, 16, 32},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t, pace.Limits{})
				first, second := h.enter(request("a", "x")), h.enter(request("a", "x"))
				first.ObserveLimits(requestsLeft(1, 20*time.Second))
				time.AfterFunc(tc.after, func() { second.ObserveLimits(tc.second) })
				for range 500 {
					h.send("", request("a", "x"), time.Minute, pace.Outcome{})
				}
				got := make([]int, len(tc.want))
				for _, at := range h.seconds() {
					if second := int(at+.001) - 20; second < len(got) {
						got[second]++
					}
				}
				if !slices.Equal(got, tc.want) {
					t.Errorf("%v requests in the seconds after the wait, want %v: %s", got, tc.want, tc.reason)
				}
			})
		})
	}
}

// TestShortStatedLimits checks that the pace after a short wait for the limits of an endpoint is higher than after a
// long wait, and that it is bounded, too.
func TestShortStatedLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, pace.Limits{})
		h.enter(request("a", "x")).ObserveLimits(requestsLeft(0, 6*time.Second))
		for range 100 {
			h.send("", request("a", "x"), time.Minute, pace.Outcome{})
		}
		got := make([]int, 3)
		for _, at := range h.seconds() {
			got[int(at+.001)-6]++
		}
		if want := []int{31, 32, 37}; !slices.Equal(got, want) {
			t.Errorf("%v requests in the seconds after the wait, want %v", got, want)
		}
	})
}

// TestStatedLimitsOfWaitingRequests checks that a request that already waits falls back as soon as an answer states
// that it would have to wait for long, although the limits are not used up.
func TestStatedLimitsOfWaitingRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, pace.Limits{MaxConcurrent: 1})
		running := h.enter(request("a", "x"))
		long, short := request("a", "long"), request("a", "short")
		long.Tokens, short.Tokens = 100, 10
		for _, r := range []*pace.Request{long, short} {
			r.Fallback, r.FallbackTime = true, 10*time.Second
			h.send(r.Agent, r, 0, pace.Outcome{})
		}
		time.Sleep(time.Second)
		running.ObserveLimits(tokensLeft(50, time.Minute))
		time.Sleep(time.Second)
		running.Done(pace.Outcome{})
		want := `long: provider "main": no request was sent, because the endpoint accepts none for 1m0s short`
		if got := h.order(); got != want {
			t.Errorf("order %s, want %s", got, want)
		}
		if got, want := h.seconds(), []float64{1, 2}; !nearly(got, want) {
			t.Errorf("let in after %v seconds, want %v", got, want)
		}
	})
}

// TestUnsentRequestsGiveStatedLimitsBack checks that requests that were let in and not sent do not use up the limits
// that an endpoint states.
func TestUnsentRequestsGiveStatedLimitsBack(t *testing.T) {
	unsent := pace.Outcome{Unsent: true}
	for name, tc := range map[string]struct {
		reason string
		stated model.StatedLimits
		// before and after are the numbers of requests that are let in before and after the limits are stated. In both
		// groups, the first request is sent, and the other requests end later without having been sent.
		before, after int
		// late is true if the unsent requests of the first group end after the limits were stated.
		late bool
		want []float64
	}{
		"requests":                   {"one of two was sent", requestsLeft(2, 9*time.Second), 0, 2, false, []float64{0, 9, 9}},
		"tokens":                     {"one of two was sent", tokensLeft(250, 9*time.Second), 0, 2, false, []float64{0, 9, 9}},
		"ended before the statement": {"one of three was sent", requestsLeft(2, 9*time.Second), 3, 0, false, []float64{0, 9, 9}},
		"ended after the statement":  {"one of three was sent", requestsLeft(2, 9*time.Second), 3, 0, true, []float64{0, 9, 9}},
		"tokens after the statement": {
			"the endpoint does not count unsent requests", tokensLeft(250, 9*time.Second), 3, 0, true, []float64{0, 0, 9},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t, pace.Limits{})
				enter := func(n int) (sent, others []*pace.Permit) {
					for range n {
						r := request("a", "x")
						r.Tokens = 100
						others = append(others, h.enter(r))
					}
					n = min(1, n)
					return others[:n], others[n:]
				}
				end := func(all []*pace.Permit, o pace.Outcome) {
					for _, p := range all {
						p.Done(o)
					}
				}
				stating := h.enter(request("a", "x"))
				sent, others := enter(tc.before)
				if !tc.late {
					end(others, unsent)
				}
				stating.ObserveLimits(tc.stated)
				sentAfter, othersAfter := enter(tc.after)
				for range 3 {
					r := request("a", "x")
					r.Tokens = 100
					h.send("", r, 0, pace.Outcome{})
				}
				if tc.late {
					end(others, unsent)
				}
				end(othersAfter, unsent)
				if got := h.seconds(); !nearly(got, tc.want) {
					t.Errorf("let in after %v seconds, want %v: %s", got, tc.want, tc.reason)
				}
				end(slices.Concat([]*pace.Permit{stating}, sent, sentAfter), pace.Outcome{})
			})
		})
	}
}

// TestManyModels checks that Agents cannot fill the memory with names of models.
func TestManyModels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, pace.Limits{})
		for i := range 1000 {
			r := request("a", "x")
			r.Model = strings.Repeat("m", i)
			h.enter(r).Done(pace.Outcome{})
		}
		if n := h.Models(); n > 65 {
			t.Errorf("the gate keeps the state of %d models, want at most 65", n)
		}
	})
}

// TestLimitOfOneOfManyModels checks that the limits of a model also apply if requests to many other models follow, and
// that the state of the model is kept only for as long as its limits need it.
func TestLimitOfOneOfManyModels(t *testing.T) {
	for name, limits := range map[string]pace.Limits{"requests": {RequestsPerMinute: 1}, "tokens": {TokensPerMinute: 1}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t, pace.Limits{})
				h.SetLimits(pace.Limits{}, map[string]pace.Limits{"m": limits}, 1)
				others := func() {
					for i := range 1000 {
						r := request("a", "x")
						r.Model = strings.Repeat("n", i+1)
						h.enter(r).Done(pace.Outcome{Tokens: 1})
					}
				}
				r := request("a", "x")
				r.Tokens = 1
				h.send("first", r, 0, pace.Outcome{Tokens: 1})
				others()
				h.send("second", r, 0, pace.Outcome{Tokens: 1})
				if got := h.seconds(); !slices.Equal(got, []float64{0, 60}) {
					t.Errorf("the requests were let in after %v seconds, want a minute between them", got)
				}
				time.Sleep(time.Minute)
				others()
				if n := h.Models(); n > 65 {
					t.Errorf("the gate keeps the state of %d models, want at most 65", n)
				}
			})
		})
	}
}

// silence is the end of a request whose Turn has no time left, without an answer.
func silence() pace.Outcome {
	o := failure(model.Cancelled, 0)
	o.Silent = true
	return o
}

// TestSilentEndpoint checks when an endpoint that accepts requests without an answer counts as failed. Time is virtual.
func TestSilentEndpoint(t *testing.T) {
	// wait sends n requests at the same time, which end in silence.
	wait := func(n int, takes time.Duration) func(*harness) {
		return func(h *harness) {
			for range n {
				h.send("n", request("a", "x"), takes, silence())
			}
			h.all.Wait()
		}
	}
	answer := func(begins time.Duration) func(*harness) {
		return func(h *harness) {
			p := h.enter(request("a", "x"))
			time.Sleep(begins)
			p.ObserveBegin()
			p.Done(pace.Outcome{})
		}
	}
	for name, tc := range map[string]struct {
		reason string
		steps  []func(*harness)
		open   bool
	}{
		"five":      {"none of them got an answer", []func(*harness){wait(5, time.Minute)}, true},
		"in turn":   {"the requests need not overlap", []func(*harness){wait(3, time.Minute), wait(2, time.Minute)}, true},
		"four":      {"four are not enough", []func(*harness){wait(4, time.Minute)}, false},
		"short":     {"the requests have not waited long enough", []func(*harness){wait(9, 19*time.Second)}, false},
		"an answer": {"the endpoint works", []func(*harness){wait(4, time.Minute), answer(time.Second), wait(4, time.Minute)}, false},
		"a slow model that refuses requests": {
			"refusals say nothing about how long an answer takes",
			[]func(*harness){
				answer(time.Minute), func(h *harness) { h.end(20, failure(model.InvalidRequest, 0)) }, wait(9, 100*time.Second),
			},
			false,
		},
		"a slow model": {
			"the last answer took a minute to begin", []func(*harness){answer(time.Minute), wait(9, 100*time.Second)}, false,
		},
		"slower than ever": {
			"no answer took so long to begin", []func(*harness){answer(time.Minute), wait(5, 2*time.Minute)}, true,
		},
		"a busy model": {
			"an answer has begun while the requests waited",
			[]func(*harness){func(h *harness) {
				for range 9 {
					h.send("n", request("a", "x"), 100*time.Second, silence())
				}
				time.Sleep(time.Second)
				answer(10 * time.Second)(h)
				h.all.Wait()
			}},
			false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t, pace.Limits{})
				for _, step := range tc.steps {
					step(h)
				}
				if open := len(h.Use().Open) > 0; open != tc.open {
					t.Errorf("open: %t, want %t: %s", open, tc.open, tc.reason)
				}
			})
		})
	}
}

// TestAnswerAfterSilence checks that an answer to any request closes a circuit that silence has opened. While the
// circuit is open, a request with a fallback must not wait.
func TestAnswerAfterSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, pace.Limits{})
		slow := h.enter(request("a", "x"))
		for range 5 {
			h.send("n", request("a", "x"), time.Minute, silence())
		}
		h.all.Wait()
		other := request("a", "x")
		other.Fallback = true
		_, err := h.Enter(t.Context(), other)
		const want = `provider "main": no request was sent, because the last 5 requests to the model failed: the endpoint has ` +
			`accepted 5 requests in a row, and has not begun an answer to any of them in its time`
		if err == nil || err.Error() != want || model.AsError(err).Kind != model.Timeout {
			t.Errorf("Enter: %v, want %q", err, want)
		}
		h.send("trial", request("a", "x"), time.Hour, silence())
		h.send("next", request("a", "x"), 0, pace.Outcome{})
		time.Sleep(15 * time.Second)
		slow.ObserveBegin()
		synctest.Wait()
		if open := h.Use().Open; len(open) > 0 {
			t.Errorf("open: %v, want none after the answer", open)
		}
		slow.Done(pace.Outcome{})
		h.all.Wait()
		if got, want := h.seconds(), []float64{0, 0, 0, 0, 0, 70, 75}; !nearly(got, want) {
			t.Errorf("let in after %v seconds, want %v", got, want)
		}
	})
}

// TestSilentTurns checks which ends of requests behind a gate count as silence.
func TestSilentTurns(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		// first is the request's own time limit for the first part of an answer; 0 if it has none.
		first time.Duration
		// answer is the time after which an answer begins; 0 if no answer begins.
		answer time.Duration
		cancel bool
		open   bool
	}{
		"the Turn's time is over": {"no answer began", 0, 0, false, true},
		"an own bound":            {"no answer began in half of the time", 30 * time.Second, 0, false, true},
		"an answer has begun":     {"the model is slow", 0, 50 * time.Second, false, false},
		"cancelled":               {"a person has cancelled the Turn", 0, 0, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				gate := pace.New("main")
				p := gate.Provider(pace.Caller{Namespace: "a"}, silentModel{tc.answer})
				for range 5 {
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					if tc.cancel {
						time.AfterFunc(50*time.Second, cancel)
					}
					_, err := p.Generate(ctx, &model.Request{FirstEventTimeout: tc.first})
					cancel()
					if err == nil {
						t.Fatal("the model has answered")
					}
				}
				if open := len(gate.Use().Open) > 0; open != tc.open {
					t.Errorf("open: %t, want %t: %s", open, tc.open, tc.reason)
				}
			})
		})
	}
}

// silentModel begins an answer after some time, or never, and never finishes one.
type silentModel struct{ begins time.Duration }

// Generate waits until a bound of the request is reached, like an adapter.
func (m silentModel) Generate(ctx context.Context, r *model.Request) (*model.Reply, error) {
	var first, begins <-chan time.Time
	if r.FirstEventTimeout > 0 {
		first = time.After(r.FirstEventTimeout)
	}
	if m.begins > 0 {
		begins = time.After(m.begins)
	}
	for {
		select {
		case <-begins:
			r.Observer.ObserveBegin()
			first = nil
		case <-first:
			return nil, &model.Error{Kind: model.Timeout, MayBeBilled: true}
		case <-ctx.Done():
			return nil, &model.Error{Kind: model.Cancelled, MayBeBilled: true}
		}
	}
}

// TestLateRequests checks that requests that were let in long ago, as after an outage of the journal, are not all sent
// at the same time.
func TestLateRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := pace.New("main")
		gate.SetLimits(pace.Limits{RequestsPerMinute: 60}, nil, 1)
		var mu sync.Mutex
		var sent []float64
		begin := time.Now()
		p := gate.Provider(pace.Caller{Namespace: "a"}, generate(func(context.Context, *model.Request) (*model.Reply, error) {
			mu.Lock()
			defer mu.Unlock()
			sent = append(sent, time.Since(begin).Round(time.Millisecond).Seconds())
			return &model.Reply{}, nil
		})).(model.Gate)
		var all sync.WaitGroup
		stop := make(chan struct{})
		for i := range 6 {
			ticket, err := p.Enter(t.Context(), model.Wait{Model: "m", Stop: stop})
			if err != nil {
				t.Fatal(err)
			}
			all.Go(func() {
				time.Sleep(time.Until(begin.Add(time.Minute)))
				_, err := ticket.Generate(t.Context(), &model.Request{Model: "m"})
				if stopped := errors.Is(err, model.ErrStopped); err != nil && (!stopped || !model.AsError(err).Unsent) {
					t.Errorf("request %d: %v", i, err)
				}
			})
		}
		time.Sleep(time.Until(begin.Add(time.Minute + 3500*time.Millisecond)))
		close(stop)
		all.Wait()
		if want := []float64{60, 61, 62, 63}; !nearly(sent, want) {
			t.Errorf("sent after %v seconds, want %v, and the other requests stopped", sent, want)
		}
		fresh, err := p.Enter(t.Context(), model.Wait{Model: "m"})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		before := time.Now()
		if _, err := fresh.Generate(t.Context(), &model.Request{Model: "m"}); err != nil || time.Now().After(before) {
			t.Errorf("a fresh request was sent after %s: %v", time.Since(before), err)
		}
	})
}

// generate is a model.Provider.
type generate func(context.Context, *model.Request) (*model.Reply, error)

// Generate calls the function.
func (g generate) Generate(ctx context.Context, r *model.Request) (*model.Reply, error) {
	return g(ctx, r)
}
