//go:build unix

package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/store/sqlite"
)

// readingNobody is the environment variable with the file that a child process reads as the user nobody. If fullFor is
// set, too, the child process can write no byte to a file.
const readingNobody, fullFor = "CAPSTAN_TEST_READ_AS_NOBODY", "CAPSTAN_TEST_READ_ON_FULL_DISK"

// readAsNobody reads the journal "turn-00" of a file as the user nobody, and prints the number of its entries.
func readAsNobody(path string) error {
	if err := becomeNobody(); err != nil {
		return err
	}
	if os.Getenv(fullFor) != "" {
		signal.Ignore(syscall.SIGXFSZ)
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{}); err != nil {
			return err
		}
	}
	r, err := sqlite.OpenReader(context.Background(), path)
	if err != nil {
		_, err = fmt.Fprintln(os.Stdout, err)
		return err
	}
	got, err := journal.Collect(context.Background(), r, "turn-00")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(os.Stdout, "%d entries, immutable %t, copy %t\n", len(got), r.IsImmutable(), r.IsCopy())
	return errors.Join(err, r.Close())
}

// copyFile copies a file.
func copyFile(t *testing.T, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestReaderWithoutWritePermission reads files in a directory in which no file can be created.
func TestReaderWithoutWritePermission(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		make   func(t *testing.T, path string)
		full   bool
		mode   os.FileMode // of the directory
		want   []string
	}{
		"closed": {
			"the file has all entries", func(t *testing.T, path string) { writeJournals(t, path) }, false, 0o555,
			[]string{"20 entries, immutable true, copy false"},
		},
		"closed, on a full disk": {
			"the file has all entries", func(t *testing.T, path string) { writeJournals(t, path) }, true, 0o777,
			[]string{"20 entries, immutable true, copy false"},
		},
		"closed, with an empty log": {
			"the file has all entries", func(t *testing.T, path string) {
				writeJournals(t, path)
				if err := os.WriteFile(path+"-wal", nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}, false, 0o555,
			[]string{"20 entries, immutable true, copy false"},
		},
		"older schema": {
			"a copy elsewhere is read", func(t *testing.T, path string) {
				migrateTo(t, path, 1, func(db *sql.DB) {
					if _, err := db.ExecContext(t.Context(), `INSERT INTO journal (turn_uid, seq, epoch, kind, time, payload) VALUES
						('turn-00', 1, 1, 'prepared', '1970-01-01T00:00:01Z', '{}')`); err != nil {
						t.Fatal(err)
					}
				})
			}, false, 0o555,
			[]string{"1 entries, immutable false, copy true"},
		},
		"not closed": {
			"entries in the log must not be missing", func(t *testing.T, path string) {
				live := filepath.Join(t.TempDir(), "journal.db")
				if err := openAt(t, live).Append(t.Context(), "turn-00", entry(1)); err != nil {
					t.Fatal(err)
				}
				copyFile(t, live, path)
				copyFile(t, live+"-wal", path+"-wal")
			}, false, 0o555,
			[]string{
				"journal.db-wal", "was not closed", "copy both files to a directory in which files can be created",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir, temporary := t.TempDir(), t.TempDir()
			path := filepath.Join(dir, "journal.db")
			tc.make(t, path)
			all, err := filepath.Glob(path + "*")
			for _, file := range all {
				err = errors.Join(err, os.Chmod(file, 0o444))
			}
			err = errors.Join(err, os.Remove(path+".lock"))
			if errors.Is(err, os.ErrNotExist) { // only Open creates it
				err = nil
			}
			err = errors.Join(err, os.Chmod(temporary, 0o777), os.Chmod(filepath.Dir(dir), 0o755), os.Chmod(dir, tc.mode))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := os.Chmod(dir, 0o700); err != nil {
					t.Error(err)
				}
			})
			child := exec.CommandContext(t.Context(), os.Args[0])
			child.Env = append(os.Environ(), readingNobody+"="+path, "TMPDIR="+temporary)
			if tc.full {
				child.Env = append(child.Env, fullFor+"=1")
			}
			out, err := child.Output()
			if err != nil {
				t.Fatalf("the child process failed: %v: %s", err, out)
			}
			for _, want := range tc.want {
				if !strings.Contains(string(out), want) {
					t.Errorf("the output is %q, want %q: %s", out, want, tc.reason)
				}
			}
		})
	}
}

// TestReaderOfClosedFileSeesLaterEntries checks that a reader for which files can be created sees the entries that
// another process adds later.
func TestReaderOfClosedFileSeesLaterEntries(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.db")
	writeJournals(t, path)
	r, err := sqlite.OpenReader(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	if r.IsImmutable() {
		t.Error("the reader would not see later entries")
	}
	child, end := startHolder(t, path)
	if got, err := journal.Collect(t.Context(), r, "a"); err != nil || len(got) != 1 {
		t.Errorf("%d entries (error %v), want the 1 entry of the other process", len(got), err)
	}
	if err := errors.Join(r.Close(), end.Close(), child.Wait()); err != nil {
		t.Error(err)
	}
}
