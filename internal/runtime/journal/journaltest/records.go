package journaltest

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/turnrecord"
	"github.com/capstan-dev/capstan/internal/store"
)

// addRecord adds a record unless its Turn has one. It returns the number of added records. The caller must hold m.mu.
func (m *Store) addRecord(r turnrecord.Record) int {
	if _, ok := m.records[r.UID]; ok {
		return 0
	}
	if m.records == nil {
		m.records = map[string]turnrecord.Record{}
	}
	m.records[r.UID] = r
	return 1
}

// setTurnNumber sets the number in the record of a Turn, if there is one. The caller must hold m.mu.
func (m *Store) setTurnNumber(n *journal.TurnNumber) {
	if r, ok := m.records[n.TurnUID]; ok {
		r.TurnNumber = n.Number
		m.records[n.TurnUID] = r
	}
}

// AddRecords adds records.
func (m *Store) AddRecords(ctx context.Context, records ...turnrecord.Record) (added int, err error) {
	if ctx.Err() != nil {
		return 0, context.Cause(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range records {
		added += m.addRecord(r)
	}
	return added, nil
}

// Unrecorded returns the UIDs without a record.
func (m *Store) Unrecorded(ctx context.Context, uids []string) ([]string, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(uids), func(uid string) bool {
		_, ok := m.records[uid]
		return ok
	}), nil
}

// selected returns the records of a query, newest first. The caller must hold m.mu.
func (m *Store) selected(q store.RecordQuery) (all []turnrecord.Record) {
	for _, r := range m.records {
		_, hasComment := turnrecord.WithoutComments(r.Feedback)
		if q.Selects(&r) && (hasComment || !q.Commented) && !r.Completed.Before(q.Since) &&
			(q.Until.IsZero() || r.Completed.Before(q.Until)) &&
			(q.After.UID == "" || compareNewestFirst(q.After, store.PositionOf(&r)) < 0) {
			all = append(all, r)
		}
	}
	slices.SortFunc(all, func(a, b turnrecord.Record) int {
		return compareNewestFirst(store.PositionOf(&a), store.PositionOf(&b))
	})
	return all
}

// compareNewestFirst compares positions so that newer positions come first.
func compareNewestFirst(a, b store.RecordPosition) int {
	return -cmp.Or(a.Completed.Compare(b.Completed), cmp.Compare(a.UID, b.UID))
}

// Records returns a page of records.
func (m *Store) Records(ctx context.Context, q store.RecordQuery) (page []turnrecord.Record, more bool, err error) {
	if ctx.Err() != nil {
		return nil, false, context.Cause(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	all := m.selected(q)
	all = all[:min(len(all), q.MaxPage())]
	bytes := 0
	for i := range all {
		data, err := json.Marshal(all[i])
		if err != nil {
			return nil, false, fmt.Errorf("failed to measure a record: %w", err)
		}
		if bytes += len(data); bytes >= store.PageRecordBytes {
			return all[:i+1], true, nil
		}
	}
	return all, len(all) == q.MaxPage(), nil
}

// deleteRecords deletes up to limit records of a query, oldest first. If note is true, DeletedUntil takes them into
// account.
func (m *Store) deleteRecords(ctx context.Context, q store.RecordQuery, limit int, note bool) (int, error) {
	if ctx.Err() != nil {
		return 0, context.Cause(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	all := m.selected(q)
	slices.Reverse(all)
	all = all[:min(len(all), max(limit, 0))]
	for _, r := range all {
		delete(m.records, r.UID)
		if until := m.deletedUntil[r.Namespace]; note && r.Completed.After(until) {
			if m.deletedUntil == nil {
				m.deletedUntil = map[string]time.Time{}
			}
			m.deletedUntil[r.Namespace] = r.Completed
		}
	}
	return len(all), nil
}

// DeletedUntil returns the latest end of a Turn whose record was purged or trimmed.
func (m *Store) DeletedUntil(ctx context.Context, namespace string) (until time.Time, err error) {
	if ctx.Err() != nil {
		return until, context.Cause(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for of, latest := range m.deletedUntil {
		if (namespace == "" || namespace == of) && latest.After(until) {
			until = latest
		}
	}
	return until, nil
}

// PurgeRecords deletes old records.
func (m *Store) PurgeRecords(ctx context.Context, before time.Time, limit int) (int, error) {
	return m.deleteRecords(ctx, store.RecordQuery{Until: before}, limit, true)
}

// TrimRecords deletes the oldest records of the namespace with the most records.
func (m *Store) TrimRecords(ctx context.Context, maxRecords, limit int) (int, error) {
	counts := map[string]int{}
	fullest := ""
	m.mu.Lock()
	for _, r := range m.records {
		if counts[r.Namespace]++; counts[r.Namespace] > counts[fullest] {
			fullest = r.Namespace
		}
	}
	m.mu.Unlock()
	if counts[fullest] <= maxRecords {
		return 0, ctx.Err()
	}
	return m.deleteRecords(ctx, store.RecordQuery{RecordSelector: store.RecordSelector{Namespace: fullest}},
		min(limit, counts[fullest]-maxRecords), true)
}

// DeleteRecords deletes selected records.
func (m *Store) DeleteRecords(ctx context.Context, s store.RecordSelector, limit int) (int, error) {
	return m.deleteRecords(ctx, store.RecordQuery{RecordSelector: s}, limit, false)
}

// AddFeedback adds feedback to the record of a Turn.
func (m *Store) AddFeedback(ctx context.Context, namespace, turn, uid string, f turnrecord.Feedback) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	all := m.selected(store.RecordQuery{RecordSelector: store.RecordSelector{Namespace: namespace, Turn: turn}})
	all = slices.DeleteFunc(all, func(r turnrecord.Record) bool { return uid != "" && r.UID != uid })
	if len(all) == 0 {
		return store.ErrNoRecord
	}
	r := all[0]
	h := m.journals[r.UID]
	if f.Comment != "" && h != nil && !h.retired.IsZero() {
		return store.ErrTurnDeleted
	}
	var err error
	if r.Feedback, err = turnrecord.WithFeedback(r.Feedback, f); err == nil {
		m.records[r.UID] = r
	}
	return err
}
