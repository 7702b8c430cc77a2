package postgres_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/turnrecord"
	"github.com/capstan-dev/capstan/internal/store"
	"github.com/capstan-dev/capstan/internal/store/postgres/postgrestest"
)

// TestTrimWithLostReply checks that TrimRecords does not delete too many records if it is repeated because its response
// was lost.
func TestTrimWithLostReply(t *testing.T) {
	p := postgrestest.NewProxy(t, postgrestest.Database(t))
	s := openAt(t, p.URL)
	for i := range 5 {
		r := turnrecord.Record{UID: fmt.Sprint(i), Namespace: postgrestest.LoseAnswer, Completed: time.Unix(int64(i), 0)}
		if _, err := s.AddRecords(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	p.Lose.Store(true)
	if _, err := s.TrimRecords(t.Context(), 3, 10); err != nil {
		t.Fatal(err)
	}
	kept, _, err := s.Records(t.Context(), store.RecordQuery{})
	if err != nil || len(kept) != 3 || kept[2].UID != "2" || p.Lost.Load() != 1 {
		t.Errorf("records: %+v, %v, with %d lost responses; want the 3 newest records, and 1 lost response", kept, err, p.Lost.Load())
	}
}

func TestRecordsContract(t *testing.T) {
	f := shelf{}
	journaltest.RunRecords(t,
		func(t *testing.T) journaltest.RecordStore { return f.open(t) },
		func(t *testing.T, s journaltest.RecordStore) journaltest.RecordStore { return f.reopen(t, s) })
}

func TestTasksContract(t *testing.T) {
	f := shelf{}
	journaltest.RunTasks(t,
		func(t *testing.T) journaltest.TaskStore { return f.open(t) },
		func(t *testing.T, s journaltest.TaskStore) journaltest.TaskStore { return f.reopen(t, s) })
}

func TestMemoriesContract(t *testing.T) {
	f := shelf{}
	journaltest.RunMemories(t,
		func(t *testing.T) journaltest.MemoryStore { return f.open(t) },
		func(t *testing.T, s journaltest.MemoryStore) journaltest.MemoryStore { return f.reopen(t, s) })
}
