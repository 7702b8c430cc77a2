package quota

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"

	"github.com/capstan-dev/capstan/internal/metrics"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/store"
)

const (
	// interval is the time between two measurements. minInterval is the shortest time between them, if much was
	// appended since the last measurement.
	interval    = 5 * time.Second
	minInterval = 250 * time.Millisecond
	// step is the part of the smallest quota (1 of 64) after which the use is measured early: a namespace with many
	// Turns can write hundreds of MiB in one interval. Expected bytes count from the beginning of a run, because too
	// many runs could begin before their first bytes are written.
	step = 64
	// share bounds the load of measurements: the pause after a measurement is at least 20 times the duration of this
	// measurement or of the previous one, whichever was shorter. So a single slow measurement, which may have waited
	// for a processor, causes no long pause in which a namespace could fill its quota.
	share = 20
	// timeout bounds a measurement.
	timeout = time.Minute
)

// Meter measures the use of a store at intervals. It implements manager.Runnable.
type Meter struct {
	// Store is the store that is measured.
	Store store.Meter
	// Limits are the quotas.
	Limits Limits
	// Forecast receives the bytes that are appended, and returns the bytes that are expected. It may be nil.
	Forecast *Forecast
	// Changed receives each Report, in the goroutine that measures. It may be nil.
	Changed func(*Report)
	// Log receives failures.
	Log logr.Logger

	last      atomic.Pointer[Report]
	executors atomic.Int64
	// appended is the number of bytes that were appended, or became expected, since the last measurement began. early
	// holds a token once this number reaches a step.
	appended atomic.Int64
	early    chan struct{}
}

// Journal returns a journal that reports its appends to the Meter. It must be called before Start, at most once.
func (m *Meter) Journal(j journal.Journal) journal.Journal {
	m.early = make(chan struct{}, 1)
	if m.Forecast != nil {
		m.Forecast.grown = m.note
	}
	return &metered{Journal: j, meter: m}
}

type metered struct {
	journal.Journal
	meter *Meter
}

// Append appends entries, and reports their size to the Meter.
func (m *metered) Append(ctx context.Context, uid string, entries ...journal.Entry) error {
	if err := m.Journal.Append(ctx, uid, entries...); err != nil {
		return err
	}
	bytes := store.BytesOf(entries)
	m.meter.Forecast.wrote(uid, bytes)
	m.meter.note(bytes)
	return nil
}

// note counts bytes that were appended or became expected, and requests an early measurement once they reach a step.
func (m *Meter) note(bytes int64) {
	last := m.last.Load()
	if last == nil {
		return // the first measurement is not complete yet
	}
	smallest := m.smallestQuota(last)
	if smallest == 0 || m.appended.Add(bytes) < smallest/step {
		return
	}
	select {
	case m.early <- struct{}{}:
	default: // a measurement is already requested
	}
}

// smallestQuota returns the smaller one of the total quota and the quota of a namespace, or 0 if there is none.
func (m *Meter) smallestQuota(r *Report) int64 {
	total, own := r.Total.Limit, m.Limits.PerNamespace
	if total == 0 || own == 0 {
		return max(total, own)
	}
	return min(total, own)
}

// NeedLeaderElection returns false: each process with an executor publishes its own Report.
func (m *Meter) NeedLeaderElection() bool { return false }

// SetExecutors sets the number of executors that share the store. It is 1 before the first call.
func (m *Meter) SetExecutors(n int) { m.executors.Store(int64(n)) }

// Last returns the newest Report, or nil if there is none.
func (m *Meter) Last() *Report { return m.last.Load() }

// Start measures until ctx ends.
func (m *Meter) Start(ctx context.Context) error {
	next := time.NewTimer(0)
	defer next.Stop()
	var earliest time.Time
	var last time.Duration
	for {
		if !m.await(ctx, next.C, earliest) {
			return nil
		}
		m.appended.Store(0)
		begun := time.Now() //nolint:forbidigo // because a duration is measured, not a time of day
		if err := m.Measure(ctx); err != nil && ctx.Err() == nil && !errors.Is(err, store.ErrClosed) {
			m.Log.Error(err, "Failed to measure the journals; the last measurement stays valid")
		}
		took := time.Since(begun)
		pause := share * min(took, last)
		last = took
		earliest = time.Now().Add(max(minInterval, pause)) //nolint:forbidigo // because a duration is measured, not a time of day
		next.Reset(max(interval, pause))
	}
}

// await waits until the next measurement is due or an early one is requested. An early measurement is not made before
// earliest. await returns false once ctx has ended.
func (m *Meter) await(ctx context.Context, due <-chan time.Time, earliest time.Time) bool {
	select {
	case <-ctx.Done():
		return false
	case <-due:
		return true
	case <-m.early:
	}
	early := time.NewTimer(time.Until(earliest))
	defer early.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-due:
	case <-early.C:
	}
	return true
}

// Measure makes one measurement. If it fails, the last Report stays valid.
func (m *Meter) Measure(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	expected := m.Forecast.expected() // first, so that bytes written during the measurement count twice instead of never
	u, err := m.Store.Use(ctx)
	if err != nil {
		return err
	}
	r := m.Limits.evaluate(u, expected, m.executors.Load())
	m.Forecast.setQuota(m.smallestQuota(&r))
	m.last.Store(&r)
	metrics.SetJournalUsage(metricsOf(m.Limits, u, r))
	if m.Changed != nil {
		m.Changed(&r)
	}
	return nil
}

// metricsOf returns the figures for the metrics.
func metricsOf(l Limits, u store.Use, r Report) metrics.Usage {
	all := metrics.Usage{Bytes: r.Total.Used, Quota: r.Total.Limit, Namespaces: map[string]metrics.NamespaceUsage{}}
	for namespace, used := range u.Namespaces {
		all.Namespaces[namespace] = metrics.NamespaceUsage{Bytes: used, Quota: l.namespace(u, namespace, nil).Limit}
	}
	return all
}
