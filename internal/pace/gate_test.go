package pace_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/capstan-dev/capstan/internal/pace"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// harness sends requests through a gate, and records which request was let in, and when.
type harness struct {
	*pace.Gate
	t     *testing.T
	start time.Time
	all   sync.WaitGroup

	mu      sync.Mutex
	entered []string
	at      []time.Duration
}

func newHarness(t *testing.T, l pace.Limits) *harness {
	h := &harness{Gate: pace.New("main"), t: t, start: time.Now()}
	h.SetLimits(l, nil, 1)
	return h
}

// request returns a request of an Agent.
func request(namespace, agent string) *pace.Request {
	return &pace.Request{Namespace: namespace, Agent: agent, Wait: model.Wait{Model: "m"}}
}

// send sends a request that takes some time and ends with an outcome. It returns once the request waits or runs.
func (h *harness) send(name string, r *pace.Request, takes time.Duration, o pace.Outcome) {
	h.all.Go(func() {
		p, err := h.Enter(h.t.Context(), r)
		h.mu.Lock()
		if err != nil {
			name += ": " + err.Error()
		}
		h.entered, h.at = append(h.entered, name), append(h.at, time.Since(h.start))
		h.mu.Unlock()
		if err == nil {
			time.Sleep(takes)
			p.Done(o)
		}
	})
	synctest.Wait()
}

// order returns the requests in the order in which they were let in, after all of them have ended.
func (h *harness) order() string {
	h.all.Wait()
	return strings.Join(h.entered, " ")
}

// seconds returns when the requests were let in, in seconds, after all of them have ended.
func (h *harness) seconds() []float64 {
	h.all.Wait()
	var all []float64
	for _, at := range h.at {
		all = append(all, at.Round(time.Millisecond).Seconds())
	}
	return all
}

// enter lets a request in. It fails the test if the request must wait.
func (h *harness) enter(r *pace.Request) *pace.Permit {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), time.Nanosecond)
	defer cancel()
	p, err := h.Enter(ctx, r)
	if err != nil {
		h.t.Fatalf("the request waits or is refused: %v", err)
	}
	return p
}

func failure(kind model.ErrorKind, retryAfter time.Duration) pace.Outcome {
	return pace.Outcome{Failure: &model.Error{Kind: kind, Message: "it is " + string(kind), RetryAfter: retryAfter}}
}

// end lets in requests that end immediately with an outcome, one after the other.
func (h *harness) end(times int, o pace.Outcome) {
	h.t.Helper()
	for range times {
		h.enter(request("a", "x")).Done(o)
	}
}

// TestNamespacesTakeTurns checks that a request waits for only one request of each other namespace and Agent, however
// many of their requests wait.
func TestNamespacesTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, pace.Limits{MaxConcurrent: 1})
		for i, of := range []string{"a/x", "a/x", "a/x", "a/x", "a/y", "b/z", "b/z"} {
			namespace, agent, _ := strings.Cut(of, "/")
			h.send(fmt.Sprintf("%s%d", of, i), request(namespace, agent), time.Second, pace.Outcome{})
		}
		if got, want := h.order(), "a/x0 a/x1 b/z5 a/y4 b/z6 a/x2 a/x3"; got != want {
			t.Errorf("order %s, want %s", got, want)
		}
		if got, want := h.seconds(), []float64{0, 1, 2, 3, 4, 5, 6}; !slices.Equal(got, want) {
			t.Errorf("let in after %v seconds, want %v: one at a time", got, want)
		}
	})
}

// TestRates checks when requests are sent under limits.
func TestRates(t *testing.T) {
	rpm := func(n int64) pace.Limits { return pace.Limits{RequestsPerMinute: n} }
	tpm := pace.Limits{TokensPerMinute: 601}
	for name, tc := range map[string]struct {
		reason    string
		limits    pace.Limits
		executors int
		tokens    int64 // of each request, as estimated
		used      int64 // by each request, as reported at its end
		want      []float64
	}{
		"no limit":        {"nothing waits", pace.Limits{}, 1, 9, 9, []float64{0, 0, 0, 0}},
		"requests":        {"requests are spread over the minute", rpm(30), 1, 9, 9, []float64{0, 2, 4, 6}},
		"executors":       {"each executor has its part", rpm(30), 3, 9, 9, []float64{0, 6, 12, 18}},
		"many requests":   {"the requests of a second may be sent together", rpm(120), 1, 9, 9, []float64{0, 0, .504, 1.008}},
		"few requests":    {"the part of an executor may be less than one", rpm(1), 2, 9, 9, []float64{0, 120, 240, 360}},
		"tokens":          {"a large prompt delays the next", tpm, 1, 100, 100, []float64{0, 10.135, 20.271, 30.406}},
		"fewer tokens":    {"unused tokens are given back", tpm, 1, 100, 50, []float64{0, 5.068, 10.135, 15.203}},
		"more tokens":     {"the used tokens count", tpm, 1, 50, 100, []float64{0, 10.135, 20.271, 30.406}},
		"concurrency":     {"a request takes a second", pace.Limits{MaxConcurrent: 2}, 1, 9, 9, []float64{0, 0, 1, 1}},
		"no whole part":   {"each executor may send one request at a time", pace.Limits{MaxConcurrent: 2}, 5, 9, 9, []float64{0, 1, 2, 3}},
		"strictest first": {"all limits count", pace.Limits{MaxConcurrent: 1, RequestsPerMinute: 30}, 1, 9, 9, []float64{0, 2, 4, 6}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t, tc.limits)
				h.SetExecutors(tc.executors)
				for range 4 {
					r := request("a", "x")
					r.Tokens = tc.tokens
					h.send("", r, time.Second, pace.Outcome{Tokens: tc.used})
				}
				if got := h.seconds(); !nearly(got, tc.want) {
					t.Errorf("let in after %v seconds, want %v: %s", got, tc.want, tc.reason)
				}
			})
		})
	}
}

// TestLongPromptIsNotOvertaken checks that a request that needs many tokens is not held back by small ones for ever.
func TestLongPromptIsNotOvertaken(t *testing.T) {
	for name, limits := range map[string]struct{ provider, model pace.Limits }{
		"limit of the provider": {provider: pace.Limits{TokensPerMinute: 601}},
		"limit of the model":    {model: pace.Limits{TokensPerMinute: 601}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t, pace.Limits{})
				h.SetLimits(limits.provider, map[string]pace.Limits{"m": limits.model}, 1)
				long := request("a", "long")
				long.Tokens = 100
				for i := range 4 {
					short := request("a", fmt.Sprint("short", i))
					short.Tokens = 5
					h.send(short.Agent, short, 0, pace.Outcome{Tokens: 5})
					if i == 1 {
						h.send("long", long, 0, pace.Outcome{Tokens: 100})
					}
				}
				if got, want := h.order(), "short0 short1 long short2 short3"; got != want {
					t.Errorf("order %s, want %s", got, want)
				}
			})
		})
	}
}

// TestInvalidUsage checks that an endpoint that reports an extreme usage does not hold requests back for ever.
func TestInvalidUsage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, pace.Limits{TokensPerMinute: 600})
		h.send("", request("a", "x"), 0, pace.Outcome{Tokens: 1 << 62})
		h.send("", request("a", "x"), 0, pace.Outcome{Tokens: -1 << 62})
		if got := h.seconds(); got[1] > 601 {
			t.Errorf("the second request was let in after %v seconds, want at most ten minutes", got[1])
		}
	})
}

// nearly reports whether times in seconds differ by less than 20 ms.
func nearly(a, b []float64) bool {
	return slices.EqualFunc(a, b, func(a, b float64) bool { return a-b < .02 && b-a < .02 })
}

// TestLimitsOfAModel checks that a model has its own limits, and that requests to other models do not wait for it.
func TestLimitsOfAModel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, pace.Limits{MaxConcurrent: 3})
		h.SetLimits(pace.Limits{MaxConcurrent: 3}, map[string]pace.Limits{"m": {MaxConcurrent: 1}}, 1)
		other := request("a", "x")
		other.Model = "other"
		h.send("m1", request("a", "x"), 2*time.Second, pace.Outcome{})
		h.send("m2", request("a", "x"), time.Second, pace.Outcome{})
		h.send("o1", other, time.Second, pace.Outcome{})
		h.send("o2", other, time.Second, pace.Outcome{})
		h.send("o3", other, time.Second, pace.Outcome{})
		if got, want := h.order(), "m1 o1 o2 o3 m2"; got != want {
			t.Errorf("order %s, want %s", got, want)
		}
		if got, want := h.seconds(), []float64{0, 0, 0, 1, 2}; !slices.Equal(got, want) {
			t.Errorf("let in after %v seconds, want %v", got, want)
		}
	})
}

// TestNewLimitsApplyToWaitingRequests checks that a higher limit lets in requests that wait.
func TestNewLimitsApplyToWaitingRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, pace.Limits{RequestsPerMinute: 1})
		h.send("", request("a", "x"), 0, pace.Outcome{})
		h.send("", request("a", "x"), 0, pace.Outcome{})
		time.Sleep(2 * time.Second)
		h.SetLimits(pace.Limits{}, nil, 1)
		if got, want := h.seconds(), []float64{0, 2}; !slices.Equal(got, want) {
			t.Errorf("let in after %v seconds, want %v", got, want)
		}
	})
}

// TestEndOfAWait checks how a wait ends without a permit, and that it leaves nothing behind.
func TestEndOfAWait(t *testing.T) {
	cancelled := errors.New("cancelled")
	for name, tc := range map[string]struct {
		end     func(r *pace.Request, cancel context.CancelCauseFunc)
		want    string
		after   time.Duration
		refused int
	}{
		"cancelled": {func(_ *pace.Request, cancel context.CancelCauseFunc) {
			time.AfterFunc(4*time.Second, func() { cancel(cancelled) })
		}, "cancelled", 4 * time.Second, 0},
		"stopped": {func(r *pace.Request, _ context.CancelCauseFunc) {
			stop := make(chan struct{})
			r.Stop = stop
			time.AfterFunc(time.Second, func() { close(stop) })
		}, model.ErrStopped.Error(), time.Second, 0},
		"too long": {
			func(r *pace.Request, _ context.CancelCauseFunc) { r.MaxWait = 5 * time.Second },
			`provider "main": the request waited for 5s for its turn, and another model can answer`, 5 * time.Second, 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t, pace.Limits{MaxConcurrent: 1})
				refused := 0
				h.OnRefused(func() { refused++ })
				running := h.enter(request("a", "x"))
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				r := request("a", "x")
				var reports []bool
				r.Waits = func(waits bool) { reports = append(reports, waits) }
				tc.end(r, cancel)
				_, err := h.Enter(ctx, r)
				if err == nil || err.Error() != tc.want || time.Since(h.start) != tc.after {
					t.Errorf("Enter returned %v after %s, want %q after %s", err, time.Since(h.start), tc.want, tc.after)
				}
				if isReported := len(reports) == 2 && reports[0] && !reports[1]; isReported != (tc.after > 3*time.Second) ||
					len(reports)%2 != 0 {
					t.Errorf("the reports of a wait of %s are %v, want [true false] after more than 3s, and otherwise none",
						tc.after, reports)
				}
				if waiting := h.Use().Waiting; waiting != 0 || refused != tc.refused {
					t.Errorf("%d wait and %d are refused, want 0 and %d", waiting, refused, tc.refused)
				}
				running.Done(pace.Outcome{})
				h.enter(request("a", "x")).Done(pace.Outcome{})
				if !h.IsUnused(0) {
					t.Error("the gate is in use, although all requests have ended")
				}
			})
		})
	}
}

func TestLowRequestsLetOthersGoFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, pace.Limits{MaxConcurrent: 1})
		h.send("running", request("a", "x"), time.Second, pace.Outcome{})
		low := func(namespace string) *pace.Request {
			r := request(namespace, "x")
			r.Low = true
			return r
		}
		h.send("low of a", low("a"), time.Second, pace.Outcome{})
		h.send("low of b", low("b"), time.Second, pace.Outcome{})
		for i := range 3 {
			h.send(fmt.Sprint("turn ", i), request("a", "x"), time.Second, pace.Outcome{})
		}
		h.all.Wait()
		want := []string{"running", "turn 0", "turn 1", "turn 2", "low of b", "low of a"}
		if !slices.Equal(h.entered, want) {
			t.Errorf("the requests were let in as %q, want %q", h.entered, want)
		}
	})
}
