package store

// Identity identifies the store of a journal. A process that continues the work of another one compares it with the
// recorded identity. If they differ, earlier entries may be missing.
type Identity struct {
	// ID is random and created with the store: 1 to 64 characters of [A-Za-z0-9-]. A copy of the store has the same
	// ID.
	ID string
	// Incarnation changes when the store may have lost acknowledged appends: 1 to 64 characters of [A-Za-z0-9-]. It
	// is part of the store, so all processes and later runs see the same value.
	Incarnation string
}

// State is the identity and the position of a store.
type State struct {
	Identity
	// Position grows with each mark and never decreases while the store keeps all confirmed writes. A store with a
	// position has all appends that were acknowledged before the mark of that position began. It is 0 before the
	// first mark.
	Position int64
	// Unsure is true if the server is not the one of the last mark, for example after a failover. The next mark
	// decides whether entries may be lost; until then the incarnation proves nothing.
	Unsure bool
	// Lost is true if the call that returned this state found that the store may have lost acknowledged appends.
	// The call has then given the store a new incarnation.
	Lost bool
}
