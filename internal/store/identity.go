package store

// Identity says which store a journal is in. A process that goes on with the work of another one compares it with the
// identity that was recorded: where it differs, the entries of the past may be missing.
type Identity struct {
	// ID is random and made with the store: 1 to 64 characters of [A-Za-z0-9-]. A copy of the store has the same.
	ID string
	// Incarnation changes when the store may have lost acknowledged appends: 1 to 64 characters of [A-Za-z0-9-]. The store keeps
	// it, so that all processes and later runs see the same.
	Incarnation string
}

// State is the identity of a store and how far it has come.
type State struct {
	Identity
	// Position grows with each mark, and never goes down while the store keeps what it has confirmed. A store that has a position has
	// all that was acknowledged before the mark of that position began. It is 0 before the first mark.
	Position int64
	// Unsure is true where the server of the store is another one than at the last mark, as after a failover. The next mark judges
	// whether it may have lost entries; until then the incarnation says nothing.
	Unsure bool
	// Lost is true where the call that returned this state has found that the store may have lost acknowledged appends, and has
	// given it a new incarnation for that.
	Lost bool
}
