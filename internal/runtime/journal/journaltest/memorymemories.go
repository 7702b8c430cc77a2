package journaltest

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/memories"
	"github.com/capstan-dev/capstan/internal/runtime/ranking"
	"github.com/capstan-dev/capstan/internal/runtime/task"
	"github.com/capstan-dev/capstan/internal/runtime/turnrecord"
	"github.com/capstan-dev/capstan/internal/store"
)

// isLive reports whether a UID has a journal that is neither retired nor forgotten.
func (m *Store) isLive(uid string) bool {
	h := m.journals[uid]
	return h != nil && !h.isForgotten()
}

// keep stores learned memories. If an owner then exceeds a limit, keep deletes the oldest memories of the owner.
func (m *Store) keep(l *task.Learned) {
	if m.memories == nil {
		m.memories = map[string]memories.Memory{}
	}
	var kept []memories.Memory
	for _, memory := range l.Memories {
		if memory.SessionUID != "" && !m.sessionState(memory.SessionUID).Keeps(&memory) {
			continue
		}
		kept = append(kept, memory)
		if known, ok := m.memories[memory.ID]; !ok || !known.Learned.After(memory.Learned) {
			m.memories[memory.ID] = memory
		}
	}
	for _, owner := range store.OwnerKeys(kept) {
		all := m.memoriesWhere(func(memory *memories.Memory) bool { return memory.Owner().Key() == owner })
		bytes := 0
		for i := range all {
			if bytes += len(all[i].Text); i >= l.MaxItems || bytes > memories.MaxOwnerBytes {
				delete(m.memories, all[i].ID)
			}
		}
	}
}

// memoriesWhere returns the memories for which selects returns true, newest first.
func (m *Store) memoriesWhere(selects func(*memories.Memory) bool) []memories.Memory {
	var all []memories.Memory
	for _, memory := range m.memories {
		if selects(&memory) {
			all = append(all, memory)
		}
	}
	store.SortNewestFirst(all)
	return all
}

// forget deletes the memories and observations of a deleted Turn or Session.
func (m *Store) forget(uid string) {
	if uid == "" { // memories may have no Session or no Turn
		return
	}
	if h := m.journals[uid]; h != nil && !h.expiredUntil.IsZero() {
		m.release(uid)
	}
	maps.DeleteFunc(m.memories, func(_ string, memory memories.Memory) bool { return memory.SessionUID == uid || memory.TurnUID == uid })
	maps.DeleteFunc(m.observed, func(_ string, o memories.Observation) bool { return o.SessionUID == uid || o.TurnUID == uid })
}

// FindMemories returns the memories that the owners have and that may match a search.
func (m *Store) FindMemories(
	ctx context.Context, owners []memories.Owner, s memories.Search, now time.Time,
) ([]memories.Memory, error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []memories.Memory
	for _, o := range owners {
		position := 0
		nearest := store.Nearest{To: s.Vector}
		own := m.memoriesWhere(func(memory *memories.Memory) bool { return memory.Owner() == o && memory.Expires.After(now) })
		for _, memory := range own {
			if v, ok := m.vectors[memory.ID]; ok && v.Space == s.Vector.Space {
				nearest.Add(memory.ID, v.Bytes())
			}
		}
		nearest.SetSimilarities(own)
		near := nearest.IDs()
		for _, memory := range own {
			fits := slices.ContainsFunc(ranking.Words(memory.Text), func(w string) bool { return slices.Contains(s.Words, w) })
			if position++; fits || position <= memories.MaxNewest || slices.Contains(near, memory.ID) {
				all = append(all, memory)
			}
		}
	}
	return all, nil
}

// UnembeddedMemories returns the newest memories of owners that have no vector of a space.
func (m *Store) UnembeddedMemories(
	ctx context.Context, owners []memories.Owner, space string, now time.Time, perOwner int,
) (all []memories.Memory, err error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, o := range owners {
		found := m.memoriesWhere(func(memory *memories.Memory) bool {
			return memory.Owner() == o && memory.Expires.After(now) && m.vectors[memory.ID].Space != space
		})
		all = append(all, found[:min(len(found), max(perOwner, 0))]...)
	}
	return all, nil
}

// EmbedMemories sets the vectors of memories.
func (m *Store) EmbedMemories(ctx context.Context, all []memories.Embedded) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range all {
		if _, ok := m.memories[e.ID]; !ok {
			continue
		}
		if m.vectors == nil {
			m.vectors = map[string]ranking.Vector{}
		}
		m.vectors[e.ID] = e.Vector
	}
	for _, last := range store.LastVectors(all) {
		for _, id := range last.IDs {
			owner, ok := m.memories[id]
			if !ok {
				continue
			}
			maps.DeleteFunc(m.vectors, func(id string, v ranking.Vector) bool {
				other := m.memories[id]
				return v.Given() && v.Space == last.Space && len(v.Bytes()) != last.Bytes && other.Owner() == owner.Owner()
			})
		}
	}
	return nil
}

// ListMemories returns a page of memories.
func (m *Store) ListMemories(ctx context.Context, q store.MemoryQuery) ([]memories.Memory, error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	all := m.memoriesWhere(func(memory *memories.Memory) bool {
		after := q.After.ID == "" || cmp.Or(memory.Learned.Compare(q.After.Learned), strings.Compare(memory.ID, q.After.ID)) < 0
		return after && q.Selects(memory)
	})
	limit := store.MaxMemories
	if q.Limit > 0 {
		limit = min(limit, q.Limit)
	}
	return all[:min(len(all), limit)], nil
}

// forgetSources ends the tasks that would learn from selected Turns. If a scope is selected, the tasks continue, but
// learn nothing in that scope.
func (m *Store) forgetSources(s store.MemorySelector, at time.Time) error {
	sources := store.RecordSelector{Namespace: s.Namespace, Turn: s.Turn, Agent: s.Agent, Session: s.Session, Requester: s.Requester}
	for _, t := range m.tasks {
		about := turnrecord.Record{Namespace: t.Namespace, Turn: t.Turn, Agent: t.Agent, Session: t.Session, Requester: t.Requester}
		switch {
		case t.Kind != task.Learn || !sources.Selects(&about):
		case s.Scope == "":
			if err := m.endTask(t.UID, task.Learn, at); err != nil {
				return err
			}
		case t.Result == nil && !t.isPublished:
			t.Claim++
			t.Partial = t.Partial.WithoutScope(s.Scope)
		}
	}
	return nil
}

// DeleteMemories deletes selected memories.
func (m *Store) DeleteMemories(ctx context.Context, s store.MemorySelector, at time.Time, limit int) (int, error) {
	if err := ctx.Err(); err != nil {
		return 0, context.Cause(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if s.ID == "" {
		if err := m.forgetSources(s, at); err != nil {
			return 0, err
		}
	}
	if s.ID == "" && s.Scope == "" {
		maps.DeleteFunc(m.observed, func(_ string, o memories.Observation) bool {
			is := func(want, got string) bool { return want == "" || want == got }
			return is(s.Namespace, o.Namespace) && is(s.Turn, o.Turn) && is(s.Agent, o.Agent) && is(s.Session, o.Session) &&
				is(s.Requester, o.Requester)
		})
	}
	all := m.memoriesWhere(s.Selects)
	all = all[:min(len(all), max(limit, 0))]
	for i := range all {
		delete(m.memories, all[i].ID)
	}
	return len(all), nil
}

// SetExpired notes that an object is deleted because its time to live is over.
func (m *Store) SetExpired(ctx context.Context, uid string, until time.Time) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if h := m.journals[uid]; h != nil && !h.isForgotten() {
		h.expiredUntil = until
	}
	return nil
}

// isForgotten reports whether the memories of an object were forgotten.
func (h *memoryJournal) isForgotten() bool { return !h.retired.IsZero() || h.forgotten }

// dropStaleNote must be called before an object is retired or forgotten. The first call removes the note of SetExpired
// if the note has run out.
func (h *memoryJournal) dropStaleNote(at time.Time) {
	if !h.isForgotten() && h.expiredUntil.Before(at) {
		h.expiredUntil = time.Time{}
	}
}

// release makes memories outlive an expired object.
func (m *Store) release(uid string) {
	for id, memory := range m.memories {
		if memory.TurnUID == uid {
			memory.TurnUID = ""
		}
		if memory.SessionUID == uid && memory.Scope == memories.User {
			memory.SessionUID = ""
		}
		m.memories[id] = memory
	}
}

// sessionState returns the state of a Session by its UID.
func (m *Store) sessionState(uid string) store.SessionState {
	h := m.journals[uid]
	if h == nil {
		return store.SessionDeleted
	}
	return store.SessionStateOf(h.isForgotten(), !h.expiredUntil.IsZero())
}

// PurgeMemories deletes expired memories.
func (m *Store) PurgeMemories(ctx context.Context, now time.Time, limit int) (int, error) {
	if err := ctx.Err(); err != nil {
		return 0, context.Cause(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	all := m.memoriesWhere(func(memory *memories.Memory) bool { return !memory.Expires.After(now) })
	all = all[:min(len(all), max(limit, 0))]
	for i := range all {
		delete(m.memories, all[i].ID)
	}
	return len(all), nil
}

// Observe stores an observation.
func (m *Store) Observe(ctx context.Context, o memories.Observation) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	_, known := m.observed[o.TurnUID]
	if known || !m.isLive(o.TurnUID) || o.SessionUID != "" && !m.isLive(o.SessionUID) {
		return nil
	}
	if m.observed == nil {
		m.observed = map[string]memories.Observation{}
	}
	m.observed[o.TurnUID] = o
	return nil
}

// Observations returns the newest observations of an Agent.
func (m *Store) Observations(ctx context.Context, namespace, agent string, limit int) ([]memories.Observation, error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []memories.Observation
	for _, o := range m.observed {
		if o.Namespace == namespace && o.Agent == agent {
			all = append(all, o)
		}
	}
	slices.SortFunc(all, func(a, b memories.Observation) int {
		return cmp.Or(b.Time.Compare(a.Time), strings.Compare(b.TurnUID, a.TurnUID))
	})
	return all[:min(len(all), max(limit, 0))], nil
}
