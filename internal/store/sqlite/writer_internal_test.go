package sqlite

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
)

// TestRefusalInAFailedBatch checks that a call is not refused because of another call of its batch that was not
// written.
func TestRefusalInAFailedBatch(t *testing.T) {
	s, err := Open(t.Context(), filepath.Join(t.TempDir(), "journal.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	call := func(epoch int64, data []byte) *appendCall {
		return &appendCall{uid: "a", done: make(chan error, 1), entries: []journal.Entry{{
			Seq: 1, Epoch: epoch, Kind: journal.RunStarted, Version: journal.PayloadVersion, Time: time.Now(), Payload: []byte(`{}`),
			Artifacts: []journal.Artifact{{SHA256: "0123", Bytes: int64(len(data)), Data: data}},
		}}}
	}
	var pages int
	if err := s.writes.QueryRowContext(t.Context(), "PRAGMA page_count").Scan(&pages); err != nil {
		t.Fatal(err)
	}
	for _, want := range []struct {
		pages  int
		text   string
		second error
	}{
		{pages: pages + 100, text: "full"},
		{pages: pages + 10_000, second: journal.ErrSequence},
	} {
		t.Run(fmt.Sprintf("%d pages", want.pages), func(t *testing.T) {
			if _, err := s.writes.ExecContext(t.Context(), fmt.Sprintf("PRAGMA max_page_count = %d", want.pages)); err != nil {
				t.Fatal(err)
			}
			first, second, third := call(1, nil), call(1, nil), call(1, make([]byte, 2<<20))
			third.uid = "b"
			s.commit([]*appendCall{first, second, third})
			for i, c := range []*appendCall{first, second, third} {
				err := <-c.done
				switch {
				case want.text != "":
					if err == nil || !strings.Contains(err.Error(), want.text) {
						t.Errorf("call %d: %v, want an error about %q", i, err, want.text)
					}
				case i == 1:
					if !errors.Is(err, want.second) {
						t.Errorf("call %d: %v, want %v", i, err, want.second)
					}
				case err != nil:
					t.Errorf("call %d: %v", i, err)
				}
			}
		})
	}
}
