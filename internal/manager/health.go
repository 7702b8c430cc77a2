package manager

import (
	"cmp"
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
	// checkInterval is the time between two checks. It does not depend on the readiness probe.
	checkInterval = 5 * time.Second
	// checkTimeout is the time limit of one check.
	checkTimeout = 10 * time.Second
	// checkGrace is how long a check whose time is over may take to return its own error, which says more.
	checkGrace = time.Second
)

// health periodically checks a part that the process needs, and keeps the last finding for the readiness probe. It
// implements manager.Runnable and runs on every replica, because a standby must be able to take over.
type health struct {
	// part names the checked part, such as "the store of the journal". impact says what happens while it does not work.
	part, impact string
	// fails and recovers are the verbs of messages about the part. By default, they are "does not work" and "works
	// again".
	fails, recovers string
	// check returns an error if the part does not work.
	check func(context.Context) error
	log   logr.Logger
	last  atomic.Pointer[finding]
	// running receives the result of a check that has not returned yet, or is nil.
	running chan error
}

// lostAfter is how long a part must fail before reach reports that it is lost. A failover takes less, as a rule.
const lostAfter = 30 * time.Second

// reach reports whether the part works. known is false before the first check, and while the part has failed for less
// than lostAfter.
func (h *health) reach() (reachable, known bool) {
	last := h.last.Load()
	switch {
	case last == nil:
		return false, false
	case last.err == nil:
		return true, true
	}
	return false, time.Since(last.since) >= lostAfter
}

// finding is the result of the last check. err is nil if everything works. Otherwise since is the time of the first of
// the failures without a success between them.
type finding struct {
	err   error
	since time.Time
}

// NeedLeaderElection returns false.
func (h *health) NeedLeaderElection() bool { return false }

// Start runs the checks until ctx ends. It logs each change with its cause.
func (h *health) Start(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		h.checkOnce(ctx)
		timer.Reset(checkInterval)
	}
}

// errHangs is the finding if the check ignores the end of its context, as a system call on a failed disk does.
var errHangs = fmt.Errorf("its check did not return within %s: the disk or the connection may hang", checkTimeout)

// result runs the check and returns its result. If the previous check has not returned, result waits for that check
// instead, so that only one check can hang.
func (h *health) result(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	if h.running == nil {
		running := make(chan error, 1) // buffered, so that the check never waits
		h.running = running
		go func() { running <- h.check(ctx) }()
	}
	select {
	case err := <-h.running:
		h.running = nil
		return err
	case <-ctx.Done():
	}
	grace := time.NewTimer(checkGrace)
	defer grace.Stop()
	select {
	case err := <-h.running:
		h.running = nil
		return err
	case <-grace.C:
		return errHangs
	}
}

// checkOnce runs the check and keeps its result. If ctx ends during the check, it keeps the earlier result.
func (h *health) checkOnce(ctx context.Context) {
	err := h.result(ctx)
	if ctx.Err() != nil {
		return
	}
	before := h.last.Load()
	was := before != nil && before.err != nil
	found := &finding{err: err}
	if err != nil {
		found.since = time.Now()
		if was {
			found.since = before.since
		}
	}
	h.last.Store(found)
	switch {
	case err != nil && !was:
		h.log.Error(err, fmt.Sprintf("%s; %s, and this manager is not ready", h.failed(), h.impact))
	case err == nil && was:
		h.log.Info(h.part + " " + cmp.Or(h.recovers, "works again"))
	}
}

// ready is the readiness check. It sends no request.
func (h *health) ready(*http.Request) error {
	last := h.last.Load()
	if last == nil {
		return errors.New(h.part + " has not been checked yet")
	}
	if last.err != nil {
		return fmt.Errorf("%s: %w", h.failed(), last.err)
	}
	return nil
}

// failed returns the sentence that the part does not work.
func (h *health) failed() string { return h.part + " " + cmp.Or(h.fails, "does not work") }

// storeHealth checks the store of the journal and marks its position, which the executor's Lease then publishes.
func storeHealth(s store.Store, identity *store.Tracker, log logr.Logger) *health {
	const impact = "Turns wait for it, and continue when it works again"
	return &health{part: "the store of the journal", impact: impact, log: log, check: func(ctx context.Context) error {
		if err := s.Check(ctx); err != nil {
			return err
		}
		return identity.Mark(ctx)
	}}
}

// apiHealth checks the API server with a read that reaches its storage: it reads the Lease of leader election,
// which need not exist.
func apiHealth(leases kubernetes.Interface, namespace string, log logr.Logger) *health {
	return &health{
		part: "the API server", impact: "running Turns continue, and results are written when it is available again", log: log,
		check: func(ctx context.Context) error {
			return reachable(ctx, leases, namespace)
		},
	}
}

// reachable returns an error if the API server does not answer within apiTimeout, or answers with an error other than
// NotFound and Forbidden.
func reachable(ctx context.Context, leases kubernetes.Interface, namespace string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, apiTimeout, fmt.Errorf("it gave no answer within %s", apiTimeout))
	defer cancel()
	_, err := leases.CoordinationV1().Leases(namespace).Get(ctx, LeaderElectionID, metav1.GetOptions{})
	switch {
	case err == nil, apierrors.IsNotFound(err), apierrors.IsForbidden(err):
		return nil // the API server and its storage work
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return err
}

// apiTimeout is the time limit of one request to the API server.
const apiTimeout = 5 * time.Second

// awaitAPIServer waits until the API server answers, at most until the given time.
func awaitAPIServer(
	ctx context.Context, until time.Time, leases kubernetes.Interface, namespace string, log logr.Logger,
) error {
	_, err := retryUntil(ctx, until, log, "the API server", func() (struct{}, error) {
		err := reachable(ctx, leases, namespace)
		if apierrors.IsUnauthorized(err) {
			err = backoff.Permanent(err)
		}
		return struct{}{}, err
	})
	switch {
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("the API server refused the credentials: %w", err)
	case err != nil && ctx.Err() == nil:
		return fmt.Errorf("stopped waiting for the API server about %s after the start, check the kubeconfig: %w", startPatience, err)
	}
	return err
}
