package manager

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
)

const (
	// checkInterval is the time between two looks at the store, however often the readiness probe asks.
	checkInterval = 5 * time.Second
	// checkTimeout bounds one look.
	checkTimeout = 10 * time.Second
)

// storeHealth looks at the store at intervals and keeps what it found for the readiness probe. It implements
// manager.Runnable, on every replica: one that stands by must be able to take over.
type storeHealth struct {
	check func(context.Context) error
	log   logr.Logger
	found atomic.Pointer[finding]
}

// finding is what the last look at the store has found; err is nil if all is well.
type finding struct{ err error }

// NeedLeaderElection is false.
func (h *storeHealth) NeedLeaderElection() bool { return false }

// Start looks until ctx ends. A change is logged, with its cause.
func (h *storeHealth) Start(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		h.look(ctx)
		timer.Reset(checkInterval)
	}
}

func (h *storeHealth) look(ctx context.Context) {
	bounded, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	err := h.check(bounded)
	if ctx.Err() != nil {
		return // cut short by the stop, which says nothing of the store
	}
	before := h.found.Swap(&finding{err})
	was := before != nil && before.err != nil
	switch {
	case err != nil && !was:
		h.log.Error(err, "The store of the journal does not work; Turns wait for it, and this manager is not ready")
	case err == nil && was:
		h.log.Info("The store of the journal works again")
	}
}

// ready is the readiness check: it asks nobody.
func (h *storeHealth) ready(*http.Request) error {
	last := h.found.Load()
	if last == nil {
		return errors.New("the store of the journal was not looked at yet")
	}
	if last.err != nil {
		return fmt.Errorf("the store of the journal does not work: %w", last.err)
	}
	return nil
}
