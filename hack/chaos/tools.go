package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"
)

// toolServer is what the tools of the test call. It counts each call by its key when it arrives, and answers after a while.
type toolServer struct {
	mu sync.Mutex
	// slowest is the longest that an answer takes.
	slowest time.Duration
	called  map[string]called
}

func newToolServer(slowest time.Duration) *toolServer {
	return &toolServer{slowest: slowest, called: map[string]called{}}
}

// ServeHTTP answers a call: POST /TOOL with the key in X-Call-Key.
func (s *toolServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	key := r.Header.Get("X-Call-Key")
	if _, err := io.Copy(io.Discard, r.Body); err != nil || key == "" {
		http.Error(w, "a call needs its whole body and a key", http.StatusBadRequest)
		return
	}
	n, wait := s.count(key, strings.Trim(r.URL.Path, "/"))
	if pause(r.Context(), wait) {
		_, _ = fmt.Fprintf(w, `{"count": %d}`, n) // who has gone away needs no answer
	}
}

// count counts a call, and says how many there were and how long it takes.
func (s *toolServer) count(key, tool string) (calls int, takes time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.called[key]
	s.called[key] = called{Tool: tool, Times: c.Times + 1}
	if s.slowest > 0 {
		takes = rand.N(s.slowest) //nolint:gosec // because it is to be random, not secret
	}
	return len(s.called), takes
}

// calls are those since the last reset.
func (s *toolServer) calls() map[string]called {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.called)
}

// reset forgets all calls.
func (s *toolServer) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.called = map[string]called{}
}

// pause lets time pass, and says whether ctx lives.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

func (s *toolServer) setSlowest(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.slowest = d
}
