package controller_test

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// gate is a proxy in front of the fake model. While the gate is closed, it holds all requests. If several requests wait
// at the gate, the manager has sent them without waiting for an earlier reply, however slow the machine is.
type gate struct {
	next    http.Handler
	closed  atomic.Pointer[chan struct{}]
	waiting atomic.Int64
	// While down is true, each connection is broken off, as if the server had not started yet.
	down atomic.Bool
}

// ServeHTTP passes a request on when the gate is open.
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

// hold closes the gate and returns a function that opens the gate. The end of the spec opens the gate, too.
func (s *testEnv) hold() (release func()) {
	opened := make(chan struct{})
	s.gate.closed.Store(&opened)
	release = sync.OnceFunc(func() { close(opened) })
	DeferCleanup(release)
	return release
}

// awaitSeen waits until the executor has seen all changes of Turns so far. The executor receives the changes in order,
// so awaitSeen creates another Turn and waits until the executor has prepared that Turn.
func (s *testEnv) awaitSeen(ctx context.Context) {
	GinkgoHelper()
	s.create(ctx, newTurn("newest", prepareOnly))
	s.awaitState(ctx, "newest", v1alpha1.TurnReasonPrepared)
}

// awaitHeld waits until this many requests wait at the gate.
func (s *testEnv) awaitHeld(ctx context.Context, count int64) {
	GinkgoHelper()
	Eventually(s.gate.waiting.Load).WithContext(ctx).WithTimeout(2*patience).Should(Equal(count), "requests at the gate")
}
