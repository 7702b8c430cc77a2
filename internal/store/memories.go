package store

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/memories"
)

// Memories keeps what was learned from Turns. A task that is finished with memories stores them: see Tasks. The store
// deletes the memories and observations of a Turn or a Session when its journal is retired, except for memories that
// outlive the object: see SetExpired.
type Memories interface {
	memories.Learner

	// FindMemories returns the memories of owners that may fit a text and have not expired. For each owner, it returns
	// the following memories in any order: the memories that contain a word of the text; the memories.MaxNewest newest
	// memories; and, if the search has a vector, the memories.MaxNearest memories with the most similar vectors.
	// FindMemories sets the Similarity of each memory that has a vector of the same space as the vector of the search.
	// An owner keeps at most memories.MaxItems memories, so the cost is bounded.
	FindMemories(ctx context.Context, owners []memories.Owner, s memories.Search, now time.Time) ([]memories.Memory, error)

	// EmbedMemories sets the vectors of memories. It skips memories that no longer exist. A memory that is learned
	// again keeps its vector, because its words are the same. A vector without values marks a memory that gets no
	// vector of its space: UnembeddedMemories then leaves it out, and FindMemories finds it without a similarity.
	//
	// EmbedMemories drops the vectors of the same owners and the same space that have another length than the last of
	// the new vectors, because the model no longer makes vectors of that length: see LastVectors. It may keep such a
	// vector while another call changes its memory.
	EmbedMemories(ctx context.Context, all []memories.Embedded) error

	// UnembeddedMemories returns the newest memories of owners that have no vector of a space and have not expired at a
	// time, newest first for each owner, at most perOwner of each.
	UnembeddedMemories(ctx context.Context, owners []memories.Owner, space string, now time.Time, perOwner int) ([]memories.Memory, error)

	// ListMemories returns the memories that a query selects, newest first, at most MaxMemories.
	ListMemories(ctx context.Context, q MemoryQuery) ([]memories.Memory, error)

	// DeleteMemories deletes up to limit memories that a selector selects. It returns the number of deleted memories;
	// fewer than limit means that there are no more.
	//
	// The selector also decides about the tasks that would learn from the selected Turns. If the selector has an ID,
	// these tasks continue. If it has a scope and no ID, the tasks learn nothing more in this scope, and lose their
	// claims. Otherwise the tasks end, and the observations of the Turns are deleted.
	DeleteMemories(ctx context.Context, s MemorySelector, at time.Time, limit int) (deleted int, err error)

	// SetExpired notes that a Turn or a Session is deleted because its time to live is over. The note counts if the
	// object is retired or forgotten at or before the time until, to the microsecond. It must be set before the
	// deletion. The zero time removes the note, if the deletion fails. Retire and Forget let memories outlive such an
	// object: all memories of a Turn, which lose their TurnUID, but of a Session only those of scope User, which lose
	// their SessionUID. This includes memories of the Session that are learned later. SetExpired skips objects that are
	// retired or forgotten already, and UIDs without entries. It may skip objects from which nothing was learned and no
	// task learns.
	SetExpired(ctx context.Context, uid string, until time.Time) error

	// PurgeMemories deletes up to limit memories that have expired at a time. It returns the number of deleted
	// memories; fewer than limit means that there are no more.
	PurgeMemories(ctx context.Context, now time.Time, limit int) (purged int, err error)

	// Observations returns the newest observations of the Turns of an Agent, newest first, at most limit.
	Observations(ctx context.Context, namespace, agent string, limit int) ([]memories.Observation, error)
}

// MaxMemories is the maximum number of memories that ListMemories returns.
const MaxMemories = 500

// MemoryQuery selects memories and a page of them.
type MemoryQuery struct {
	MemorySelector
	// After is the position of the last memory of the previous page. The zero value selects the first page.
	After MemoryPosition
	// Limit is the maximum number of memories; 0 or more than MaxMemories means MaxMemories.
	Limit int
}

// MemoryPosition is the position of a memory in the order of ListMemories.
type MemoryPosition struct {
	Learned time.Time
	ID      string
}

// MemoryPositionOf returns the position of a memory.
func MemoryPositionOf(m *memories.Memory) MemoryPosition { return MemoryPosition{m.Learned, m.ID} }

// MemorySelector selects memories by their fields. An empty field selects any value.
type MemorySelector struct {
	Namespace, Turn, Agent, Session, Requester string
	Scope                                      memories.Scope
	ID                                         string
}

// Source yields the columns, with their values, that select the Turns from which memories were learned. It leaves out
// the scope and the ID of the memories.
func (s MemorySelector) Source(yield func(column, value string) bool) {
	RecordSelector{s.Namespace, s.Turn, s.Agent, s.Session, s.Requester}.Conditions(yield)
}

// Conditions yields the columns that the selector limits, with their values.
func (s MemorySelector) Conditions(yield func(column, value string) bool) {
	more := true
	s.Source(func(column, value string) bool {
		more = yield(column, value)
		return more
	})
	for _, c := range []struct{ column, value string }{{"scope", string(s.Scope)}, {"id", s.ID}} {
		if more && c.value != "" {
			more = yield(c.column, c.value)
		}
	}
}

// Selects reports whether the selector selects a memory.
func (s MemorySelector) Selects(m *memories.Memory) bool {
	is := func(want, got string) bool { return want == "" || want == got }
	return is(s.Namespace, m.Namespace) && is(s.Turn, m.Turn) && is(s.Agent, m.Agent) && is(s.Session, m.Session) &&
		is(s.Requester, m.Requester) && is(string(s.Scope), string(m.Scope)) && is(s.ID, m.ID)
}

// SessionState says which of the memories that a task learns in a Session are kept.
type SessionState int

const (
	// SessionDeleted is the state of a Session that was deleted, or that has no journal: no memories are kept.
	SessionDeleted SessionState = iota
	// SessionExpired is the state of a Session that was deleted because its time to live was over: the memories of
	// scope User are kept without the Session.
	SessionExpired
	// SessionLive is the state of a Session that was not deleted: all memories are kept.
	SessionLive
)

// SessionStateOf returns the state of a Session. deleted reports whether its journal was retired, or its memories were
// forgotten. expired reports whether a note of SetExpired counted at that time.
func SessionStateOf(deleted, expired bool) SessionState {
	switch {
	case !deleted:
		return SessionLive
	case expired:
		return SessionExpired
	}
	return SessionDeleted
}

// Keeps reports whether a memory that was learned in the Session is kept. It clears the SessionUID of a memory that
// outlives the Session.
func (s SessionState) Keeps(m *memories.Memory) bool {
	if s == SessionExpired && m.Scope == memories.User {
		m.SessionUID = ""
		return true
	}
	return s == SessionLive
}

// SortNewestFirst sorts memories by the time at which they were learned, newest first.
func SortNewestFirst(all []memories.Memory) {
	slices.SortFunc(all, func(a, b memories.Memory) int {
		return cmp.Or(b.Learned.Compare(a.Learned), strings.Compare(b.ID, a.ID))
	})
}

// OwnerKeys returns the keys of the owners of memories, each once and in a fixed order.
func OwnerKeys(all []memories.Memory) []string {
	var keys []string
	for i := range all {
		keys = append(keys, all[i].Owner().Key())
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// LastVector is the last of several vectors of one space.
type LastVector struct {
	Space string
	// Bytes is the length of the vector, in bytes.
	Bytes int
	// IDs are the IDs of all memories that have a vector of this space.
	IDs []string
}

// LastVectors returns the last vector of each space. It skips vectors without values.
func LastVectors(all []memories.Embedded) []LastVector {
	var last []LastVector
	for _, e := range all {
		if !e.Vector.Given() {
			continue
		}
		i := slices.IndexFunc(last, func(v LastVector) bool { return v.Space == e.Vector.Space })
		if i < 0 {
			i, last = len(last), append(last, LastVector{Space: e.Vector.Space})
		}
		last[i].Bytes, last[i].IDs = len(e.Vector.Bytes()), append(last[i].IDs, e.ID)
	}
	return last
}

// AllMemories yields all memories that a query selects, page by page. No query is open while the consumer works.
func AllMemories(ctx context.Context, s interface {
	ListMemories(ctx context.Context, q MemoryQuery) ([]memories.Memory, error)
}, q MemoryQuery,
) func(yield func(*memories.Memory, error) bool) {
	return func(yield func(*memories.Memory, error) bool) {
		q.Limit = MaxMemories
		for {
			page, err := s.ListMemories(ctx, q)
			if err != nil {
				yield(nil, err)
				return
			}
			for i := range page {
				if !yield(&page[i], nil) {
					return
				}
			}
			if len(page) < MaxMemories {
				return
			}
			q.After = MemoryPositionOf(&page[len(page)-1])
		}
	}
}
