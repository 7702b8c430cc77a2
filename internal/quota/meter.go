package quota

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"

	"github.com/capstan-dev/capstan/internal/metrics"
	"github.com/capstan-dev/capstan/internal/store"
)

const (
	// interval is the least time between two measurements: a Turn writes some MiB a second at most.
	interval = 5 * time.Second
	// share is how many times as long as a measurement took the store is left alone after it.
	share = 20
	// timeout bounds a measurement.
	timeout = time.Minute
)

// Meter measures the use of a store, again and again. It implements manager.Runnable.
type Meter struct {
	// Store that is measured.
	Store store.Meter
	// Limits that it is judged by.
	Limits Limits
	// Changed receives each Report, in the goroutine that measures. If Changed is nil, nobody does.
	Changed func(*Report)
	// Log receives failures.
	Log logr.Logger

	last atomic.Pointer[Report]
}

// NeedLeaderElection is false: each process with an executor publishes what it knows.
func (m *Meter) NeedLeaderElection() bool { return false }

// Last returns the newest Report; nil if there is none.
func (m *Meter) Last() *Report { return m.last.Load() }

// Start measures until ctx ends.
func (m *Meter) Start(ctx context.Context) error {
	next := time.NewTimer(0)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-next.C:
		}
		begun := time.Now() //nolint:forbidigo // because a duration is measured, not a time of day
		if err := m.Measure(ctx); err != nil && ctx.Err() == nil && !errors.Is(err, store.ErrClosed) {
			m.Log.Error(err, "Failed to learn how much room the journals use; the last figures hold")
		}
		next.Reset(max(interval, share*time.Since(begun)))
	}
}

// Measure measures once. Where that fails, the last Report holds.
func (m *Meter) Measure(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	u, err := m.Store.Use(ctx)
	if err != nil {
		return err
	}
	r := m.Limits.Judge(u)
	m.last.Store(&r)
	metrics.JournalUse(metricsOf(m.Limits, u, r))
	if m.Changed != nil {
		m.Changed(&r)
	}
	return nil
}

// metricsOf are the figures for the metrics.
func metricsOf(l Limits, u store.Use, r Report) metrics.Use {
	all := metrics.Use{Bytes: r.Total.Used, Quota: r.Total.Limit, Namespaces: map[string]metrics.NamespaceUse{}}
	for namespace, used := range u.Namespaces {
		all.Namespaces[namespace] = metrics.NamespaceUse{Bytes: used, Quota: l.Namespace(u, used).Limit}
	}
	return all
}
