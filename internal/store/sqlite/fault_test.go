package sqlite_test

import (
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/store"
	"github.com/capstan-dev/capstan/internal/store/sqlite"
)

// wantErrorText fails the test unless an error contains the given texts, which say what happened and what to do.
func wantErrorText(t *testing.T, what string, err error, want ...string) {
	t.Helper()
	for _, text := range want {
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: error %v, want it to contain %q", what, err, text)
		}
	}
}

// checkWorks fails the test unless the store works, and the journal has n entries and accepts another one.
func checkWorks(t *testing.T, s *sqlite.Store, uid string, n int) {
	t.Helper()
	if got, err := journal.Collect(t.Context(), s, uid); err != nil || len(got) != n {
		t.Errorf("journal %q has %d entries (error %v), want the %d written entries", uid, len(got), err, n)
	}
	if err := s.Append(t.Context(), uid, entry(int64(n+1))); err != nil {
		t.Errorf("Append to %q: %v, want it to succeed", uid, err)
	}
	if err := s.Check(t.Context()); err != nil {
		t.Errorf("Check: %v, want no error", err)
	}
}

// writeJournals creates a file with 20 journals of 20 entries each, some MiB in total, and returns their UIDs.
func writeJournals(t *testing.T, path string) (uids []string) {
	t.Helper()
	s := openAt(t, path)
	for i := range 20 {
		uid := fmt.Sprintf("turn-%02d", i)
		uids = append(uids, uid)
		for seq := range int64(20) {
			e := entry(seq + 1)
			e.Payload = fmt.Appendf(nil, "%q", strings.Repeat("reply ", 2000))
			if err := s.Append(t.Context(), uid, e); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return uids
}

// overwrite writes random bytes into a part of a file. from and to are fractions of the file's size.
func overwrite(t *testing.T, path string, from, to float64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	first := int64(from * float64(info.Size()))
	noise := make([]byte, int64(to*float64(info.Size()))-first)
	_, _ = rand.Read(noise) // never fails
	_, err = f.WriteAt(noise, first)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

func TestOpenFindsDamage(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		harm   func(t *testing.T, path string)
	}{
		"cleared header": {
			reason: "a file without its header cannot be read",
			harm: func(t *testing.T, path string) {
				f, err := os.OpenFile(path, os.O_RDWR, 0)
				if err != nil {
					t.Fatal(err)
				}
				_, err = f.WriteAt(make([]byte, 100), 0)
				if err := errors.Join(err, f.Close()); err != nil {
					t.Fatal(err)
				}
			},
		},
		"overwritten pages": {
			reason: "a Turn whose entries are damaged would fail while it runs",
			harm:   func(t *testing.T, path string) { overwrite(t, path, 0.5, 0.6) },
		},
		"truncated file": {
			reason: "an incomplete copy must not be used as a backup",
			harm: func(t *testing.T, path string) {
				if err := os.Truncate(path, 1<<20); err != nil {
					t.Fatal(err)
				}
			},
		},
		"text file": {
			reason: "a file of another program must not be changed",
			harm: func(t *testing.T, path string) {
				if err := os.WriteFile(path, []byte(strings.Repeat("this is no database. ", 1000)), 0o600); err != nil {
					t.Fatal(err)
				}
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "journal.db")
			writeJournals(t, path)
			tc.harm(t, path)
			s, err := sqlite.Open(t.Context(), path)
			if err == nil {
				t.Fatal(errors.Join(fmt.Errorf("Open returned no error: %s", tc.reason), s.Close()))
			}
			wantErrorText(t, "Open", err, path, "the file is damaged", "move the file and the files next to it that end in -wal and -shm",
				"only then put a backup", ".recover")
		})
	}
}

func TestCheckReportsDamageFoundByRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.db")
	uids := writeJournals(t, path)
	s := openAt(t, path)
	overwrite(t, path, 0.5, 0.6)
	if err := s.Check(t.Context()); err != nil {
		t.Errorf("Check: %v, want no error before Read has found the damage", err)
	}
	var damaged, whole int
	for _, uid := range uids {
		got, err := journal.Collect(t.Context(), s, uid)
		if err == nil && len(got) == 20 {
			whole++
			continue
		}
		damaged++
		wantErrorText(t, "Read", err, "the file is damaged", ".recover")
	}
	if damaged == 0 || whole == 0 {
		t.Errorf("%d journals are damaged and %d are complete, want at least one of each", damaged, whole)
	}
	wantErrorText(t, "Check", s.Check(t.Context()), path, "the file is damaged", ".recover")
}

func TestOverwrittenHeaderIsDetected(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.db")
	writeJournals(t, path)
	s := openAt(t, path)
	overwrite(t, path, 0, 0.001)
	wantErrorText(t, "Check", s.Check(t.Context()), path, "the header of the journal", "the file is damaged", ".recover")
}

// pragma changes a setting of the connections of pools that have one connection each.
func pragma(t *testing.T, pools []*sql.DB, set string, args ...any) {
	t.Helper()
	for _, db := range pools {
		if _, err := db.ExecContext(t.Context(), fmt.Sprintf("PRAGMA "+set, args...)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestReadOnlyFile(t *testing.T) {
	s := openAt(t, filepath.Join(t.TempDir(), "journal.db"))
	if err := s.Append(t.Context(), "a", entry(1)); err != nil {
		t.Fatal(err)
	}
	pools := s.SingleConns()
	pragma(t, pools, "query_only = on")
	wantErrorText(t, "Append", s.Append(t.Context(), "a", entry(2)), "read-only", "mount the volume for writing")
	wantErrorText(t, "Check", s.Check(t.Context()), "failed to write to the journal", "mount the volume for writing")
	if got, err := journal.Collect(t.Context(), s, "a"); err != nil || len(got) != 1 {
		t.Errorf("%d entries (error %v), want the 1 entry that was written before", len(got), err)
	}
	pragma(t, pools, "query_only = off")
	checkWorks(t, s, "a", 1)
}

func TestFullDisk(t *testing.T) {
	s := openAt(t, filepath.Join(t.TempDir(), "journal.db"))
	if err := s.Append(t.Context(), "a", entry(1)); err != nil {
		t.Fatal(err)
	}
	pools := s.SingleConns()
	var pages int
	if err := pools[0].QueryRowContext(t.Context(), "PRAGMA page_count").Scan(&pages); err != nil {
		t.Fatal(err)
	}
	pragma(t, pools, "max_page_count = %d", pages+10)
	wantErrorText(t, "Append", s.Append(t.Context(), "a", large(2)), "full", "free space or enlarge the volume")
	wantErrorText(t, "Check", s.Check(t.Context()), "failed to write to the journal", "free space or enlarge the volume")
	if err := s.Append(t.Context(), "b", entry(1)); err != nil {
		t.Errorf("Append of a small entry: %v, want no error", err)
	}
	wantErrorText(t, "Check after a small append", s.Check(t.Context()), "free space or enlarge the volume")
	pragma(t, pools, "max_page_count = %d", pages+10_000)
	checkWorks(t, s, "a", 1)
	if err := s.Append(t.Context(), "a", large(3)); err != nil {
		t.Errorf("Append of a large entry with enough space: %v", err)
	}
	checkWorks(t, s, "b", 1)
}

// TestFailedAppendIsNotCounted checks the numbers of entries and artifacts after an append during which SQLite rolled
// back on its own. It would execute and keep a later statement of the same transaction.
func TestFailedAppendIsNotCounted(t *testing.T) {
	s := openAt(t, filepath.Join(t.TempDir(), "journal.db"))
	if err := s.Append(t.Context(), "a", entry(1)); err != nil {
		t.Fatal(err)
	}
	counts := func() store.Size {
		size, err := s.Size(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		size.Bytes = 0
		return size
	}
	before := counts()
	pools := s.SingleConns()
	var pages int
	if err := pools[0].QueryRowContext(t.Context(), "PRAGMA page_count").Scan(&pages); err != nil {
		t.Fatal(err)
	}
	pragma(t, pools, "cache_size = 10") // so that SQLite needs space before the commit
	pragma(t, pools, "max_page_count = %d", pages+10)
	small := entry(2)
	small.Artifacts = []journal.Artifact{{SHA256: "4567", Bytes: 1, Data: []byte("a")}}
	for range 2 {
		wantErrorText(t, "Append", s.Append(t.Context(), "a", small, large(3)), "full")
	}
	if after := counts(); after != before {
		t.Errorf("%+v after appends that failed, want %+v as before", after, before)
	}
	pragma(t, pools, "max_page_count = %d", pages+10_000)
	checkWorks(t, s, "a", 1)
}

// large returns an entry with an artifact of 2 MiB.
func large(seq int64) journal.Entry {
	a := journal.Artifact{SHA256: "0123", Bytes: 2 << 20, Data: make([]byte, 2<<20)}
	e := entry(seq)
	e.Artifacts = []journal.Artifact{a}
	return e
}
