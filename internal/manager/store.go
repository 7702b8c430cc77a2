package manager

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/executor"
	"github.com/capstan-dev/capstan/internal/store"
	"github.com/capstan-dev/capstan/internal/store/postgres"
	"github.com/capstan-dev/capstan/internal/store/sqlite"
)

// location is where the journal is stored. Either path or url is set.
type location struct {
	// path is the path of an SQLite file.
	path string
	// url is the URL of a PostgreSQL database. It may contain a password and must not be logged; hosts and database
	// may.
	url      string
	hosts    []string
	database string
}

// shared reports whether several processes may use the store at the same time.
func (l location) shared() bool { return l.url != "" }

// shown returns the parts of a location that a log may show, as keys and values.
func (l location) shown() []any {
	if l.url == "" {
		return []any{"store", "sqlite", "journal", l.path}
	}
	return []any{"store", "postgresql", "hosts", l.hosts, "database", l.database}
}

// location parses --store. Errors do not contain its value, because it may contain a password.
func (o *Options) location() (location, error) {
	if o.Store == "" {
		return location{path: filepath.Join(o.DataDir, "journal.db")}, nil
	}
	scheme, _, _ := strings.Cut(o.Store, "://")
	switch scheme {
	case "sqlite":
		path := strings.TrimPrefix(o.Store, "sqlite://")
		if !filepath.IsAbs(path) {
			return location{}, errors.New("--store must be of the form sqlite:///PATH, with an absolute path, so with three slashes")
		}
		return location{path: path}, nil
	case "postgres", "postgresql":
		hosts, database, err := postgres.Target(o.Store)
		if err != nil {
			return location{}, fmt.Errorf("--store: %w", err)
		}
		return location{url: o.Store, hosts: hosts, database: database}, nil
	}
	return location{}, errors.New("--store must be a URL that begins with sqlite://, postgres:// or postgresql:// " +
		"(its value is not shown, because it may contain a password)")
}

// openStore opens the store that the options name. It waits for a PostgreSQL server that is unavailable, and for a file
// that another process uses, until the given time. The caller must call Close.
func openStore(ctx context.Context, o *Options, until time.Time, log logr.Logger) (store.Store, error) {
	l, err := o.location()
	if err != nil {
		return nil, err
	}
	log = log.WithValues(l.shown()...)
	ctx = logr.NewContext(ctx, log)
	if l.url == "" {
		// The process of the previous Pod may still be running.
		return await(ctx, until, log, sqlite.IsInUse, func(ctx context.Context) (store.Store, error) {
			s, err := sqlite.Open(ctx, l.path)
			return orNil(s, err)
		})
	}
	return await(ctx, until, log, postgres.IsAway, func(ctx context.Context) (store.Store, error) {
		s, err := postgres.Open(ctx, l.url, o.WatchNamespaces...)
		return orNil(s, err)
	})
}

// orNil returns s as an interface, or a nil interface if err is not nil. A nil pointer would become a non-nil
// interface.
func orNil[S store.Store](s S, err error) (store.Store, error) {
	if err != nil {
		return nil, err
	}
	return s, nil
}

// startPatience is how long the process waits, when it starts, for all that it needs together: the store, the API
// server and the CustomResourceDefinitions. With it, the last line of the log states the reason, and the kubelet
// restarts the process with increasing, visible delays. A migration of the store may take longer.
const startPatience = 30 * time.Second

// retryUntil calls try until it succeeds, returns a permanent error, or would be called again after the given time. It
// calls try at least once. It logs at info that it waits for what, once for each new cause, because a start has few
// lines at info. Further failures with the same cause are at debug.
func retryUntil[T any](ctx context.Context, until time.Time, log logr.Logger, what string, try func() (T, error)) (T, error) {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = 500*time.Millisecond, 5*time.Second
	left := max(time.Until(until), time.Nanosecond) // 0 would mean no limit
	logged := ""
	return backoff.Retry(ctx, try, backoff.WithBackOff(wait), backoff.WithMaxElapsedTime(left),
		backoff.WithNotify(func(cause error, wait time.Duration) {
			level := 0
			if cause.Error() == logged {
				level = 1
			}
			logged = cause.Error()
			log.V(level).Info("Waiting for "+what, "cause", logged, "in", wait.Round(time.Millisecond).String())
		}))
}

// await opens a store. While the store is unavailable, it tries again.
func await(
	ctx context.Context, until time.Time, log logr.Logger, isUnavailable func(error) bool, open func(context.Context) (store.Store, error),
) (store.Store, error) {
	attempts := 0
	s, err := retryUntil(ctx, until, log, "the store of the journal", func() (store.Store, error) {
		attempts++
		s, err := open(ctx)
		if err != nil && !isUnavailable(err) {
			err = backoff.Permanent(err)
		}
		return s, err
	})
	if err != nil && attempts > 1 && ctx.Err() == nil {
		return nil, fmt.Errorf("stopped waiting for the store of the journal about %s after the start: %w", startPatience, err)
	}
	return s, err
}

// identify reads the identity of the store and compares it with the Leases of executors. It runs before a Turn is
// bound or run, and before this process publishes a position of its own.
func (p *parts) identify(ctx context.Context, until time.Time) error {
	p.identity = store.NewTracker(p.store, store.TrackerOptions{
		Published: func(ctx context.Context, id string) (int64, error) {
			return executor.PublishedPosition(ctx, p.clientset, p.options.Namespace, id)
		},
		Lost: p.entriesLost,
	})
	_, err := retryUntil(ctx, until, p.log, "the identity of the store of the journal",
		func() (store.Identity, error) { return p.identity.Identity(ctx) })
	if err != nil {
		return fmt.Errorf("failed to read the identity of the store of the journal: %w", err)
	}
	return nil
}

// entriesLost logs that the store may have lost confirmed entries, and emits an Event. Each affected Turn reports the
// effect in its own status. For the parameters, see store.TrackerOptions.Lost.
func (p *parts) entriesLost(known int64, found, after store.State) {
	cause := "it has failed over to another server, or was replaced, and nothing proves that it has all entries"
	if found.Position < known {
		cause = fmt.Sprintf("it is at position %d and had reached %d: an older copy of it was restored, or a "+
			"replica without the newest entries took over",
			found.Position, known)
	}
	p.log.Info("The store may have lost entries of the journal that it had confirmed", "storeID", after.ID, "cause", cause,
		"incarnation", after.Incarnation, "incarnationBefore", found.Incarnation)
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Namespace: p.options.Namespace,
		Name:      executor.LeasePrefix + p.options.ExecutorName,
	}}
	p.events.Eventf(lease, nil, corev1.EventTypeWarning, v1alpha1.EventStoreLostEntries, "Compare",
		"store %q may have lost entries of the journal that it had confirmed: %s", after.ID, cause)
}
