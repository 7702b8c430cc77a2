package store

import (
	"context"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
)

// Meter measures how much space a store uses, in total and by namespace.
type Meter interface {
	// Use returns how much space is used. It reads the head of each journal, so a call takes longer the more journals
	// there are. Callers must not call Use often.
	Use(ctx context.Context) (Use, error)
}

// Use is the space that a store uses.
type Use struct {
	// Bytes is the size of all journals and memories of the store's namespaces, without the space that purged journals
	// have left.
	Bytes int64
	// Free is the number of bytes that are free for journals on the store's volume, including the space that purged
	// journals have left. It is negative if the store does not know.
	Free int64
	// Namespaces holds the bytes of the journals of each namespace, including retired ones, according to BytesOf, and
	// the bytes of its memories, according to MemoryBytes. Journals written by an older version belong to no namespace.
	Namespaces map[string]int64
}

// MemoryBytes is an SQL expression for the number of bytes that are counted for a memory: its text, which its words and
// their index repeat, its vector, and 512 bytes for the other columns and their indexes.
const MemoryBytes = `512 + 4 * octet_length(text) + coalesce(octet_length(vector), 0)`

// entryBytes is the number of bytes that are counted for each entry and each artifact in addition to its content. It
// stands for the other columns and the index.
const entryBytes = 128

// BytesOf returns the number of bytes that are counted for entries and their artifacts.
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

// NamespaceOf returns the namespace of entries, or an empty string if they name none.
func NamespaceOf(entries []journal.Entry) string {
	for _, e := range entries {
		if e.Namespace != "" {
			return e.Namespace
		}
	}
	return ""
}
