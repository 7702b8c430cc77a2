package sqlite_test

import (
	"testing"

	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
)

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
