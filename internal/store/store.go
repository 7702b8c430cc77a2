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

// Store keeps journals. It is safe for concurrent use. A store that was opened for some namespaces purges and trims
// only their journals and records, claims only their tasks, and counts only these in TaskUse.
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

	// Mark gives the store a new position if there may be appends since the last mark. When Mark returns, the returned
	// position is as durable as an append, even if another process has assigned it. This does not apply to the position
	// that State returns. least is the greatest position that the store is known to have had.
	//
	// If the position of the store is less than least, or the store has failed over to a server that may lack
	// entries, the same write also assigns a new incarnation and a position greater than least. If there is nothing
	// to write, Mark only returns the state.
	Mark(ctx context.Context, least int64) (State, error)

	// Check returns an error if the store cannot write now, or if a write would be lost. The error says what to do.
	// Check returns at the latest when ctx ends.
	Check(ctx context.Context) error

	// Close closes the store. Later calls return ErrClosed. Close may be called more than once.
	Close() error
}

// Keeper keeps journals for a while after their Turns and Sessions were deleted, and then deletes the journals.
type Keeper interface {
	// Retire marks the journals of deleted Turns and Sessions as retired at the given time, to the microsecond. A
	// journal that is retired already keeps its earlier time, and UIDs without entries are skipped. A retired journal
	// can still be read. It accepts appends of a run that has not stopped yet, and stays retired until Revive. Open
	// reservations of these Turns are charged to their budgets, because no later run will close them.
	Retire(ctx context.Context, at time.Time, uids ...string) error

	// Forget deletes the memories and observations that were learned from deleted Turns and Sessions, as Retire does,
	// but does not retire their journals. It is for deleted objects whose journals must not be retired yet. From then
	// on, a task learns from these Sessions as if their journals were retired at the given time, and no observation of
	// these Turns and Sessions is stored.
	Forget(ctx context.Context, at time.Time, uids ...string) error

	// Purge deletes up to limit journals that were retired at or before the given time, oldest first. It returns the
	// number of deleted journals, even with an error; fewer than limit means that there are no more.
	//
	// If a run has not stopped yet, its next append fails with journal.ErrSequence, because no entry is left. A
	// concurrent reader may see a part of the journal. Purge may run until ctx ends, and does not block appends for
	// long.
	Purge(ctx context.Context, before time.Time, limit int) (purged int, err error)

	// UIDs returns a page of the UIDs of journals that have entries and are not retired, in an order that the store
	// defines. The page has up to limit UIDs that follow a given UID. To list all UIDs, start with the empty string and
	// continue with the last UID of each page.
	UIDs(ctx context.Context, after string, limit int) ([]string, error)

	// RetiredUIDs returns a page of the UIDs of retired journals, as UIDs does for the others. A store that was opened
	// for some namespaces returns only their journals.
	RetiredUIDs(ctx context.Context, after string, limit int) ([]string, error)

	// Revive undoes Retire and Forget for journals whose Turns and Sessions exist again, because the cluster was
	// restored from a backup. It does not bring back what Retire and Forget have deleted. It skips other journals, and
	// those of which an unfinished Purge has deleted a part.
	Revive(ctx context.Context, uids ...string) error

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
	// Bytes is the disk space of the store, including indexes and the free space that purged journals have left.
	Bytes int64
}
