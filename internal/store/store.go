// Package store says what the process asks of the place where journals are kept, beside keeping them. Its sub-packages are
// such places.
package store

import (
	"context"
	"errors"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
)

// ErrClosed is returned by calls on a store that was closed.
var ErrClosed = errors.New("the journal is closed")

// Store is a place where journals are kept. It is safe for concurrent use.
type Store interface {
	journal.Journal
	Keeper
	Meter

	// State says which store this is, and its position. It is cheap, changes nothing, and asks the store each time: a failover may
	// come between two calls.
	State(ctx context.Context) (State, error)

	// Mark gives the store a new position, if this process has appended since its last mark. When it returns, the mark is as safe as an
	// append. least is the greatest position that the store is known to have had. A store that is behind it, or that has failed
	// over to a server which nothing proves to be complete, gets a new incarnation and a position beyond least in the same write.
	// Where there is nothing to write, Mark does what State does.
	Mark(ctx context.Context, least int64) (State, error)

	// Check fails if the journal could not be written now, or if what is written would be lost. The error says what to do.
	// It takes at most as long as ctx allows.
	Check(ctx context.Context) error

	// Close ends the work with the store. Later calls get ErrClosed. It may be called more than once.
	Close() error
}

// Keeper keeps journals for a while after their objects are gone, and then forgets them.
type Keeper interface {
	// Retire marks the journals of Turns and Sessions that are gone, at a time to the microsecond. One that is retired
	// already keeps its first time, and a UID without entries is passed over. A retired journal is read as before, and
	// takes appends of a run that has not stopped yet; it stays retired then.
	Retire(ctx context.Context, at time.Time, uids ...string) error

	// Purge deletes journals that were retired at or before a time, oldest first, at most so many. It returns how many
	// it has deleted, also beside an error; fewer than most means that there are no more. Nothing is left of them,
	// so that an append of a run that has not stopped yet is refused as out of sequence. Who reads a journal that is being
	// deleted may see a part of it. It takes as long as ctx allows, and lets appends pass meanwhile.
	Purge(ctx context.Context, before time.Time, most int) (purged int, err error)

	// UIDs returns the UIDs of journals that have entries and are not retired, those after a UID, at most so many,
	// in an order of the store's. The empty string begins, and the last UID of a page begins the next one.
	UIDs(ctx context.Context, after string, most int) ([]string, error)

	// Size returns how much there is. It is cheap, however much that is.
	Size(ctx context.Context) (Size, error)
}

// Size is how much a store holds. A store says which of the numbers are estimates.
type Size struct {
	// Journals with entries, retired ones included.
	Journals int64
	// Retired journals, which wait to be purged.
	Retired int64
	// Entries of all journals.
	Entries int64
	// Artifacts of all journals.
	Artifacts int64
	// Bytes that the store takes, with its indexes and with the room that purged journals have left in it.
	Bytes int64
}
