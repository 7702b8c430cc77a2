package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"
)

// toolMessage is in each request to the model that has the result of a tool.
var toolMessage = []byte(`"tool_call_id"`)

// gate lets nobody who has called a tool through to the model until it is opened.
type gate struct {
	size int // how many are to wait at the same time

	mu      sync.Mutex
	waiting int
	all     chan struct{} // closed once so many have waited at the same time
	opened  chan struct{}
}

func newGate(size int) *gate {
	return &gate{size: size, all: make(chan struct{}), opened: make(chan struct{})}
}

// open lets all through who wait, and all who come.
func (g *gate) open() { close(g.opened) }

// full waits until so many wait at the same time.
func (g *gate) full(ctx context.Context, atMost time.Duration) error {
	timer := time.NewTimer(atMost)
	defer timer.Stop()
	select {
	case <-g.all:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		g.mu.Lock()
		defer g.mu.Unlock()
		return fmt.Errorf("after %s only %d of %d Turns wait for the model at the same time", atMost, g.waiting, g.size)
	}
}

// before returns the model with the gate before it.
func (g *gate) before(model http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // the client has gone
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		if bytes.Contains(body, toolMessage) && !g.wait(r.Context()) {
			return
		}
		model.ServeHTTP(w, r)
	})
}

// wait waits until the gate is opened, and says whether the client has waited for it.
func (g *gate) wait(ctx context.Context) bool {
	g.count(1)
	defer g.count(-1)
	select {
	case <-g.opened:
		return true
	case <-ctx.Done():
		return false
	}
}

// count counts who comes and goes.
func (g *gate) count(change int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting += change
	select {
	case <-g.all:
	default:
		if g.waiting == g.size {
			close(g.all)
		}
	}
}
