package store

// Identity says which store a journal is in. A process that goes on with the work of another one compares it with the
// identity that was recorded: where it differs, the entries of the past may be missing.
type Identity struct {
	// ID is random and made with the store: 1 to 64 characters of [A-Za-z0-9-]. A copy of a file has the same.
	ID string
	// Incarnation changes when the store may have lost acknowledged appends: 1 to 64 characters of [A-Za-z0-9-]. Of PostgreSQL
	// it is the server's system identifier and timeline, which change with a failover and a restored backup. It is "1" for a
	// store that cannot tell.
	Incarnation string
}
