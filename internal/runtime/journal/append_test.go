package journal_test

import (
	"errors"
	"testing"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
)

func TestCheckAppend(t *testing.T) {
	type position struct{ seq, epoch int64 }
	tests := map[string]struct {
		reason  string
		last    position
		entries []position
		want    error
	}{
		"Nothing":  {reason: "an append without entries is always valid", last: position{3, 2}},
		"First":    {reason: "an empty journal starts at 1, with any epoch", entries: []position{{1, 7}}},
		"NotFirst": {reason: "a purged journal must not continue in the middle", entries: []position{{2, 1}}, want: journal.ErrSequence},
		"Next":     {reason: "the same run continues", last: position{3, 2}, entries: []position{{4, 2}}},
		"NewEpoch": {reason: "a later executor continues", last: position{3, 2}, entries: []position{{4, 5}}},
		"Several": {
			reason: "several entries of an append are in order", last: position{3, 2},
			entries: []position{{4, 2}, {5, 3}, {6, 3}},
		},
		"Taken": {reason: "another writer was first", last: position{3, 2}, entries: []position{{3, 2}}, want: journal.ErrSequence},
		"Gap":   {reason: "an entry is missing", last: position{3, 2}, entries: []position{{5, 2}}, want: journal.ErrSequence},
		"GapWithin": {
			reason: "an entry is missing within the append", last: position{3, 2}, entries: []position{{4, 2}, {6, 2}},
			want: journal.ErrSequence,
		},
		"Fenced": {
			reason: "a newer executor has the turn", last: position{3, 2}, entries: []position{{4, 1}},
			want: journal.ErrFenced,
		},
		"FencedWithin": {
			reason: "epochs never decrease", last: position{3, 2}, entries: []position{{4, 2}, {5, 1}},
			want: journal.ErrFenced,
		},
		"FencedAndTaken": {
			reason: "a fenced writer must stop instead of reading again", last: position{3, 2}, entries: []position{{2, 1}},
			want: journal.ErrFenced,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var entries []journal.Entry
			for _, e := range tc.entries {
				entries = append(entries, journal.Entry{Seq: e.seq, Epoch: e.epoch})
			}
			if err := journal.CheckAppend(tc.last.seq, tc.last.epoch, entries); !errors.Is(err, tc.want) || tc.want == nil && err != nil {
				t.Errorf("CheckAppend = %v, want %v: %s", err, tc.want, tc.reason)
			}
		})
	}
}
