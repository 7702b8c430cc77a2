package journaltest_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
)

func TestStoreImplementsJournal(t *testing.T) {
	journaltest.Run(t,
		func(*testing.T) journal.Journal { return &journaltest.Store{} },
		func(_ *testing.T, j journal.Journal) journal.Journal { return j })
}

func TestStoreImplementsKeeper(t *testing.T) {
	journaltest.RunKeeper(t,
		func(*testing.T) journaltest.Keeper { return &journaltest.Store{} },
		func(_ *testing.T, k journaltest.Keeper) journaltest.Keeper { return k })
}

func TestStoreImplementsLedger(t *testing.T) {
	journaltest.RunLedger(t, func(*testing.T) journaltest.LedgerStore { return &journaltest.Store{} })
}

func TestStoreImplementsRecords(t *testing.T) {
	journaltest.RunRecords(t,
		func(*testing.T) journaltest.RecordStore { return &journaltest.Store{} },
		func(_ *testing.T, s journaltest.RecordStore) journaltest.RecordStore { return s })
}

func TestStoreReportsLoss(t *testing.T) {
	journaltest.RunLoss(t,
		func(*testing.T) journal.Journal { return &journaltest.Store{} },
		func(_ *testing.T, j journal.Journal, uid string, after int64) {
			j.(*journaltest.Store).Lose(uid, after)
		})
}

func TestStoreImplementsPosition(t *testing.T) {
	journaltest.RunPosition(t, func(*testing.T) func() (journaltest.PositionStore, error) {
		m := &journaltest.Store{}
		return func() (journaltest.PositionStore, error) { return m, nil }
	})
}

func TestStoreWithinBubbles(t *testing.T) {
	for range 2 {
		synctest.Test(t, func(t *testing.T) {
			a := journal.NewArtifact([]byte("content"))
			m := &journaltest.Store{}
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

func TestStoreImplementsTasks(t *testing.T) {
	journaltest.RunTasks(t,
		func(*testing.T) journaltest.TaskStore { return &journaltest.Store{} },
		func(_ *testing.T, s journaltest.TaskStore) journaltest.TaskStore { return s })
}

func TestStoreImplementsMemories(t *testing.T) {
	journaltest.RunMemories(t,
		func(*testing.T) journaltest.MemoryStore { return &journaltest.Store{} },
		func(_ *testing.T, s journaltest.MemoryStore) journaltest.MemoryStore { return s })
}

func TestCloneIsIndependent(t *testing.T) {
	a := journal.NewArtifact([]byte("content"))
	first := journal.Entry{Seq: 1, Epoch: 1, Time: time.Now(), Artifact: a.SHA256, Artifacts: []journal.Artifact{a}}
	original := &journaltest.Store{}
	if err := original.Append(t.Context(), "a", first); err != nil {
		t.Fatal(err)
	}
	clone := original.Clone()
	for payload, s := range map[string]*journaltest.Store{`"original"`: original, `"clone"`: clone} {
		second := journal.Entry{Seq: 2, Epoch: 1, Time: time.Now(), Payload: []byte(payload)}
		if err := s.Append(t.Context(), "a", second); err != nil {
			t.Fatal(err)
		}
	}
	for want, s := range map[string]*journaltest.Store{`"original"`: original, `"clone"`: clone} {
		got, err := journal.Collect(t.Context(), s, "a")
		if err != nil || len(got) != 2 || string(got[0].Payload) != "content" || string(got[1].Payload) != want {
			t.Errorf("the entries are %v (%v), want the common entry, and then %s", got, err, want)
		}
	}
}
