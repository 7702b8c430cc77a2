package store

// Identity identifies the store of a journal. A process that continues the work of another process compares the
// identity of its store with the recorded identity. If they differ, earlier entries may be missing.
type Identity struct {
	// ID is random and created with the store: 1 to 64 characters of [A-Za-z0-9-]. A copy of the store has the same
	// ID.
	ID string
	// Incarnation changes when the store may have lost acknowledged appends: 1 to 64 characters of [A-Za-z0-9-]. The
	// store keeps it, so all processes and later runs read the same value.
	Incarnation string
}

// State is the identity and the position of a store.
type State struct {
	Identity
	// Position grows with each mark, and never decreases while the store keeps all confirmed writes. A store at a
	// position has all appends that were acknowledged before the call of Mark that assigned this position. Position
	// is 0 before the first mark.
	Position int64
	// Unsure is true if the server is not the server of the last mark, for example after a failover. The next mark
	// decides whether entries may be lost; until then, an unchanged incarnation does not prove that none are lost.
	Unsure bool
	// Lost is true if the call that returned this state found that the store may have lost acknowledged appends, and
	// therefore gave the store a new incarnation.
	Lost bool
}
