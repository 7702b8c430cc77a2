package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
)

func TestCheck(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		harm   func(t *testing.T, path string)
		want   string
	}{
		"unchanged": {reason: "the journal can be written", harm: func(*testing.T, string) {}},
		"deleted": {
			reason: "writes to a deleted file are lost", want: "failed to find the file of the journal",
			harm: func(t *testing.T, path string) {
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
			},
		},
		"replaced": {
			reason: "the store writes to the old file, which is lost", want: "was replaced: restart this process",
			harm: func(t *testing.T, path string) {
				other := path + ".copy"
				if err := errors.Join(os.WriteFile(other, nil, 0o600), os.Rename(other, path)); err != nil {
					t.Fatal(err)
				}
			},
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

func TestConnectionsAreOpenedToTheOpenedFile(t *testing.T) {
	for name, tc := range map[string]struct {
		replacement string
		want        string
	}{
		"moved":    {want: "failed to find the file of the journal"},
		"replaced": {replacement: "another file", want: "was replaced: restart this process"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "journal.db")
			s := openAt(t, path)
			if err := s.Append(t.Context(), "a", entry(1)); err != nil {
				t.Fatal(err)
			}
			away := path + ".away"
			if err := os.Rename(path, away); err != nil {
				t.Fatal(err)
			}
			if tc.replacement != "" {
				if err := os.WriteFile(path, []byte(tc.replacement), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			for _, pool := range s.Pools() {
				pool.SetMaxIdleConns(-1) // closes the idle connections, so that the calls below open new ones
			}
			_, err := journal.Collect(t.Context(), s, "a")
			wantErrorText(t, "Read", err, tc.want)
			wantErrorText(t, "Append", s.Append(t.Context(), "a", entry(2)), tc.want)
			wantErrorText(t, "Check", s.Check(t.Context()), tc.want)
			if content, err := os.ReadFile(path); string(content) != tc.replacement || tc.replacement == "" && !os.IsNotExist(err) {
				t.Errorf("the file at the journal's path has %d bytes (error %v), want it unchanged", len(content), err)
			}
			if err := os.Rename(away, path); err != nil {
				t.Fatal(err)
			}
			checkWorks(t, s, "a", 1)
		})
	}
}

func TestFileLockedByAnotherProcess(t *testing.T) {
	t.Parallel() // takes as long as a call waits for a lock
	path := filepath.Join(t.TempDir(), "journal.db")
	s := openAt(t, path)
	if err := s.Append(t.Context(), "a", entry(1)); err != nil {
		t.Fatal(err)
	}
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
	var group sync.WaitGroup
	for name, call := range map[string]func() error{
		"Check": func() error { return s.Check(t.Context()) },
		"Check with a short timeout": func() error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			return s.Check(ctx)
		},
		"Append": func() error { return s.Append(t.Context(), "a", entry(2)) },
	} {
		group.Go(func() { wantErrorText(t, name, call(), "another process has locked the") })
	}
	if got, err := journal.Collect(t.Context(), s, "a"); err != nil || len(got) != 1 {
		t.Errorf("%d entries (error %v), want the 1 entry in spite of the lock", len(got), err)
	}
	group.Wait()
	if err := errors.Join(conn.Close(), db.Close()); err != nil {
		t.Fatal(err)
	}
	checkWorks(t, s, "a", 1)
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
		t.Errorf("the write-ahead log has %d bytes after Check and %d before, want more: Check must write to detect a full disk",
			after, before)
	}
}
