package store

import (
	"iter"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
)

const (
	// PageEntries is the maximum number of entries that a store reads at once.
	PageEntries = 256
	// PageBytes limits the total size of the payloads of a page. The entry that reaches the limit is the last one of
	// the page.
	PageBytes = 4 << 20
)

// Pages yields the entries after a sequence number, as Read of journal.Journal does. It reads a whole page before it
// yields the entries of the page, so no query is open while the consumer works or after the consumer stops. The
// function page reads one page; its result more reports whether there may be entries after the page.
func Pages(after int64, page func(after int64) (entries []journal.Entry, more bool, err error)) iter.Seq2[journal.Entry, error] {
	return func(yield func(journal.Entry, error) bool) {
		for at, more := after, true; more; {
			var entries []journal.Entry
			var err error
			if entries, more, err = page(at); err != nil {
				yield(journal.Entry{}, err)
				return
			}
			for _, e := range entries {
				if !yield(e, nil) {
					return
				}
				at = e.Seq
			}
		}
	}
}
