package turn_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/turncontext"
)

// TestNamespaceAndReference checks the namespace of the object, and the history that its prompt refers to.
func TestNamespaceAndReference(t *testing.T) {
	j := &journaltest.Store{}
	in, _ := deletedInput(func() {})
	mustRun(t, j, in)
	alone, _ := deletedInput(func() {})
	alone.UID, alone.Session = "alone", nil
	mustRun(t, j, alone)
	large, _ := deletedInput(func() {})
	large.UID, large.Preparation = "large", preparationOf(func(m *prepare.Input) {
		m.Turn.Session, m.Turn.Message = &turncontext.Session{ID: "talk"}, strings.Repeat("Tell me more. ", 1<<14)
	})
	mustRun(t, j, large)
	note := func(uid string, kind journal.Kind, payload string) {
		t.Helper()
		if err := j.Append(t.Context(), uid,
			journal.Entry{Seq: 1, Epoch: 1, Kind: kind, Version: journal.PayloadVersion, Payload: []byte(payload)}); err != nil {
			t.Fatal(err)
		}
	}
	note("old", journal.SessionTurn, `{"turnUID":"a"}`)
	note("damaged", journal.RunStarted, `"nonsense"`)
	full := errors.New("no memory")
	refuse := func(context.Context, int64) (func(), error) { return nil, full }
	if _, err := engine(j).Reference(t.Context(), "large", refuse); !errors.Is(err, full) {
		t.Errorf("Reference without memory: %v, want %v", err, full)
	}
	newer := journal.Entry{Seq: 1, Epoch: 1, Kind: journal.PreparationInput, Version: journal.PayloadVersion + 1, Payload: []byte("{}")}
	if err := j.Append(t.Context(), "newer", newer); err != nil {
		t.Fatal(err)
	}
	if reference, err := engine(j).Reference(t.Context(), "newer", nil); !errors.Is(err, journal.ErrNewer) {
		t.Errorf("Reference of a newer version: %q, %v; want ErrNewer, because the Turn may refer to a history", reference, err)
	}
	for uid, want := range map[string]struct{ namespace, reference string }{
		"a":        {"helpdesk", "talk-uid"},
		"large":    {"helpdesk", "talk-uid"},
		"alone":    {"helpdesk", ""},
		"talk-uid": {"helpdesk", ""},
		"old":      {"", ""},
		"damaged":  {"", ""},
		"none":     {"", ""},
	} {
		namespace, err := engine(j).Namespace(t.Context(), uid)
		if err != nil || namespace != want.namespace {
			t.Errorf("the namespace of %q is %q, %v; want %q", uid, namespace, err, want.namespace)
		}
		reserved, held := int64(0), 0
		reserve := func(_ context.Context, bytes int64) (func(), error) {
			reserved += bytes
			held++
			return func() { held-- }, nil
		}
		reference, err := engine(j).Reference(t.Context(), uid, reserve)
		if err != nil || reference != want.reference {
			t.Errorf("the prompt of %q refers to %q, %v; want %q", uid, reference, err, want.reference)
		}
		if held != 0 || (reserved > 0) != (uid == "large") {
			t.Errorf("%q: %d bytes reserved, %d reservations kept; want memory for a large entry, and none kept", uid, reserved, held)
		}
	}
}
