package sqlite_test

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
)

// TestOverlappingReadsDoNotGrowLog checks that the write-ahead log stays short while lists are read all the time, each
// of them for longer than a commit takes, and for longer than other reads wait. SQLite can begin the log anew only when
// no list reads an older state.
func TestOverlappingReadsDoNotGrowLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.db")
	s := openAt(t, path)
	const limit, bound, written = 8 << 20, 32 << 20, 96 << 20
	s.LimitLog(limit)
	s.LimitPause(0)
	var mu sync.Mutex
	committed := sync.NewCond(&mu)
	commits, ended := 0, false
	var group sync.WaitGroup
	for range 2 * s.Lists().Stats().MaxOpenConnections { // so that a list always waits for a connection
		group.Go(func() {
			for {
				rows, err := s.Lists().QueryContext(t.Context(), `SELECT id FROM store`)
				if err != nil {
					t.Errorf("the query of a list: %v", err)
					return
				}
				rows.Next() // the query reads until the rows are closed
				mu.Lock()
				for begun := commits; commits < begun+2 && !ended; {
					committed.Wait()
				}
				stop := ended
				mu.Unlock()
				if err := errors.Join(rows.Err(), rows.Close()); err != nil {
					t.Errorf("the rows of a list: %v", err)
				}
				if stop {
					return
				}
			}
		})
	}
	content := make([]byte, 1<<20)
	var largest int64
	for i := range written / len(content) {
		if _, err := rand.Read(content); err != nil { // so that compression cannot make the content smaller
			t.Fatal(err)
		}
		e := entry(1)
		e.Artifacts = []journal.Artifact{journal.NewArtifact(content)}
		if err := s.Append(t.Context(), fmt.Sprint(i), e); err != nil {
			t.Errorf("Append: %v", err)
		}
		info, err := os.Stat(path + "-wal")
		if err != nil {
			t.Error(err)
			break
		}
		largest = max(largest, info.Size())
		mu.Lock()
		commits++
		committed.Broadcast()
		mu.Unlock()
	}
	mu.Lock()
	ended = true
	committed.Broadcast()
	mu.Unlock()
	group.Wait()
	if largest < limit || largest > bound {
		t.Errorf("the write-ahead log had up to %d bytes, want it to exceed %d, and to stay under %d", largest, limit, bound)
	}
	size, err := s.Size(t.Context())
	info, statErr := os.Stat(path)
	if err := errors.Join(err, statErr); err != nil {
		t.Fatal(err)
	}
	if size.Bytes <= info.Size() {
		t.Errorf("Size: %d bytes, want the %d bytes of the file and those of the log", size.Bytes, info.Size())
	}
}
