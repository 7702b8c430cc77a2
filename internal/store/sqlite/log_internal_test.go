package sqlite

import (
	"context"
	"errors"
	"testing"
	"time"
)

// TestPauses checks which queries wait while the log is too long.
func TestPauses(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	waits := func(q *queries) bool {
		err := q.begin(ended)
		if err != nil && !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		if err == nil {
			q.end()
		}
		return err != nil
	}
	var s *snapshots
	want := func(when string, reads, lists bool) {
		t.Helper()
		if got := waits(&s.reads); got != reads {
			t.Errorf("%s: reads wait is %t, want %t", when, got, reads)
		}
		if got := waits(&s.lists); got != lists {
			t.Errorf("%s: lists wait is %t, want %t", when, got, lists)
		}
	}
	begin := func(q *queries) {
		t.Helper()
		if err := q.begin(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	s = newSnapshots()
	s.reads.maxPause, s.lists.maxPause = time.Hour, time.Hour
	want("before a pause", false, false)
	begin(&s.reads)
	begin(&s.lists)
	s.pause()
	want("while a list is read", false, true)
	s.lists.end()
	want("after the list", true, true)
	s.reads.end()
	select {
	case <-s.none:
	default:
		t.Error("nothing is read, but this is not reported")
	}
	s.resume()
	want("after the pause", false, false)

	begin(&s.reads)
	s.pause()
	s.reads.maxPause = 0
	begin(&s.reads) // waits in vain
	s.reads.maxPause = time.Hour
	want("after a read has waited in vain", false, true)
	s.pause()
	want("at the next attempt", true, true)
	s.lists.maxPause = 0
	begin(&s.lists)
	s.lists.maxPause = time.Hour
	want("after a list has waited in vain", false, false)
	s.reads.end()
	s.reads.end()
	select {
	case <-s.none:
		t.Error("it is reported that nothing is read, but a list is read")
	default:
	}
	s.lists.end()
	select {
	case <-s.none:
	default:
		t.Error("nothing is read after the waits, but this is not reported")
	}
}
