package postgres_test

import (
	"bytes"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/store/postgres/postgrestest"
	"github.com/capstan-dev/capstan/internal/store/sqlite"
)

func BenchmarkMemories(b *testing.B) {
	journaltest.BenchmarkMemories(b, func(b *testing.B) journaltest.MemoryStore {
		b.Helper()
		databaseURL, _ := postgrestest.Restartable(b)
		return openAt(b, databaseURL)
	})
}

// BenchmarkAppend measures appends of 4 KiB with full durability, by one Turn and by 32 concurrent Turns. The metric
// x-sqlite is the time of an append divided by the time of an append to SQLite in the same run.
func BenchmarkAppend(b *testing.B) {
	for _, writers := range []int{1, 32} {
		var base float64
		b.Run(fmt.Sprintf("turns=%d/sqlite", writers), func(b *testing.B) {
			s, err := sqlite.Open(b.Context(), filepath.Join(b.TempDir(), "journal.db"))
			if err != nil {
				b.Fatal(err)
			}
			base = benchmark(b, s, writers)
			if err := s.Close(); err != nil {
				b.Error(err)
			}
		})
		b.Run(fmt.Sprintf("turns=%d/postgres", writers), func(b *testing.B) {
			databaseURL, _ := postgrestest.Restartable(b) // a separate server with default settings
			s := openAt(b, databaseURL)
			if took := benchmark(b, s, writers); base > 0 {
				b.ReportMetric(took/base, "x-sqlite")
			}
		})
	}
}

// benchmark returns the mean time of an append in nanoseconds. It appends to as many journals at the same time as there
// are writers. RunParallel would start a multiple of GOMAXPROCS.
func benchmark(b *testing.B, j journal.Journal, writers int) float64 {
	payload := append(append([]byte{'"'}, bytes.Repeat([]byte("reply "), 4096/6)...), '"')
	var left atomic.Int64
	left.Store(int64(b.N))
	var all sync.WaitGroup
	b.ResetTimer()
	for n := range writers {
		all.Go(func() {
			uid := fmt.Sprint("turn-", n+1)
			for seq := int64(1); left.Add(-1) >= 0; seq++ {
				e := entry(seq, 1)
				e.Payload = payload
				if err := j.Append(b.Context(), uid, e); err != nil {
					b.Errorf("Append: %v", err)
					return
				}
			}
		})
	}
	all.Wait()
	b.StopTimer()
	return float64(b.Elapsed().Nanoseconds()) / float64(b.N)
}
