// Package store defines the interface of the stores that keep journals. Its sub-packages implement it.
package store

import (
	"context"
	"errors"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/budget"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
)

// ErrClosed is returned by calls on a closed store.
var ErrClosed = errors.New("the journal is closed")

// Store keeps journals. It is safe for concurrent use.
type Store interface {
	journal.Journal
	budget.Ledger
	Keeper
	Meter
	Records
	Tasks
	Memories

	// State returns the identity and the position of the store. It is cheap and changes nothing. It asks the server
	// each time, because a failover may happen between two calls.
	State(ctx context.Context) (State, error)

	// Mark gives the store a new position if this process has appended since its last mark. When Mark returns, the
	// mark is as durable as an append. least is the greatest position that the store is known to have had.
	//
	// Mark also assigns a new incarnation, and a position beyond least, in the same write if the store is behind
	// least, or has failed over to a server that may be incomplete. If there is nothing to write, Mark only returns
	// the state.
	Mark(ctx context.Context, least int64) (State, error)

	// Check fails if the journal cannot be written now, or if a write would be lost. The error says what to do.
	// Check takes at most as long as ctx allows.
	Check(ctx context.Context) error

	// Close closes the store. Later calls return ErrClosed. Close may be called more than once.
	Close() error
}

// Keeper keeps journals for a while after their objects are gone, and then deletes them.
type Keeper interface {
	// Retire marks the journals of deleted Turns and Sessions as retired at the given time, to the microsecond. A
	// retired journal keeps its first time, and UIDs without entries are skipped. A retired journal can still be
	// read. It accepts appends of a run that has not stopped yet, and stays retired. Reservations of these Turns that
	// are still open are charged to their budgets, because no run continues.
	Retire(ctx context.Context, at time.Time, uids ...string) error

	// Forget deletes at once what Retire deletes of what was learned from deleted Turns and Sessions. It is for the
	// journals of deleted objects that must not be retired yet.
	Forget(ctx context.Context, uids ...string) error

	// Purge deletes up to limit journals that were retired at or before the given time, oldest first. It returns the
	// number of deleted journals, even with an error; fewer than limit means that there are no more.
	//
	// A later append of a run that has not stopped yet is refused as out of sequence, because no entry is left. A
	// concurrent reader may see a part of the journal. Purge takes as long as ctx allows, and does not block
	// appends for long.
	Purge(ctx context.Context, before time.Time, limit int) (purged int, err error)

	// UIDs returns up to limit UIDs of journals that have entries and are not retired. They follow the UID after, in
	// an order that the store defines. To list all, start with the empty string and continue with the last UID of
	// each page.
	UIDs(ctx context.Context, after string, limit int) ([]string, error)

	// Size returns the size of the store. It is cheap even for a large store.
	Size(ctx context.Context) (Size, error)
}

// Size is the size of a store. Each store documents which numbers are estimates.
type Size struct {
	// Journals is the number of journals with entries, including retired ones.
	Journals int64
	// Retired is the number of retired journals, which wait to be purged.
	Retired int64
	// Entries is the number of entries of all journals.
	Entries int64
	// Artifacts is the number of artifacts of all journals.
	Artifacts int64
	// Bytes is the disk space of the store, including indexes and the space that purged journals have left.
	Bytes int64
}
