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

// toolMessage is part of each model request that contains the result of a tool.
var toolMessage = []byte(`"tool_call_id"`)

// gate holds model requests with a tool result until it is opened.
type gate struct {
	size int // the number of requests that must wait at the same time

	mu      sync.Mutex
	waiting int
	full    chan struct{} // closed when size requests wait at the same time
	opened  chan struct{} // closed by open
}

func newGate(size int) *gate {
	return &gate{size: size, full: make(chan struct{}), opened: make(chan struct{})}
}

// open lets all waiting and all later requests through.
func (g *gate) open() { close(g.opened) }

// awaitFull waits until size requests wait at the same time, and returns an error after the timeout.
func (g *gate) awaitFull(ctx context.Context, timeout time.Duration) error {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-g.full:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		g.mu.Lock()
		defer g.mu.Unlock()
		return fmt.Errorf("only %d of %d Turns wait for the model at the same time after %s", g.waiting, g.size, timeout)
	}
}

// inFrontOf returns a handler that passes requests through the gate to the model.
func (g *gate) inFrontOf(model http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // the client has disconnected
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		if bytes.Contains(body, toolMessage) && !g.wait(r.Context()) {
			return
		}
		model.ServeHTTP(w, r)
	})
}

// wait waits until the gate is opened. It returns false if the client disconnects first.
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

// count changes the number of waiting requests.
func (g *gate) count(change int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting += change
	select {
	case <-g.full:
	default:
		if g.waiting == g.size {
			close(g.full)
		}
	}
}
