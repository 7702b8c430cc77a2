package journal_test

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
)

func clock() time.Time {
	return time.Date(2026, 6, 11, 17, 4, 5, 6, time.FixedZone("ahead", 7200))
}

func open(t *testing.T, j journal.Journal, epoch int64) *journal.Log {
	t.Helper()
	log, err := journal.Open(t.Context(), j, "uid", epoch, clock)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	return log
}

func TestLog(t *testing.T) {
	j := &journaltest.Memory{}
	log := open(t, j, 3)
	ended, cancel := context.WithCancel(t.Context())
	cancel() // what has happened is written down all the same
	if err := log.Append(ended, journal.Record{Kind: journal.Prepared, Payload: "one"}, journal.Record{Kind: journal.ModelFailed, Payload: 2}); err != nil {
		t.Fatalf("Append: %v", err)
	}
	if err := log.Append(t.Context(), journal.Record{Kind: journal.Prepared, Payload: "three"}); err != nil {
		t.Fatalf("Append: %v", err)
	}
	utc := time.Date(2026, 6, 11, 15, 4, 5, 6, time.UTC)
	want := []journal.Entry{
		{Seq: 1, Epoch: 3, Kind: "prepared", Time: utc, Payload: json.RawMessage(`"one"`)},
		{Seq: 2, Epoch: 3, Kind: "model.failed", Time: utc, Payload: json.RawMessage(`2`)},
		{Seq: 3, Epoch: 3, Kind: "prepared", Time: utc, Payload: json.RawMessage(`"three"`)},
	}
	got, err := j.Load(t.Context(), "uid")
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("entries (error %v): -want +got:\n%s", err, diff)
	}
	for name, log := range map[string]*journal.Log{"writer": log, "reader": open(t, j, 4)} {
		all, err := journal.All[string](log, journal.Prepared)
		if diff := cmp.Diff([]string{"one", "three"}, all); diff != "" || err != nil {
			t.Errorf("%s: All (error %v): -want +got:\n%s", name, err, diff)
		}
		if last, ok, err := journal.Last[string](log, journal.Prepared); last != "three" || !ok || err != nil {
			t.Errorf("%s: Last = %q, %t, %v; want three", name, last, ok, err)
		}
		if _, ok, err := journal.Last[string](log, journal.Finalized); ok || err != nil {
			t.Errorf("%s: Last of a kind that never happened: %t, %v; want none", name, ok, err)
		}
		if _, err := journal.All[string](log, journal.ModelFailed); err == nil {
			t.Errorf("%s: All took a number for a text", name)
		}
	}
}

func TestNewerEpochFencesOff(t *testing.T) {
	j := &journaltest.Memory{}
	old := open(t, j, 1)
	if err := open(t, j, 2).Append(t.Context(), journal.Record{Kind: journal.Prepared}); err != nil {
		t.Fatalf("Append: %v", err)
	}
	if err := old.Append(t.Context(), journal.Record{Kind: journal.ModelReplied}); !errors.Is(err, journal.ErrFenced) {
		t.Errorf("Append of the old epoch: %v, want ErrFenced", err)
	}
	if _, err := journal.Open(t.Context(), j, "uid", 1, clock); !errors.Is(err, journal.ErrFenced) {
		t.Errorf("Open of the old epoch: %v, want ErrFenced", err)
	}
}

func TestFailedAppendIsNotRemembered(t *testing.T) {
	j := &journaltest.Memory{}
	one, other := open(t, j, 1), open(t, j, 1)
	if err := one.Append(t.Context(), journal.Record{Kind: journal.Prepared, Payload: "a"}); err != nil {
		t.Fatal(err)
	}
	if err := other.Append(t.Context(), journal.Record{Kind: journal.Prepared, Payload: "b"}); !errors.Is(err, journal.ErrSequence) {
		t.Errorf("Append of a second writer: %v, want ErrSequence", err)
	}
	if all, err := journal.All[string](other, journal.Prepared); len(all) != 0 || err != nil {
		t.Errorf("the log holds %v, %v; want nothing that was refused", all, err)
	}
	if err := one.Append(t.Context(), journal.Record{Kind: journal.Prepared, Payload: math.NaN()}); err == nil {
		t.Error("Append took a payload that is no JSON")
	}
}
