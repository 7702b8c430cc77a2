package journal_test

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
)

func clock() time.Time {
	return time.Date(2026, 6, 11, 17, 4, 5, 6, time.FixedZone("ahead", 7200))
}

// utc is the time of clock in UTC.
var utc = time.Date(2026, 6, 11, 15, 4, 5, 6, time.UTC)

// applied has the entries that Apply received.
type applied []journal.Entry

func (h *applied) apply(e journal.Entry) error {
	e.Artifacts = nil
	*h = append(*h, e)
	return nil
}

func (h *applied) kinds() (all []journal.Kind) {
	for _, e := range *h {
		all = append(all, e.Kind)
	}
	return all
}

// open opens a log, with defaults for the required options that are missing.
func open(t *testing.T, epoch int64, o journal.Options) *journal.Log {
	t.Helper()
	log, err := journal.Open(t.Context(), "uid", epoch, complete(o))
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	return log
}

func complete(o journal.Options) journal.Options {
	if o.Now == nil {
		o.Now = clock
	}
	if o.Apply == nil {
		o.Apply = func(journal.Entry) error { return nil }
	}
	return o
}

func collect(t *testing.T, j journal.Journal) []journal.Entry {
	t.Helper()
	all, err := journal.Collect(t.Context(), j, "uid")
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestLog(t *testing.T) {
	j := &journaltest.Store{}
	var writer, reader applied
	log := open(t, 3, journal.Options{Journal: j, Apply: writer.apply})
	ended, cancel := context.WithCancel(t.Context())
	cancel() // an event that has happened is still recorded
	if err := log.Append(ended, journal.Record{Kind: journal.Prepared, Payload: "one"},
		journal.Record{Kind: journal.ModelFailed, Payload: 2}); err != nil {
		t.Fatalf("Append: %v", err)
	}
	if next := log.Next(); next != 3 {
		t.Errorf("Next = %d, want 3", next)
	}
	if err := log.Append(t.Context(), journal.Record{Kind: journal.Prepared, Payload: "three"}); err != nil {
		t.Fatalf("Append: %v", err)
	}
	want := []journal.Entry{
		{Seq: 1, Epoch: 3, Kind: "prepared", Version: 1, Time: utc, Payload: json.RawMessage(`"one"`)},
		{Seq: 2, Epoch: 3, Kind: "model.failed", Version: 1, Time: utc, Payload: json.RawMessage(`2`)},
		{Seq: 3, Epoch: 3, Kind: "prepared", Version: 1, Time: utc, Payload: json.RawMessage(`"three"`)},
	}
	again := open(t, 4, journal.Options{Journal: j, Apply: reader.apply})
	for name, got := range map[string][]journal.Entry{"the writer": writer, "the reader": reader, "the store": collect(t, j)} {
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: -want +got:\n%s", name, diff)
		}
	}
	if next := again.Next(); next != 4 {
		t.Errorf("Next = %d, want the number after the newest entry", next)
	}
}

func TestNewerEpochFencesOff(t *testing.T) {
	j := &journaltest.Store{}
	old := open(t, 1, journal.Options{Journal: j})
	if err := open(t, 2, journal.Options{Journal: j}).Append(t.Context(), journal.Record{Kind: journal.Prepared}); err != nil {
		t.Fatalf("Append: %v", err)
	}
	if err := old.Append(t.Context(), journal.Record{Kind: journal.ModelReplied}); !errors.Is(err, journal.ErrFenced) {
		t.Errorf("Append of the old epoch: %v, want ErrFenced", err)
	}
	if _, err := journal.Open(t.Context(), "uid", 1, complete(journal.Options{Journal: j})); !errors.Is(err, journal.ErrFenced) {
		t.Errorf("Open of the old epoch: %v, want ErrFenced", err)
	}
}

func TestRefusedAppendIsNotApplied(t *testing.T) {
	j := &journaltest.Store{}
	var received applied
	one, other := open(t, 1, journal.Options{Journal: j}), open(t, 1, journal.Options{Journal: j, Apply: received.apply})
	if err := one.Append(t.Context(), journal.Record{Kind: journal.Prepared, Payload: "a"}); err != nil {
		t.Fatal(err)
	}
	if err := other.Append(t.Context(), journal.Record{Kind: journal.Prepared, Payload: "b"}); !errors.Is(err, journal.ErrSequence) {
		t.Errorf("Append of a second writer: %v, want ErrSequence", err)
	}
	if len(received) != 0 {
		t.Errorf("Apply received %v, want nothing", received)
	}
}

// runStarted returns the records that a run writes before its first append.
func runStarted() []journal.Record { return []journal.Record{{Kind: journal.RunStarted}} }

func TestFirstRecordsGoWithTheFirstAppendOnly(t *testing.T) {
	j := &flaky{}
	j.fails = func(n int) error {
		if n == 1 {
			return errors.New("the store is unavailable")
		}
		return nil
	}
	var received applied
	log := open(t, 1, journal.Options{
		Journal: j, Apply: received.apply, Patience: time.Nanosecond, First: runStarted,
	})
	if got := collect(t, j); len(got) != 0 || log.Next() != 2 {
		t.Errorf("%d entries and Next = %d before the first append, want 0 and 2", len(got), log.Next())
	}
	if err := log.Append(t.Context(), journal.Record{Kind: journal.Prepared}); err == nil {
		t.Fatal("Append returned no error, want the error of the store")
	}
	if err := log.Append(t.Context(), journal.Record{Kind: journal.ModelRequested}); err != nil {
		t.Fatal(err)
	}
	if log.Next() != 3 {
		t.Errorf("Next = %d, want 3", log.Next())
	}
	if err := log.Append(t.Context(), journal.Record{Kind: journal.ModelReplied}); err != nil {
		t.Fatal(err)
	}
	want := []journal.Kind{journal.RunStarted, journal.ModelRequested, journal.ModelReplied}
	if diff := cmp.Diff(want, received.kinds()); diff != "" {
		t.Errorf("entries: -want +got:\n%s", diff)
	}
}

func TestLargeRecordsBecomeArtifacts(t *testing.T) {
	// The quotes are two bytes of the payload.
	fits, large := strings.Repeat("a", journal.MaxPayload-2), strings.Repeat("b", journal.MaxPayload-1)
	separate := journal.NewArtifact([]byte("beside"))
	j := &journaltest.Store{}
	var writer, reader applied
	log := open(t, 1, journal.Options{Journal: j, Apply: writer.apply})
	if err := log.Append(t.Context(),
		journal.Record{Kind: journal.ToolFinished, Payload: fits},
		journal.Record{Kind: journal.ToolFinished, Payload: large, Artifacts: []journal.Artifact{separate}},
	); err != nil {
		t.Fatal(err)
	}
	open(t, 1, journal.Options{Journal: j, Apply: reader.apply})
	sum := journal.NewArtifact([]byte(`"` + large + `"`)).SHA256
	for name, got := range map[string]applied{"the writer": writer, "the reader": reader} {
		if len(got) != 2 || string(got[0].Payload) != `"`+fits+`"` || string(got[1].Payload) != `"`+large+`"` {
			t.Errorf("%s did not receive the whole payloads", name)
		}
	}
	var stored []string
	for e, err := range j.Read(t.Context(), "uid", 0) {
		if err != nil {
			t.Fatal(err)
		}
		if (e.Payload == nil) == (e.Artifact == "") {
			t.Errorf("entry %d has %d bytes of payload and artifact %q, want one of them", e.Seq, len(e.Payload), e.Artifact)
		}
		stored = append(stored, e.Artifact)
	}
	if diff := cmp.Diff([]string{"", sum}, stored); diff != "" {
		t.Errorf("artifacts of the entries: -want +got:\n%s", diff)
	}
	a, err := j.Artifact(t.Context(), "uid", separate.SHA256)
	if content, contentErr := a.Content(); err != nil || contentErr != nil || string(content) != "beside" {
		t.Errorf("the separate artifact: %q, %v, %v; want its content", content, err, contentErr)
	}
}

// unreadable is a journal whose artifacts cannot be decompressed.
type unreadable struct{ journal.Journal }

func (u unreadable) Artifact(ctx context.Context, uid, sha string) (journal.Artifact, error) {
	a, err := u.Journal.Artifact(ctx, uid, sha)
	a.Data = nil
	return a, err
}

// TestOpenCallsAdmitBeforeItReads checks that Open calls Admit before it reads a large payload.
func TestOpenCallsAdmitBeforeItReads(t *testing.T) {
	const bytes = 2 * journal.MaxPayload
	j, full := &journaltest.Store{}, errors.New("there is not enough memory")
	log := open(t, 1, journal.Options{Journal: j, Apply: new(applied).apply})
	if err := log.Append(t.Context(), journal.Record{Kind: journal.ToolFinished, Payload: "short"},
		journal.Record{Kind: journal.ToolFinished, Payload: strings.Repeat("b", bytes-2)}); err != nil {
		t.Fatal(err)
	}
	var asked []int64
	_, err := journal.Open(t.Context(), "uid", 1,
		complete(journal.Options{Journal: unreadable{j}, Apply: new(applied).apply, Admit: func(n int64) error {
			if asked = append(asked, n); n == bytes {
				return full
			}
			return nil
		}}))
	if want := []int64{int64(len(`"short"`)), bytes}; !errors.Is(err, full) || !slices.Equal(asked, want) {
		t.Errorf("Open = %v after Admit received %v bytes; want %v after %v", err, asked, full, want)
	}
}

func TestRecordsThatCannotBeKept(t *testing.T) {
	for name, tc := range map[string]struct {
		reason, want string
		record       journal.Record
	}{
		"NoJSON": {"a payload must be JSON", "failed to marshal", journal.Record{Payload: math.NaN()}},
		"Payload": {
			"a payload that could not be read back is not written", "67108866 bytes",
			journal.Record{Payload: make([]byte, 48<<20)},
		},
		"SeparateArtifact": {
			"an artifact that could not be read back is not written", "67108865 bytes",
			journal.Record{Artifacts: []journal.Artifact{{Bytes: 64<<20 + 1}}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			j := &journaltest.Store{}
			log := open(t, 1, journal.Options{Journal: j})
			tc.record.Kind = journal.ToolFinished
			err := log.Append(t.Context(), journal.Record{Kind: journal.Prepared}, tc.record)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Append: %v, want an error with %q: %s", err, tc.want, tc.reason)
			}
			if got := collect(t, j); len(got) != 0 || log.Next() != 1 {
				t.Errorf("%d entries, and Next = %d; want 0 and 1", len(got), log.Next())
			}
		})
	}
}

func TestOpenOfUnreadableEntries(t *testing.T) {
	applyErr := errors.New("an answer without a question")
	good := journal.NewArtifact([]byte(`"content"`))
	damaged := good
	damaged.Data = append([]byte{}, good.Data...)
	damaged.Data[len(damaged.Data)-1] ^= 1
	for name, tc := range map[string]struct {
		reason string
		entry  journal.Entry
		apply  error
		want   error
		says   string
	}{
		"Newer": {
			"the payload may have another meaning",
			journal.Entry{Version: journal.PayloadVersion + 1},
			nil,
			journal.ErrNewer, "run that version",
		},
		"Missing": {"the payload is gone", journal.Entry{Artifact: good.SHA256}, nil, journal.ErrNoArtifact, "no such artifact"},
		"Damaged": {
			"the payload differs from the written payload",
			journal.Entry{Artifact: good.SHA256, Artifacts: []journal.Artifact{damaged}},
			nil, journal.ErrDamaged,
			good.SHA256,
		},
		"Replayed": {"the run cannot apply the entry", journal.Entry{}, applyErr, applyErr, ""},
	} {
		t.Run(name, func(t *testing.T) {
			j := &journaltest.Store{}
			e := tc.entry
			e.Seq, e.Epoch, e.Kind = 1, 1, journal.ModelReplied
			if err := j.Append(t.Context(), "uid", e); err != nil {
				t.Fatal(err)
			}
			apply := func(journal.Entry) error { return tc.apply }
			_, err := journal.Open(t.Context(), "uid", 1, complete(journal.Options{Journal: j, Apply: apply}))
			_, collectErr := journal.Collect(t.Context(), j, "uid")
			if tc.apply != nil {
				collectErr = err // Collect does not call Apply
			}
			if damaged := errors.Is(err, journal.ErrDamaged); damaged == errors.Is(err, journal.ErrNewer) {
				t.Errorf("Open: %v; damaged is %t, want either ErrDamaged or ErrNewer: %s", err, damaged, tc.reason)
			}
			for what, err := range map[string]error{"Open": err, "Collect": collectErr} {
				if err == nil || tc.want != nil && !errors.Is(err, tc.want) {
					t.Errorf("%s: %v, want %v: %s", what, err, tc.want, tc.reason)
					continue
				}
				for _, text := range []string{`entry 1 ("model.replied") of the journal of "uid"`, tc.says} {
					if !strings.Contains(err.Error(), text) {
						t.Errorf("%s: error %q, want %q in it", what, err, text)
					}
				}
			}
		})
	}
}

// gappy is a journal in which some entries are missing.
type gappy struct {
	journaltest.Store
	gone func(journal.Entry) bool
}

func (g *gappy) Read(ctx context.Context, uid string, after int64) iter.Seq2[journal.Entry, error] {
	return func(yield func(journal.Entry, error) bool) {
		for e, err := range g.Store.Read(ctx, uid, after) {
			if (err != nil || !g.gone(e)) && !yield(e, err) {
				return
			}
		}
	}
}

func TestOpenOfAJournalWithGaps(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		gone   func(journal.Entry) bool
		says   string
	}{
		"first": {"the journal is being purged", func(e journal.Entry) bool { return e.Seq < 3 }, "it has entry 3 in place of entry 1"},
		"middle": {
			"the missing entry may be a call that must not be repeated", func(e journal.Entry) bool { return e.Seq == 2 },
			"it has entry 3 in place of entry 2",
		},
	} {
		t.Run(name, func(t *testing.T) {
			j := &gappy{gone: tc.gone}
			log := open(t, 1, journal.Options{Journal: &j.Store})
			for range 4 {
				if err := log.Append(t.Context(), journal.Record{Kind: journal.ModelReplied}); err != nil {
					t.Fatal(err)
				}
			}
			_, err := journal.Open(t.Context(), "uid", 1, complete(journal.Options{Journal: j}))
			if !errors.Is(err, journal.ErrDamaged) || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("Open: %v, want ErrDamaged with %q: %s", err, tc.says, tc.reason)
			}
		})
	}
}

func TestErrorOfApplyStopsARun(t *testing.T) {
	applyErr := errors.New("out of order")
	j := &journaltest.Store{}
	log := open(t, 1, journal.Options{Journal: j, Apply: func(journal.Entry) error { return applyErr }})
	if err := log.Append(t.Context(), journal.Record{Kind: journal.Prepared}); !errors.Is(err, applyErr) {
		t.Errorf("Append: %v, want the error of Apply", err)
	}
}

func TestOpenNamesTheJournalInErrors(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := journal.Open(ctx, "uid", 1, complete(journal.Options{Journal: &journaltest.Store{}}))
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), `failed to read the journal of "uid"`) {
		t.Errorf("Open: %v, want an error with the journal and the cause", err)
	}
}
