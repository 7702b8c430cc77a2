package endpoint_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/capstan-dev/capstan/internal/model/endpoint"
	"github.com/capstan-dev/capstan/internal/model/openai"
	"github.com/capstan-dev/capstan/internal/pace"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/runtime/turncontext"
)

// The ends of the phases of a storm, and how long an answer takes in the slow phase and in other phases.
const (
	limitedUntil = 1 * time.Minute // HTTP 429
	slowUntil    = 2 * time.Minute // an answer takes slowAnswer
	downUntil    = 3 * time.Minute // no connections, and the connections of earlier requests break
	backUntil    = downUntil + 30*time.Second
	failsUntil   = backUntil + time.Minute // HTTP 503 and 500 alternate
	slowAnswer   = 20 * time.Second
	usualAnswer  = time.Second
	// Some Turns begin at lateStart, while the endpoint is down. Others begin at lastStart, while the endpoint fails.
	lateStart, lastStart = slowUntil + 10*time.Second, backUntil + 10*time.Second
)

// stormServer is an HTTP server that goes through a storm. It records when each request arrived, and each connection
// that it refused.
type stormServer struct {
	conns pipes
	start time.Time
	calm  bool // the server has no storm
	// limitHeaders are the headers of a response with HTTP 429.
	limitHeaders map[string]string

	mu       sync.Mutex
	requests []time.Duration
	served   int
	failed   int
}

// recordRequest records a request, and returns the time since the start.
func (s *stormServer) recordRequest() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := time.Since(s.start)
	s.requests = append(s.requests, at)
	return at
}

// nextFailure returns the status of the next failure.
func (s *stormServer) nextFailure() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed++
	return []int{http.StatusServiceUnavailable, http.StatusInternalServerError}[s.failed%2]
}

// dial connects to the server, unless it is down.
func (s *stormServer) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if at := time.Since(s.start); !s.calm && at >= slowUntil && at < downUntil {
		s.recordRequest()
		return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
	}
	return s.conns.dial(ctx, network, address)
}

// ServeHTTP answers a request as the current phase requires.
func (s *stormServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body) // because a pipe has no buffer
	at, takes := s.recordRequest(), usualAnswer
	switch {
	case s.calm, at >= failsUntil, at >= downUntil && at < backUntil:
	case at < limitedUntil:
		for name, value := range s.limitHeaders {
			w.Header().Set(name, value)
		}
		http.Error(w, `{"error":{"message":"Slow down."}}`, http.StatusTooManyRequests)
		return
	case at < slowUntil:
		takes = slowAnswer
	case at < downUntil:
		panic(http.ErrAbortHandler)
	default:
		http.Error(w, `{"error":{"message":"It crashed."}}`, s.nextFailure())
		return
	}
	select {
	case <-time.After(takes):
	case <-r.Context().Done():
		return
	}
	if now := time.Since(s.start); !s.calm && now >= slowUntil && now < downUntil {
		panic(http.ErrAbortHandler)
	}
	s.mu.Lock()
	s.served++
	s.mu.Unlock()
	w.Header().Set("Content-Type", "text/event-stream")
	_, _ = io.WriteString(w, `data: {"choices":[{"index":0,"delta":{"content":"Fine."},"finish_reason":"stop"}],`+
		`"usage":{"prompt_tokens":9,"completion_tokens":1}}`+"\n\ndata: [DONE]\n\n")
}

// serve starts the server. It returns a function that makes a candidate from a provider behind a gate, and a function
// that ends the provider and the server.
func (s *stormServer) serve(name string, limits pace.Limits) (candidate func(*stormTurn) loop.Candidate, end func()) {
	s.conns, s.start = make(pipes), time.Now()
	web := &http.Server{ReadHeaderTimeout: time.Hour, Handler: s}
	go func() { _ = web.Serve(s.conns) }()
	p := openai.New(openai.Config{Config: endpoint.Config{
		Name: name, BaseURL: "http://model.test/v1", ConnectTimeout: 5 * time.Second, IdleTimeout: time.Minute,
	}})
	p.DialWith(s.dial)
	gate := pace.New(name)
	gate.SetLimits(limits, nil, 1)
	candidate = func(from *stormTurn) loop.Candidate {
		return loop.Candidate{
			ProviderName: name, Model: "m", Provider: gate.Provider(pace.Caller{Namespace: from.namespace, Agent: from.agent}, p),
			Retry: loop.Retry{MaxAttempts: 4, InitialBackoff: 500 * time.Millisecond, MaxBackoff: 20 * time.Second},
		}
	}
	return candidate, func() {
		p.Close()
		close(s.conns)
		_ = web.Close()
	}
}

// perSecond returns the number of requests in each second.
func (s *stormServer) perSecond() []int {
	var rates []int
	for _, at := range s.requests {
		for len(rates) <= int(at.Seconds()) {
			rates = append(rates, 0)
		}
		rates[int(at.Seconds())]++
	}
	return rates
}

// chart returns the rates as text: the number of requests of each second, ten seconds in a line.
func chart(rates []int) string {
	var b strings.Builder
	for i, n := range rates {
		if i%10 == 0 {
			fmt.Fprintf(&b, "\n%4d s:", i)
		}
		fmt.Fprintf(&b, " %3d", n)
	}
	return b.String()
}

// within returns the number of requests from one time to another, and the largest number in one second.
func within(rates []int, from, to time.Duration) (sum, most int) {
	rates = rates[min(len(rates), int(from.Seconds())):min(len(rates), int(to.Seconds()))]
	for _, n := range rates {
		sum, most = sum+n, max(most, n)
	}
	return sum, most
}

// stormTurn is a Turn of a storm, and its end.
type stormTurn struct {
	namespace string
	agent     string
	delay     time.Duration
	timeout   time.Duration
	took      time.Duration
	result    *turn.Result
	err       error
}

// run runs a Turn with this chain.
func (s *stormTurn) run(ctx context.Context, engine *turn.Engine, n int, chain []loop.Candidate) {
	time.Sleep(s.delay)
	begin := time.Now()
	s.result, s.err = engine.Run(ctx, &turn.Input{
		UID: fmt.Sprint("turn-", n), Epoch: 1, Timeout: s.timeout, Limit: s.timeout, DecisionKey: "storm",
		Preparation: func(context.Context) (prepare.Input, error) {
			return prepare.Input{
				Agent: prepare.Agent{Name: s.agent}, Now: begin.UTC(),
				Profile: prepare.Profile{
					Name: "support", ID: "support.default", Version: "1.0.0", Identity: &turncontext.Identity{SystemPrompt: "Be brief."},
				},
				Turn: prepare.Turn{Name: "storm", Message: "What is new?"},
			}, nil
		},
		Config: loop.Config{Chain: chain, Limits: loop.Limits{MaxSteps: 6, MaxToolCalls: 25, MaxDescendants: 25}},
	})
	s.took = time.Since(begin)
}

// TestStorm runs 500 Turns of two namespaces on an endpoint that refuses requests for a minute, is then slow, then
// down, then back for half a minute, then fails, and is then back. Most Turns begin at the start, the others while the
// endpoint is down or fails. About a fifth of the Turns is in the smaller namespace. Time is virtual. The test logs the
// number of requests in each second.
func TestStorm(t *testing.T) {
	for name, tc := range map[string]struct {
		limits       pace.Limits
		limitHeaders map[string]string
		// burst bounds the requests in the first second, and most bounds the requests in any later second.
		burst, most int
		// refused bounds the requests in the first minute after the first second, down bounds the requests while the
		// endpoint is down, and fails bounds the requests while it fails.
		refused, down, fails int
	}{
		"with limits": {
			limits: pace.Limits{RequestsPerMinute: 600, MaxConcurrent: 40}, burst: 20, most: 20, refused: 20, down: 60, fails: 20,
		},
		// Without limits, all Turns that begin at the same time send a request before the first request has failed: 84
		// Turns while the endpoint fails.
		"without limits": {burst: 500, most: 200, refused: 20, down: 160, fails: 95},
		"stated limits": {
			limits:       pace.Limits{RequestsPerMinute: 600, MaxConcurrent: 40},
			limitHeaders: map[string]string{"X-Ratelimit-Remaining-Requests": "0", "X-Ratelimit-Reset-Requests": "15s"},
			burst:        20, most: 20, refused: 20, down: 60, fails: 20,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				primary, backup := &stormServer{limitHeaders: tc.limitHeaders}, &stormServer{calm: true}
				first, endFirst := primary.serve("primary", tc.limits)
				second, endSecond := backup.serve("backup", pace.Limits{})
				engine := &turn.Engine{Journal: &journaltest.Store{}, Now: time.Now}
				var turns []*stormTurn
				var all sync.WaitGroup
				for n := range 500 {
					s := &stormTurn{namespace: "helpdesk", agent: "patient", timeout: 10 * time.Minute}
					if n%7 == 1 || n%7 == 4 && n%2 == 0 {
						s.namespace = "accounts"
					}
					switch n % 12 {
					case 0, 9:
						s.delay = lateStart
					case 3, 6:
						s.delay = lastStart
					}
					switch {
					case n%5 == 0:
						s.agent, s.timeout = "hurried", 30*time.Second
					case n%2 == 0:
						s.agent = "chained"
					}
					chain := []loop.Candidate{first(s)}
					if s.agent == "chained" {
						chain = append(chain, second(s))
					}
					turns = append(turns, s)
					all.Go(func() { s.run(t.Context(), engine, n, chain) })
				}
				all.Wait()
				endFirst()
				endSecond()
				checkEnds(t, turns, primary, backup)
				checkNamespaces(t, turns)
				rates := primary.perSecond()
				t.Logf("requests per second at the first endpoint:%s", chart(rates))
				t.Logf("requests per second at the fallback:%s", chart(backup.perSecond()))
				if rates[0] > tc.burst {
					t.Errorf("%d requests in the first second, want at most %d", rates[0], tc.burst)
				}
				if n, _ := within(rates, time.Second, limitedUntil); n > tc.refused {
					t.Errorf("%d requests while all are refused, want at most %d", n, tc.refused)
				}
				if n, _ := within(rates, slowUntil, downUntil); n > tc.down {
					t.Errorf("%d requests while the endpoint is down, want at most %d", n, tc.down)
				}
				if n, _ := within(rates, backUntil, failsUntil); n > tc.fails {
					t.Errorf("%d requests while the endpoint fails, want at most %d", n, tc.fails)
				}
				if _, n := within(rates, time.Second, time.Hour); n > tc.most {
					t.Errorf("%d requests in a second, want at most %d", n, tc.most)
				}
			})
		})
	}
}

// checkEnds checks how the Turns of a storm have ended, and which model has answered.
func checkEnds(t *testing.T, turns []*stormTurn, primary, backup *stormServer) {
	t.Helper()
	ends, fellBack, byPrimary := map[string]int{}, 0, 0
	var took []time.Duration
	for n, s := range turns {
		if s.err != nil {
			t.Errorf("Turn %d (%s): %v", n, s.agent, s.err)
			continue
		}
		ends[fmt.Sprintf("%s: %s", s.agent, s.result.Stop)]++
		took = append(took, s.took)
		if s.took > s.timeout {
			t.Errorf("Turn %d (%s) took %s, more than its limit", n, s.agent, s.took)
		}
		switch {
		case s.agent == "hurried" && s.result.Stop == turn.StopCompleted, s.agent != "hurried" && s.result.Stop != turn.StopCompleted:
			t.Errorf("Turn %d (%s) ended as %s after %s: %s", n, s.agent, s.result.Stop, s.took, s.result.Message)
		case s.result.Fallback != nil && s.agent != "chained":
			t.Errorf("Turn %d (%s) was answered by the fallback, which is not in its chain", n, s.agent)
		case s.result.Fallback != nil:
			fellBack++
		case s.result.Stop == turn.StopCompleted:
			byPrimary++
		}
	}
	slices.Sort(took)
	t.Logf("ends %v; %d Turns fell back; the last one ended after %s", ends, fellBack, took[len(took)-1])
	if backup.served != fellBack || len(backup.requests) != fellBack {
		t.Errorf("the fallback got %d requests and served %d, want %d: only for the Turns that fell back", len(backup.requests),
			backup.served, fellBack)
	}
	if primary.served != byPrimary {
		t.Errorf("the first endpoint served %d answers, but %d Turns used one of them", primary.served, byPrimary)
	}
}

// checkNamespaces checks that no namespace waits for the other. Both must get answers of the first endpoint while it is
// slow, and within half a minute after it is back. The smaller namespace must be done first.
func checkNamespaces(t *testing.T, turns []*stormTurn) {
	t.Helper()
	type stat struct {
		turns, slow, back int
		last              time.Duration
	}
	all := map[string]*stat{"helpdesk": {}, "accounts": {}}
	for _, s := range turns {
		counts := all[s.namespace]
		counts.turns++
		if s.err != nil || s.result.Stop != turn.StopCompleted || s.result.Fallback != nil {
			continue
		}
		end := s.delay + s.took
		counts.last = max(counts.last, end)
		switch {
		case end < slowUntil:
			counts.slow++
		case end < backUntil, end >= failsUntil && end < failsUntil+30*time.Second:
			counts.back++
		}
	}
	for name, counts := range all {
		t.Logf("%s: %d Turns, %d answers while slow, %d while back, the last one after %s", name, counts.turns, counts.slow,
			counts.back, counts.last)
		if counts.slow == 0 || counts.back == 0 {
			t.Errorf("namespace %s made no progress: %d answers while slow, %d while back", name, counts.slow, counts.back)
		}
	}
	if all["accounts"].last > all["helpdesk"].last {
		t.Errorf("the smaller namespace was done after %s, and the other after %s: want it to be first", all["accounts"].last,
			all["helpdesk"].last)
	}
}
