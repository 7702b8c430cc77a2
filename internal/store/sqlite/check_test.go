package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/capstan-dev/capstan/internal/store/sqlite"
)

func TestCheck(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		harm   func(t *testing.T, path string)
		want   string
	}{
		"Sound": {reason: "a journal that can be written is fine", harm: func(*testing.T, string) {}},
		"Deleted": {
			reason: "what is written to a file without a name is lost", want: "failed to find the file of the journal",
			harm: func(t *testing.T, path string) {
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
			},
		},
		"Replaced": {
			reason: "a file that was restored from a copy is not the one that is open", want: "another file has taken the place",
			harm: func(t *testing.T, path string) {
				other := path + ".copy"
				if err := errors.Join(os.WriteFile(other, nil, 0o600), os.Rename(other, path)); err != nil {
					t.Fatal(err)
				}
			},
		},
		"Held": {
			reason: "a file that another process holds cannot be written", want: "failed to write to the journal",
			harm: hold,
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "journal.db")
			s := openAt(t, path)
			tc.harm(t, path)
			ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
			defer cancel()
			err := s.Check(ctx)
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("Check = %v, want %q: %s", err, tc.want, tc.reason)
			}
		})
	}
}

// hold locks a file until the test ends.
func hold(t *testing.T, path string) {
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.ExecContext(t.Context(), "BEGIN IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(conn.Close(), db.Close()); err != nil {
			t.Error(err)
		}
	})
}

func TestCheckWritesToTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.db")
	s := openAt(t, path)
	size := func() int64 {
		info, err := os.Stat(path + "-wal")
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	before := size()
	if err := s.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	if after := size(); after <= before {
		t.Errorf("the file's log has %d bytes after a check and %d before, want more: a check that writes nothing sees no full disk", after, before)
	}
}

func TestCheckAfterClose(t *testing.T) {
	s := openAt(t, filepath.Join(t.TempDir(), "journal.db"))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Check(t.Context()); !errors.Is(err, sqlite.ErrClosed) {
		t.Errorf("Check: %v, want ErrClosed", err)
	}
}
