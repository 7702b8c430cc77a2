package store

import (
	"iter"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
)

const (
	// PageEntries bounds the entries of a page that a store reads at once.
	PageEntries = 256
	// PageBytes bounds the payloads of a page, roughly: the entry that reaches it is still part of the page.
	PageBytes = 4 << 20
)

// Pages yields the entries after a place, page by page, as journal.Journal's Read does. A page is read as a whole before its
// entries are yielded, so that nothing is open while the consumer is at work, and nothing is left open if it breaks off.
// more says that there may be entries after the page.
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
