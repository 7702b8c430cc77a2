package turn_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
)

// appends is a journal that keeps the appended entries.
type appends struct {
	journal.Journal
	mu      sync.Mutex
	entries []journal.Entry
}

func (a *appends) Append(ctx context.Context, uid string, entries ...journal.Entry) error {
	a.mu.Lock()
	a.entries = append(a.entries, entries...)
	a.mu.Unlock()
	return a.Journal.Append(ctx, uid, entries...)
}

// finalized returns the entry for the end of the Turn.
func (a *appends) finalized(t *testing.T) journal.Entry {
	t.Helper()
	for _, e := range a.entries {
		if e.Kind == journal.Finalized {
			return e
		}
	}
	t.Fatal("the turn has no end")
	return journal.Entry{}
}

// TestALongAnswerIsKeptOnceWithTheEnd checks that the entry for the end names the artifact and does not repeat the
// text. A later run must still return the text.
func TestALongAnswerIsKeptOnceWithTheEnd(t *testing.T) {
	text := strings.Repeat("all of it \n", 30_000)
	c, s := candidate("p0", 1, says(text))
	j := &appends{Journal: &journaltest.Store{}}
	first := mustRun(t, j, input(c))
	end := j.finalized(t)
	if end.Version != 2 {
		t.Errorf("the end has version %d, want 2: an older build would take it for an end without an answer", end.Version)
	}
	if len(end.Artifacts) != 1 || end.Artifacts[0].SHA256 != first.Answer.SHA256 || end.Artifact != "" ||
		strings.Contains(string(end.Payload), "all of it") {
		t.Errorf("the end has %d artifacts and a payload of %d bytes (artifact %q), want the answer's artifact alone",
			len(end.Artifacts), len(end.Payload), end.Artifact)
	}
	again := mustRun(t, j, input(c))
	if first.Text != text || again.Text != text || s.asked() != 1 {
		t.Errorf("the results have %d and %d bytes after %d requests, want the whole answer of %d",
			len(first.Text), len(again.Text), s.asked(), len(text))
	}
}

// TestTextInAnEntryOfAnOlderVersionIsRead checks an entry that contains the text of a long answer.
func TestTextInAnEntryOfAnOlderVersionIsRead(t *testing.T) {
	text := strings.Repeat("all of it \n", 10_000)
	c, _ := candidate("p0", 1, says(text))
	written := &appends{Journal: &journaltest.Store{}}
	result := mustRun(t, written, input(c))
	older := &journaltest.Store{}
	for _, e := range written.entries {
		if e.Kind == journal.Finalized {
			payload, err := json.Marshal(result)
			if err != nil {
				t.Fatal(err)
			}
			a := journal.NewArtifact(payload)
			e.Payload, e.Artifact, e.Artifacts = nil, a.SHA256, append(e.Artifacts, a)
		}
		if e.Artifact != "" {
			e.Payload = nil
		}
		if err := older.Append(t.Context(), "uid", e); err != nil {
			t.Fatal(err)
		}
	}
	if again := mustRun(t, older, input(c)); again.Text != text {
		t.Errorf("the result has %d bytes, want the %d bytes in its entry", len(again.Text), len(text))
	}
}

// TestOlderBuildsCanReadShortAnswers checks the versions of entries, because an older build may continue the Turn
// during an upgrade.
func TestOlderBuildsCanReadShortAnswers(t *testing.T) {
	c, _ := candidate("p0", 1, says("Hello."))
	j := &appends{Journal: &journaltest.Store{}}
	mustRun(t, j, input(c))
	for _, e := range j.entries {
		if e.Version != 1 {
			t.Errorf("entry %d (%s) has version %d, want 1", e.Seq, e.Kind, e.Version)
		}
	}
}

// lossy is a journal that returns err in place of each artifact.
type lossy struct {
	journal.Journal
	err error
}

func (l *lossy) Artifact(context.Context, string, string) (journal.Artifact, error) {
	return journal.Artifact{}, l.err
}

func TestAnswerThatCannotBeReadIsAnError(t *testing.T) {
	unavailable := errors.New("the store is unavailable")
	for name, tc := range map[string]struct {
		reason    string
		err, want error
		damaged   bool
	}{
		"artifact lost":     {"the record is incomplete without its answer", journal.ErrNoArtifact, journal.ErrDamaged, true},
		"store unavailable": {"the run must try again instead of ending the turn without its answer", unavailable, unavailable, false},
	} {
		t.Run(name, func(t *testing.T) {
			// Each "<" takes six bytes of JSON, so the answer becomes an artifact. The entry of the reply is just
			// small enough.
			c, _ := candidate("p0", 1, says(strings.Repeat("<", 9_000)))
			j := &journaltest.Store{}
			mustRun(t, j, input(c))
			result, err := engine(&lossy{j, tc.err}).Run(t.Context(), new(input(c)))
			if result != nil || !errors.Is(err, tc.want) || errors.Is(err, journal.ErrDamaged) != tc.damaged {
				t.Errorf("result %+v, error %v; want %v: %s", result, err, tc.want, tc.reason)
			}
		})
	}
}
