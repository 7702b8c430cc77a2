package journaltest

import (
	"context"
	"crypto/rand"
	"errors"
	"iter"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/budget"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/memories"
	"github.com/capstan-dev/capstan/internal/runtime/ranking"
	"github.com/capstan-dev/capstan/internal/runtime/turnrecord"
	"github.com/capstan-dev/capstan/internal/store"
)

// Store is a store in memory. It starts no goroutine and never blocks, so it can be used within a synctest bubble.
// The zero value is empty and ready to use. It implements Keeper and store.Store.
type Store struct {
	mu       sync.Mutex
	journals map[string]*memoryJournal
	state    store.State
	marked   bool // true if nothing was appended since the last mark
	accounts map[budget.Key]budget.Account
	holds    map[string][]budget.Hold // by the UID of the Turn
	records  map[string]turnrecord.Record
	// deletedUntil is the latest end of a Turn whose record was purged or trimmed, by namespace.
	deletedUntil map[string]time.Time
	tasks        map[string]*memoryTask // by the Key of the task
	memories     map[string]memories.Memory
	// vectors are the vectors of memories, by their IDs.
	vectors  map[string]ranking.Vector
	observed map[string]memories.Observation // by the UID of the Turn
}

// memoryJournal is one journal of a Store.
type memoryJournal struct {
	entries   []journal.Entry
	artifacts map[string]journal.Artifact
	retired   time.Time // zero if the journal is not retired
	namespace string
	bytes     int64
	// expiredUntil is the note of SetExpired, until it runs out. The zero time means that there is none.
	expiredUntil time.Time
	// forgotten is true once Forget was called.
	forgotten bool
}

// Read yields entries one by one, including those that are appended during the iteration.
func (m *Store) Read(ctx context.Context, uid string, after int64) iter.Seq2[journal.Entry, error] {
	return store.Pages(after, func(after int64) ([]journal.Entry, bool, error) {
		if err := ctx.Err(); err != nil {
			return nil, false, context.Cause(ctx)
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		h := m.journals[uid]
		if h == nil || after >= int64(len(h.entries)) {
			return nil, false, nil
		}
		return []journal.Entry{h.entries[after]}, true, nil
	})
}

// Last returns the sequence number of the newest entry.
func (m *Store) Last(ctx context.Context, uid string) (int64, error) {
	if err := ctx.Err(); err != nil {
		return 0, context.Cause(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if h := m.journals[uid]; h != nil {
		return int64(len(h.entries)), nil
	}
	return 0, nil
}

// Append adds entries with their artifacts, all or none.
func (m *Store) Append(ctx context.Context, uid string, entries ...journal.Entry) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	h := m.journals[uid]
	if h == nil {
		h = &memoryJournal{artifacts: map[string]journal.Artifact{}}
	}
	var last journal.Entry
	if n := len(h.entries); n > 0 {
		last = h.entries[n-1]
	}
	if err := journal.CheckAppend(last.Seq, last.Epoch, entries); err != nil || len(entries) == 0 {
		return err
	}
	for _, e := range entries { // at most one entry changes the ledger, so a refusal has nothing to undo
		if err := m.apply(uid, e.Ledger); err != nil {
			return err
		}
	}
	for _, e := range entries {
		for _, a := range e.Artifacts {
			if _, ok := h.artifacts[a.SHA256]; !ok {
				a.Data = slices.Clone(a.Data)
				h.artifacts[a.SHA256] = a
			}
		}
		if e.TurnRecord != nil {
			m.addRecord(*e.TurnRecord)
		}
		if n := e.TurnNumber; n != nil {
			m.setTurnNumber(n)
		}
		for _, k := range e.Tasks {
			m.addTask(k)
		}
		e.Artifacts, e.TurnRecord, e.TurnNumber, e.Tasks, e.Ledger = nil, nil, nil, nil, nil
		e.Payload, e.Namespace = slices.Clone(e.Payload), ""
		if len(e.Payload) == 0 {
			e.Payload = nil
		}
		h.entries = append(h.entries, e)
	}
	h.bytes += store.BytesOf(entries)
	if h.namespace == "" {
		h.namespace = store.NamespaceOf(entries)
	}
	if m.journals == nil {
		m.journals = map[string]*memoryJournal{}
	}
	m.journals[uid] = h
	m.marked = false
	return nil
}

// PayloadBytes returns the size of the payloads of the entries from first to last.
func (m *Store) PayloadBytes(ctx context.Context, uid string, first, last int64) (bytes int64, err error) {
	if err := ctx.Err(); err != nil {
		return 0, context.Cause(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if h := m.journals[uid]; h != nil {
		for _, e := range h.entries {
			if e.Seq >= first && e.Seq <= last {
				bytes += int64(len(e.Payload)) + h.artifacts[e.Artifact].Bytes
			}
		}
	}
	return bytes, nil
}

// Artifact returns an artifact of a UID, or journal.ErrNoArtifact.
func (m *Store) Artifact(ctx context.Context, uid, sha256 string) (journal.Artifact, error) {
	if err := ctx.Err(); err != nil {
		return journal.Artifact{}, context.Cause(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if h := m.journals[uid]; h != nil {
		if a, ok := h.artifacts[sha256]; ok {
			return a, nil
		}
	}
	return journal.Artifact{}, journal.ErrNoArtifact
}

// Retire marks journals as retired at a time. It deletes what was learned from their Turns and Sessions, closes their
// reservations and ends their tasks.
func (m *Store) Retire(ctx context.Context, at time.Time, uids ...string) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, uid := range uids {
		if h := m.journals[uid]; h != nil && h.retired.IsZero() {
			h.dropStaleNote(at)
			h.retired = at
		}
		m.forget(uid)
		m.dropComments(uid)
		if err := errors.Join(m.apply(uid, &budget.Change{}), m.endTasks(uid, at)); err != nil {
			return err
		}
	}
	return nil
}

// Forget deletes what was learned from deleted Turns and Sessions.
func (m *Store) Forget(ctx context.Context, at time.Time, uids ...string) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, uid := range uids {
		if h := m.journals[uid]; h != nil {
			h.dropStaleNote(at)
			h.forgotten = true
		}
		m.forget(uid)
	}
	return nil
}

// dropComments deletes the comments in the feedback on a deleted Turn.
func (m *Store) dropComments(uid string) {
	if r, ok := m.records[uid]; ok {
		r.Feedback, _ = turnrecord.WithoutComments(r.Feedback)
		m.records[uid] = r
	}
}

// Purge deletes at most limit journals that were retired at or before a time, oldest first.
func (m *Store) Purge(ctx context.Context, before time.Time, limit int) (purged int, err error) {
	if err := ctx.Err(); err != nil {
		return 0, context.Cause(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	uids := m.uids(func(h *memoryJournal) bool { return !h.retired.IsZero() && !h.retired.After(before) })
	slices.SortStableFunc(uids, func(a, b string) int { return m.journals[a].retired.Compare(m.journals[b].retired) })
	uids = uids[:min(len(uids), max(limit, 0))]
	for _, uid := range uids {
		delete(m.journals, uid)
	}
	return len(uids), nil
}

// UIDs returns at most limit UIDs after the given one, in byte order. It skips retired journals.
func (m *Store) UIDs(ctx context.Context, after string, limit int) ([]string, error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	uids := m.uids(func(h *memoryJournal) bool { return h.retired.IsZero() })
	uids = slices.DeleteFunc(uids, func(uid string) bool { return uid <= after })
	return uids[:min(len(uids), max(limit, 0))], nil
}

// RetiredUIDs returns at most limit UIDs of retired journals after the given one, in byte order.
func (m *Store) RetiredUIDs(ctx context.Context, after string, limit int) ([]string, error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	uids := m.uids(func(h *memoryJournal) bool { return !h.retired.IsZero() })
	uids = slices.DeleteFunc(uids, func(uid string) bool { return uid <= after })
	return uids[:min(len(uids), max(limit, 0))], nil
}

// Revive undoes Retire and Forget for retired journals.
func (m *Store) Revive(ctx context.Context, uids ...string) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, uid := range uids {
		if h := m.journals[uid]; h != nil && !h.retired.IsZero() {
			h.retired, h.forgotten = time.Time{}, false
		}
	}
	return nil
}

// uids returns the UIDs of the journals for which selects returns true, in byte order.
func (m *Store) uids(selects func(*memoryJournal) bool) []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(m.journals)), func(uid string) bool { return !selects(m.journals[uid]) })
}

// Lose drops the entries of a journal after a sequence number, as a failover to a lagging replica does.
func (m *Store) Lose(uid string, after int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if h := m.journals[uid]; h != nil {
		h.entries = h.entries[:min(max(after, 0), int64(len(h.entries)))]
	}
}

// State returns the state of the store. The first call creates its ID, with the incarnation "1".
func (m *Store) State(ctx context.Context) (store.State, error) {
	if err := ctx.Err(); err != nil {
		return store.State{}, context.Cause(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.currentState(), nil
}

// currentState returns the state, and creates it if there is none. The caller must hold m.mu.
func (m *Store) currentState() store.State {
	if m.state == (store.State{}) {
		m.state.Identity = store.Identity{ID: rand.Text(), Incarnation: "1"}
	}
	return m.state
}

// Mark gives the store a new position, and a new incarnation if its position is below least.
func (m *Store) Mark(ctx context.Context, least int64) (store.State, error) {
	if err := ctx.Err(); err != nil {
		return store.State{}, context.Cause(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	st := m.currentState()
	if st.Lost = st.Position < least; st.Lost {
		st.Incarnation = rand.Text()
	}
	if st.Lost || !m.marked {
		st.Position = max(st.Position, least) + 1
		m.marked = true
	}
	m.state = store.State{Identity: st.Identity, Position: st.Position}
	return st, nil
}

// Size returns the size of the store. Its Bytes is the size of all payloads and of all compressed artifacts.
func (m *Store) Size(ctx context.Context) (z store.Size, err error) {
	if err := ctx.Err(); err != nil {
		return z, context.Cause(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, h := range m.journals {
		z.Journals++
		if !h.retired.IsZero() {
			z.Retired++
		}
		z.Entries += int64(len(h.entries))
		z.Artifacts += int64(len(h.artifacts))
		for _, e := range h.entries {
			z.Bytes += int64(len(e.Payload))
		}
		for _, a := range h.artifacts {
			z.Bytes += int64(len(a.Data))
		}
	}
	return z, nil
}

// Use returns the space that the journals and memories use. The free space is unknown.
func (m *Store) Use(ctx context.Context) (store.Use, error) {
	if err := ctx.Err(); err != nil {
		return store.Use{}, context.Cause(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	u := store.Use{Free: -1, Namespaces: map[string]int64{}}
	for _, h := range m.journals {
		u.Bytes += h.bytes
		if h.namespace != "" {
			u.Namespaces[h.namespace] += h.bytes
		}
	}
	for id, memory := range m.memories {
		bytes := int64(512 + 4*len(memory.Text) + 4*len(m.vectors[id].Values))
		u.Bytes += bytes
		u.Namespaces[memory.Namespace] += bytes
	}
	return u, nil
}

// Check returns an error only if ctx has ended.
func (m *Store) Check(ctx context.Context) error { return context.Cause(ctx) }

// Close does nothing: the journals exist as long as the value does.
func (m *Store) Close() error { return nil }
