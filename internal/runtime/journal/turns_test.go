package journal_test

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/capstan-dev/capstan/internal/fairgate"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
)

// TestLargeEntriesTakeTurns writes and reads while another namespace uses the processor. A small entry is not delayed,
// but a large entry waits.
func TestLargeEntriesTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		processors := fairgate.NewProcessors(1)
		ctx, other := processors.With(t.Context(), "a"), processors.With(t.Context(), "b")
		j := &journaltest.Store{}
		var seen applied
		log, err := journal.Open(ctx, "uid", 1, complete(journal.Options{Journal: j, Apply: seen.apply}))
		if err != nil {
			t.Fatal(err)
		}
		whileBusy := func(what string, work func() error) {
			t.Helper()
			done, ended := fairgate.AcquireProcessor(other, 1<<20), make(chan error, 1)
			before := len(seen)
			go func() { ended <- work() }()
			synctest.Wait()
			if len(seen) != before || len(ended) != 0 {
				t.Errorf("%s does not wait for the other namespace", what)
			}
			done()
			if err := <-ended; err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		done := fairgate.AcquireProcessor(other, 1<<20)
		if err := log.Append(ctx, journal.Record{Kind: journal.Prepared, Payload: "small"}); err != nil || len(seen) != 1 {
			t.Errorf("Append = %v with %d applied entries, want 1 without a wait", err, len(seen))
		}
		done()
		whileBusy("an append", func() error {
			return log.Append(ctx, journal.Record{Kind: journal.ModelReplied, Payload: strings.Repeat("x", 1<<20)})
		})
		whileBusy("a read", func() error {
			_, err := journal.Open(ctx, "uid", 2, complete(journal.Options{Journal: j, After: 1}))
			return err
		})
	})
}
