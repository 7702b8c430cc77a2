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
	// interval is the time between two measurements, soonest the least where much is being appended meanwhile.
	interval = 5 * time.Second
	soonest  = 250 * time.Millisecond
	// step is the part of the least quota after which the use is measured again before its time: a namespace of many Turns
	// writes hundreds of MiB in one interval.
	step = 64
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
	// Forecast is told what is appended, and says what is still to come; nil expects nothing.
	Forecast *Forecast
	// Changed receives each Report, in the goroutine that measures. If Changed is nil, nobody does.
	Changed func(*Report)
	// Log receives failures.
	Log logr.Logger

	last atomic.Pointer[Report]
	// appended is how many bytes were appended since the last measurement began, and much holds a token once that is a step.
	appended atomic.Int64
	much     chan struct{}
}

// Journal returns a journal that tells the Meter how much is appended to it. It is called before Start, at most once.
func (m *Meter) Journal(j journal.Journal) journal.Journal {
	m.much = make(chan struct{}, 1)
	return &metered{Journal: j, meter: m}
}

type metered struct {
	journal.Journal
	meter *Meter
}

// Append appends, and tells how much.
func (m *metered) Append(ctx context.Context, uid string, entries ...journal.Entry) error {
	if err := m.Journal.Append(ctx, uid, entries...); err != nil {
		return err
	}
	bytes := store.BytesOf(entries)
	m.meter.Forecast.wrote(uid, bytes)
	m.meter.note(bytes)
	return nil
}

// note has the store measured soon once much was appended.
func (m *Meter) note(bytes int64) {
	last := m.last.Load()
	if last == nil {
		return // the first measurement is under way
	}
	least := last.Total.Limit
	if own := m.Limits.PerNamespace; own > 0 && (least == 0 || own < least) {
		least = own
	}
	if least == 0 || m.appended.Add(bytes) < least/step {
		return
	}
	select {
	case m.much <- struct{}{}:
	default: // it is to be measured already
	}
}

// NeedLeaderElection is false: each process with an executor publishes what it knows.
func (m *Meter) NeedLeaderElection() bool { return false }

// Last returns the newest Report; nil if there is none.
func (m *Meter) Last() *Report { return m.last.Load() }

// Start measures until ctx ends.
func (m *Meter) Start(ctx context.Context) error {
	next := time.NewTimer(0)
	defer next.Stop()
	var earliest time.Time
	for {
		if !m.await(ctx, next.C, earliest) {
			return nil
		}
		m.appended.Store(0)
		begun := time.Now() //nolint:forbidigo // because a duration is measured, not a time of day
		if err := m.Measure(ctx); err != nil && ctx.Err() == nil && !errors.Is(err, store.ErrClosed) {
			m.Log.Error(err, "Failed to learn how much room the journals use; the last figures hold")
		}
		pause := share * time.Since(begun)
		earliest = time.Now().Add(max(soonest, pause)) //nolint:forbidigo // because a duration is measured, not a time of day
		next.Reset(max(interval, pause))
	}
}

// await waits for the next measurement: until its time has come, or, not before earliest, until much was appended. It returns false once
// ctx has ended.
func (m *Meter) await(ctx context.Context, due <-chan time.Time, earliest time.Time) bool {
	select {
	case <-ctx.Done():
		return false
	case <-due:
		return true
	case <-m.much:
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

// Measure measures once. Where that fails, the last Report holds.
func (m *Meter) Measure(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	expected := m.Forecast.expected() // before the use is known: what is written meanwhile counts twice, and not never
	u, err := m.Store.Use(ctx)
	if err != nil {
		return err
	}
	r := m.Limits.Judge(u, expected)
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
		all.Namespaces[namespace] = metrics.NamespaceUse{Bytes: used, Quota: l.namespace(u, namespace, nil).Limit}
	}
	return all
}
