package turn_test

import (
	"testing"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
)

// TestNamespaceAndReference checks the namespace of the object, and the history that its prompt refers to.
func TestNamespaceAndReference(t *testing.T) {
	j := &journaltest.Store{}
	in, _ := deletedInput(func() {})
	mustRun(t, j, in)
	alone, _ := deletedInput(func() {})
	alone.UID, alone.Session = "alone", nil
	mustRun(t, j, alone)
	note := func(uid string, kind journal.Kind, payload string) {
		t.Helper()
		if err := j.Append(t.Context(), uid,
			journal.Entry{Seq: 1, Epoch: 1, Kind: kind, Version: journal.PayloadVersion, Payload: []byte(payload)}); err != nil {
			t.Fatal(err)
		}
	}
	note("old", journal.SessionTurn, `{"turnUID":"a"}`)
	note("damaged", journal.RunStarted, `"nonsense"`)
	for uid, want := range map[string]struct{ namespace, reference string }{
		"a":        {"helpdesk", "talk-uid"},
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
		reference, err := engine(j).Reference(t.Context(), uid)
		if err != nil || reference != want.reference {
			t.Errorf("the prompt of %q refers to %q, %v; want %q", uid, reference, err, want.reference)
		}
	}
}
