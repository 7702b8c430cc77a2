package readapi_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/go-logr/logr/funcr"

	"github.com/capstan-dev/capstan/internal/readapi"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
)

// failing is a store whose journals fail after their first entries.
type failing struct {
	*journaltest.Store
	entries int64
	err     error
}

func (f failing) Read(_ context.Context, _ string, after int64) iter.Seq2[journal.Entry, error] {
	return func(yield func(journal.Entry, error) bool) {
		for seq := after + 1; seq <= f.entries; seq++ {
			if !yield(journal.Entry{Seq: seq, Kind: journal.RunStarted, Version: 1, Payload: []byte("{}")}, nil) {
				return
			}
		}
		yield(journal.Entry{}, f.err)
	}
}

// TestJournalOfFailingStore checks that clients do not repeat a request that can only fail again, and that the log of
// the manager then has the cause.
func TestJournalOfFailingStore(t *testing.T) {
	damaged := fmt.Errorf("entry 2 makes no sense: %w", journal.ErrDamaged)
	for name, tc := range map[string]struct {
		reason  string
		entries int64
		err     error
		status  int
		logged  bool
	}{
		"damaged":     {"another read does not help", 0, damaged, http.StatusInternalServerError, true},
		"damaged end": {"the last line has the status", 1, damaged, http.StatusInternalServerError, true},
		"newer":       {"only another version can read it", 0, journal.ErrNewer, http.StatusInternalServerError, true},
		"unreachable": {"the store may be reachable again", 0, errors.New("it is gone"), http.StatusServiceUnavailable, false},
	} {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			var log []string
			sink := funcr.New(func(_, line string) {
				mu.Lock()
				defer mu.Unlock()
				log = append(log, line)
			}, funcr.Options{})
			url := startLogged(t, sink, failing{&journaltest.Store{}, tc.entries, tc.err}, "ada get helpdesk")
			c, err := readapi.NewClient(url, bearer("ada"))
			if err != nil {
				t.Fatal(err)
			}
			var read int64
			for e, err := range c.Journal(t.Context(), readapi.Query{Namespace: "helpdesk", Name: "t0"}) {
				if err == nil {
					read = e.Seq
					continue
				}
				if refused, ok := errors.AsType[*readapi.Error](err); !ok || refused.Status != tc.status {
					t.Errorf("%s: %v, want status %d", tc.reason, err, tc.status)
				}
			}
			if read != tc.entries {
				t.Errorf("%d entries, want %d", read, tc.entries)
			}
			mu.Lock()
			defer mu.Unlock()
			all := strings.Join(log, "\n")
			if strings.Contains(all, "\"error\"=") != tc.logged || strings.Contains(all, tc.err.Error()) != tc.logged ||
				strings.Contains(all, `"name"="t0"`) != tc.logged {
				t.Errorf("the log is\n%s\nwant an error with the cause and the Turn: %t", all, tc.logged)
			}
		})
	}
}
