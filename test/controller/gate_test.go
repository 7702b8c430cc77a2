package controller_test

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

// gate stands before the fake model. Closed, it keeps all requests waiting: what waits there at one time has not waited for
// one another, however slow the machine is.
type gate struct {
	next    http.Handler
	closed  atomic.Pointer[chan struct{}]
	waiting atomic.Int64
	// down breaks every connection off, as before a server has started.
	down atomic.Bool
}

// ServeHTTP hands a request on when the gate is open.
func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if g.down.Load() {
		panic(http.ErrAbortHandler)
	}
	if opened := g.closed.Load(); opened != nil && r.Method == http.MethodPost {
		g.waiting.Add(1)
		select {
		case <-*opened:
		case <-r.Context().Done():
		}
		g.waiting.Add(-1)
	}
	g.next.ServeHTTP(w, r)
}

// hold closes the gate, and returns what opens it for ever; the end of the spec does.
func (s *stage) hold() (open func()) {
	opened := make(chan struct{})
	s.gate.closed.Store(&opened)
	open = sync.OnceFunc(func() { close(opened) })
	DeferCleanup(open)
	return open
}

// held waits until so many requests wait at the gate.
func (s *stage) held(ctx context.Context, count int64) {
	GinkgoHelper()
	Eventually(s.gate.waiting.Load).WithContext(ctx).WithTimeout(2*patience).Should(Equal(count), "requests at the gate")
}
