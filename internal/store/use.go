package store

import (
	"context"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
)

// Meter knows how much of its room a store uses, and for whom.
type Meter interface {
	// Use returns how much is used. It looks at each journal's head, so its time grows with the number of journals: a caller must
	// leave the store alone for some time between two calls.
	Use(ctx context.Context) (Use, error)
}

// Use is how much of its room a store uses.
type Use struct {
	// Bytes of all journals, without the room that purged ones have left.
	Bytes int64
	// Free is how many bytes the store's volume has left for journals, with the room that purged ones have left. It is negative if
	// the store does not know.
	Free int64
	// Namespaces are the bytes of the journals of each namespace, retired ones included, by BytesOf. The journals of an older
	// version are in none.
	Namespaces map[string]int64
}

// entryBytes is what an entry counts beside its payload: its place, kind and time, and its row in an index.
const entryBytes = 128

// BytesOf returns how many bytes entries count with their artifacts.
func BytesOf(entries []journal.Entry) int64 {
	var n int64
	for _, e := range entries {
		n += entryBytes + int64(len(e.Payload))
		for _, a := range e.Artifacts {
			n += entryBytes + int64(len(a.Data))
		}
	}
	return n
}

// NamespaceOf returns the namespace that entries name; empty for none.
func NamespaceOf(entries []journal.Entry) string {
	for _, e := range entries {
		if e.Namespace != "" {
			return e.Namespace
		}
	}
	return ""
}
