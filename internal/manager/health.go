package manager

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/capstan-dev/capstan/internal/store"
)

const (
	// checkInterval is the time between two looks, however often the readiness probe asks.
	checkInterval = 5 * time.Second
	// checkTimeout bounds one look.
	checkTimeout = 10 * time.Second
)

// health looks at something that the process cannot work without, at intervals, and keeps what it found for the readiness
// probe. It implements manager.Runnable, on every replica: one that stands by must be able to take over.
type health struct {
	// of names it, as "the store of the journal"; meanwhile says what an outage means.
	of, meanwhile string
	// check fails if it does not work.
	check func(context.Context) error
	log   logr.Logger
	found atomic.Pointer[finding]
}

// finding is what the last look at the store has found; err is nil if all is well.
type finding struct{ err error }

// NeedLeaderElection is false.
func (h *health) NeedLeaderElection() bool { return false }

// Start looks until ctx ends. A change is logged, with its cause.
func (h *health) Start(ctx context.Context) error {
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

func (h *health) look(ctx context.Context) {
	bounded, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	err := h.check(bounded)
	if ctx.Err() != nil {
		return // cut short by the stop, which says nothing
	}
	before := h.found.Swap(&finding{err})
	was := before != nil && before.err != nil
	switch {
	case err != nil && !was:
		h.log.Error(err, fmt.Sprintf("%s does not work; %s, and this manager is not ready", h.of, h.meanwhile))
	case err == nil && was:
		h.log.Info(h.of + " works again")
	}
}

// ready is the readiness check: it asks nobody.
func (h *health) ready(*http.Request) error {
	last := h.found.Load()
	if last == nil {
		return errors.New(h.of + " was not looked at yet")
	}
	if last.err != nil {
		return fmt.Errorf("%s does not work: %w", h.of, last.err)
	}
	return nil
}

// storeHealth looks at the store of the journal, and marks its position, which the Lease of the executor then publishes.
func storeHealth(s store.Store, identity *store.Tracker, log logr.Logger) *health {
	return &health{of: "the store of the journal", meanwhile: "Turns wait for it", log: log, check: func(ctx context.Context) error {
		if err := s.Check(ctx); err != nil {
			return err
		}
		return identity.Mark(ctx)
	}}
}

// apiHealth looks at the API server, by a read that goes through to its store: that of the Lease of leader election, which need not be
// there.
func apiHealth(leases kubernetes.Interface, namespace string, log logr.Logger) *health {
	return &health{of: "the API server", meanwhile: "what runs goes on, and what ends is written when it is back", log: log, check: func(ctx context.Context) error {
		return reachable(ctx, leases, namespace)
	}}
}

// reachable fails if the API server gives no answer within 5 s, or says that it cannot.
func reachable(ctx context.Context, leases kubernetes.Interface, namespace string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, apiTimeout, fmt.Errorf("it gave no answer within %s", apiTimeout))
	defer cancel()
	_, err := leases.CoordinationV1().Leases(namespace).Get(ctx, LeaderElectionID, metav1.GetOptions{})
	switch {
	case err == nil, apierrors.IsNotFound(err), apierrors.IsForbidden(err):
		return nil // it answers
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return err
}

// apiTimeout bounds one question to the API server.
const apiTimeout = 5 * time.Second

// awaitAPIServer waits until the API server answers, for as long as for a store, and says so each time.
func awaitAPIServer(ctx context.Context, leases kubernetes.Interface, namespace string, log logr.Logger) error {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = 500*time.Millisecond, 5*time.Second
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		err := reachable(ctx, leases, namespace)
		if apierrors.IsUnauthorized(err) {
			err = backoff.Permanent(err)
		}
		return struct{}{}, err
	}, backoff.WithBackOff(wait), backoff.WithMaxElapsedTime(storePatience), backoff.WithNotify(func(err error, wait time.Duration) {
		log.Info("Waiting for the API server", "cause", err.Error(), "in", wait.Round(time.Millisecond).String())
	}))
	switch {
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("the API server refused the credentials: %w", err)
	case err != nil && ctx.Err() == nil:
		return fmt.Errorf("gave up waiting for the API server, for about %s: is the kubeconfig right? %w", storePatience, err)
	}
	return err
}
