package journaltest_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
)

func TestMemoryImplementsJournal(t *testing.T) {
	journaltest.Run(t,
		func(*testing.T) journal.Journal { return &journaltest.Memory{} },
		func(_ *testing.T, j journal.Journal) journal.Journal { return j })
}

func TestMemoryImplementsKeeper(t *testing.T) {
	journaltest.RunKeeper(t,
		func(*testing.T) journaltest.Keeper { return &journaltest.Memory{} },
		func(_ *testing.T, k journaltest.Keeper) journaltest.Keeper { return k })
}

func TestMemoryImplementsLedger(t *testing.T) {
	journaltest.RunLedger(t, func(*testing.T) journaltest.LedgerStore { return &journaltest.Memory{} })
}

func TestMemoryImplementsRecords(t *testing.T) {
	journaltest.RunRecords(t,
		func(*testing.T) journaltest.RecordStore { return &journaltest.Memory{} },
		func(_ *testing.T, s journaltest.RecordStore) journaltest.RecordStore { return s })
}

func TestMemoryReportsLoss(t *testing.T) {
	journaltest.RunLoss(t,
		func(*testing.T) journal.Journal { return &journaltest.Memory{} },
		func(_ *testing.T, j journal.Journal, uid string, after int64) {
			j.(*journaltest.Memory).Lose(uid, after)
		})
}

func TestMemoryImplementsPosition(t *testing.T) {
	journaltest.RunPosition(t, func(*testing.T) func() (journaltest.PositionStore, error) {
		m := &journaltest.Memory{}
		return func() (journaltest.PositionStore, error) { return m, nil }
	})
}

func TestMemoryWithinBubbles(t *testing.T) {
	for range 2 {
		synctest.Test(t, func(t *testing.T) {
			a := journal.NewArtifact([]byte("content"))
			m := &journaltest.Memory{}
			e := journal.Entry{Seq: 1, Epoch: 1, Time: time.Now(), Artifact: a.SHA256, Artifacts: []journal.Artifact{a}}
			if err := m.Append(t.Context(), "a", e); err != nil {
				t.Fatal(err)
			}
			if got, err := journal.Collect(t.Context(), m, "a"); err != nil || len(got) != 1 || string(got[0].Payload) != "content" {
				t.Errorf("Collect: %v, %v; want the entry with its payload", got, err)
			}
		})
	}
}

func TestMemoryImplementsTasks(t *testing.T) {
	journaltest.RunTasks(t,
		func(*testing.T) journaltest.TaskStore { return &journaltest.Memory{} },
		func(_ *testing.T, s journaltest.TaskStore) journaltest.TaskStore { return s })
}

func TestMemoryImplementsMemories(t *testing.T) {
	journaltest.RunMemories(t,
		func(*testing.T) journaltest.MemoryStore { return &journaltest.Memory{} },
		func(_ *testing.T, s journaltest.MemoryStore) journaltest.MemoryStore { return s })
}
