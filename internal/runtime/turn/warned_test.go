package turn_test

import (
	"slices"
	"testing"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
)

// TestWarningIsReportedBeforeTheRequest checks that the warning about a long conversation is reported once, after the
// journal has it and before the model is asked.
func TestWarningIsReportedBeforeTheRequest(t *testing.T) {
	c, s := candidate("p0", 1, says("Done."))
	c.ContextWindow = 10_000
	in := input(c)
	in.Context = loop.ContextPolicy{WarnPercent: 1, CompactPercent: 100}
	j := &journaltest.Store{}
	var warned []loop.Warning
	in.Warned = func(w loop.Warning) {
		warned = append(warned, w)
		if s.asked() > 0 || !slices.Contains(kinds(t, j), journal.ContextWarned) {
			t.Error("the warning came before the journal had it, or after a request")
		}
	}
	mustRun(t, j, in)
	if len(warned) != 1 || warned[0].ContextWindow != 10_000 || warned[0].Tokens < 100 {
		t.Errorf("warnings %+v, want one with the context window and the tokens", warned)
	}
}
