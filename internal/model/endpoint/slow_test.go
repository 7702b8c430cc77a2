package endpoint_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/capstan-dev/capstan/internal/model/endpoint"
	"github.com/capstan-dev/capstan/internal/model/openai"
	"github.com/capstan-dev/capstan/internal/pace"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// The times that a slow model takes for the first part of an answer, and for each later part.
const (
	slowFirst = 70 * time.Second
	slowLater = 20 * time.Second
)

// slowServer answers like a slow model.
type slowServer struct {
	mu               sync.Mutex
	received, served int
}

// ServeHTTP sends the headers immediately, and later an answer of one to five parts.
func (s *slowServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body) // because a pipe has no buffer
	s.mu.Lock()
	s.received++
	parts := 1 + s.received%5
	s.mu.Unlock()
	w.Header().Set("Content-Type", "text/event-stream")
	pause := slowFirst
	for range parts {
		_ = http.NewResponseController(w).Flush()
		select {
		case <-time.After(pause):
		case <-r.Context().Done():
			return
		}
		_, _ = io.WriteString(w, `data: {"choices":[{"index":0,"delta":{"content":"Fine. "}}]}`+"\n\n")
		pause = slowLater
	}
	_, _ = io.WriteString(w, `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`+"\n\ndata: [DONE]\n\n")
	s.mu.Lock()
	s.served++
	s.mu.Unlock()
}

// requestCounter counts the requests of many namespaces to one model.
type requestCounter struct {
	gate *pace.Gate
	mu   sync.Mutex
	// waiting is the number of requests of each namespace that were not sent yet, and sent is the number of requests
	// that were sent after a wait. skew is the largest difference between the numbers of sent requests of two
	// namespaces while requests of all namespaces waited.
	waiting, sent map[string]int
	skew          int
	// inFlight is the number of requests that were sent and have no reply yet. maxInFlight is its largest value.
	inFlight, maxInFlight int
	// wasOpen is true if the circuit was open.
	wasOpen bool
	// start is the time at which all requests were made, and lastSent is the time at which the newest request was sent.
	start, lastSent time.Time
}

// countingProvider sends and counts the requests of a namespace that have passed the gate.
type countingProvider struct {
	*requestCounter
	namespace string
	inner     model.Provider
}

// Generate counts the request as in flight until its reply has arrived.
func (c *countingProvider) Generate(ctx context.Context, r *model.Request) (*model.Reply, error) {
	c.count(c.namespace, 1)
	defer c.count(c.namespace, -1)
	return c.inner.Generate(ctx, r)
}

// count counts the beginning or the end of a request.
func (c *requestCounter) count(namespace string, change int) {
	open := len(c.gate.Use().Open) > 0
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wasOpen = c.wasOpen || open
	c.inFlight += change
	c.maxInFlight = max(c.maxInFlight, c.inFlight)
	if change < 0 {
		return
	}
	now := time.Now()
	if now.After(c.lastSent) { // requests that are sent at the same time have no order
		c.lastSent, c.skew = now, max(c.skew, c.difference())
	}
	c.waiting[namespace]--
	if now.After(c.start) {
		c.sent[namespace]++
	}
}

// difference returns the largest difference between the numbers of sent requests of two namespaces, or 0 if a namespace
// has no waiting requests.
func (c *requestCounter) difference() int {
	for n := range maps.Values(c.waiting) {
		if n == 0 {
			return 0
		}
	}
	sent := slices.Sorted(maps.Values(c.sent))
	return sent[len(sent)-1] - sent[0]
}

// TestSlowModel sends 2,000 requests of three namespaces to a slow model that may work on 20 requests at a time. Some
// requests have too short a deadline, or too short a timeout for the first part of the answer. Time is virtual.
func TestSlowModel(t *testing.T) {
	const limit = 20
	namespaces := map[string]int{"busy": 1400, "one": 300, "two": 300}
	synctest.Test(t, func(t *testing.T) {
		server, conns := &slowServer{}, make(pipes)
		web := &http.Server{ReadHeaderTimeout: time.Hour, Handler: server}
		go func() { _ = web.Serve(conns) }()
		slow := openai.New(openai.Config{Config: endpoint.Config{
			Name: "slow", BaseURL: "http://model.test/v1", ConnectTimeout: 5 * time.Second, IdleTimeout: time.Minute,
		}})
		slow.DialWith(conns.dial)
		begin := time.Now()
		c := &requestCounter{
			gate: pace.New("slow"), waiting: maps.Clone(namespaces), sent: maps.Clone(namespaces), start: begin, lastSent: begin,
		}
		for namespace := range c.sent {
			c.sent[namespace] = 0
		}
		refused := 0
		c.gate.OnRefused(func() { refused++ })
		c.gate.SetLimits(pace.Limits{MaxConcurrent: limit}, nil, 1)
		var all sync.WaitGroup
		var mu sync.Mutex
		ends := map[string]int{}
		send := func(namespace, agent string, timeout, first time.Duration) {
			ctx := t.Context()
			if timeout > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, timeout)
				defer cancel()
			}
			if first > 0 { // wait until an answer has begun, so that the model is known to be slow
				time.Sleep(slowFirst + time.Second)
			}
			p := c.gate.Provider(pace.Caller{Namespace: namespace, Agent: agent}, &countingProvider{c, namespace, slow})
			_, err := p.Generate(ctx, &model.Request{
				Model: "m", FirstEventTimeout: first, Messages: []model.Message{{Role: model.RoleUser, Content: "hello"}},
			})
			mu.Lock()
			defer mu.Unlock()
			took := time.Since(begin)
			switch {
			case err == nil:
				ends["answered"]++
			case first > 0 && model.AsError(err).Kind == model.Timeout:
				ends["lost patience"]++
			case timeout == 0 || took != timeout || model.AsError(err).Kind != model.Cancelled:
				t.Errorf("a request of namespace %q failed after %s: %v", namespace, took, err)
			case model.AsError(err).Unsent && errors.Is(err, context.DeadlineExceeded):
				ends["waited in vain"]++
			default:
				ends["ended during the answer"]++
			}
		}
		for namespace, n := range namespaces {
			for i := range n {
				var timeout, first time.Duration
				switch {
				case namespace == "busy" && i%10 == 0:
					timeout = 90500*time.Millisecond + time.Duration(i)*time.Second // no answer ends at that time
				case namespace != "busy" && i%10 != 0:
					first = slowFirst - 15*time.Second
				}
				all.Go(func() { send(namespace, fmt.Sprint("agent-", i%3), timeout, first) })
			}
		}
		all.Wait()
		slow.Close()
		close(conns)
		_ = web.Close()
		t.Logf("ends %v in %s; sent after a wait %v", ends, time.Since(begin), c.sent)
		if n := ends["answered"] + ends["lost patience"] + ends["waited in vain"] + ends["ended during the answer"]; n != 2000 {
			t.Errorf("%d requests have ended, want 2,000", n)
		}
		if ends["waited in vain"] == 0 || ends["lost patience"] != 540 {
			t.Errorf("ends %v, want requests that wait in vain, and 540 that lose patience", ends)
		}
		if ends["answered"] != server.served || server.received != 2000-ends["waited in vain"] {
			t.Errorf("the server received %d requests and answered %d, but the ends are %v", server.received, server.served, ends)
		}
		if c.maxInFlight != limit {
			t.Errorf("the largest number of requests in flight was %d, want %d", c.maxInFlight, limit)
		}
		if c.skew > 1 {
			t.Errorf("one namespace sent %d requests more than another one that waited, want at most 1", c.skew)
		}
		if c.wasOpen {
			t.Error("the circuit was open, although the model was only slow")
		}
		if u := c.gate.Use(); u.Waiting != 0 || refused != 0 || !c.gate.IsUnused(0) {
			t.Errorf("at the end %d requests wait and %d were refused, want none: %+v", u.Waiting, refused, u)
		}
	})
}
