package journaltest

import (
	"maps"
	"slices"
)

// Clone returns a store with the same contents. Later changes of one of the two stores do not affect the other.
func (m *Store) Clone() *Store {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := &Store{
		journals: map[string]*memoryJournal{}, state: m.state, marked: m.marked,
		accounts: maps.Clone(m.accounts), holds: maps.Clone(m.holds), records: maps.Clone(m.records),
		deletedUntil: maps.Clone(m.deletedUntil), memories: maps.Clone(m.memories), vectors: maps.Clone(m.vectors),
		observed: maps.Clone(m.observed),
	}
	for uid, h := range m.journals {
		h := *h
		h.entries, h.artifacts = slices.Clone(h.entries), maps.Clone(h.artifacts)
		c.journals[uid] = &h
	}
	for key, k := range m.tasks {
		if c.tasks == nil {
			c.tasks = map[string]*memoryTask{}
		}
		c.tasks[key] = new(*k)
	}
	return c
}
