//go:build unix

package sqlite_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/capstan-dev/capstan/internal/store/sqlite"
)

// limitFileSize lets no file of this process grow beyond a size until restore is called. A write to the write-ahead log
// then fails as on a broken disk.
func limitFileSize(t *testing.T, bytes uint64) (restore func()) {
	t.Helper()
	var before syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &before); err != nil {
		t.Fatal(err)
	}
	signal.Ignore(syscall.SIGXFSZ)
	set := func(to syscall.Rlimit) {
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &to); err != nil {
			t.Error(err)
		}
	}
	set(syscall.Rlimit{Cur: bytes, Max: before.Max})
	restore = sync.OnceFunc(func() {
		set(before)
		signal.Reset(syscall.SIGXFSZ)
	})
	t.Cleanup(restore)
	return restore
}

func TestFileSizeLimit(t *testing.T) {
	s := openAt(t, filepath.Join(t.TempDir(), "journal.db"))
	if err := s.Append(t.Context(), "a", entry(1)); err != nil {
		t.Fatal(err)
	}
	restore := limitFileSize(t, 1<<20)
	wantErrorText(t, "Append", s.Append(t.Context(), "a", large(2)), "the disk reported an error", "check the volume and its limits")
	wantErrorText(t, "Check", s.Check(t.Context()), "failed to write to the journal", "check the volume and its limits")
	restore()
	checkWorks(t, s, "a", 1)
	if err := s.Append(t.Context(), "a", large(3)); err != nil {
		t.Errorf("Append of a large entry without the limit: %v", err)
	}
}

// nobody is the environment variable with the file that a child process opens as the user nobody.
const nobody = "CAPSTAN_TEST_OPEN_AS_NOBODY"

// becomeNobody makes this process run as the user nobody if it runs as root, because permissions do not restrict root.
func becomeNobody() error {
	const id = 65534
	if os.Geteuid() != 0 {
		return nil
	}
	return errors.Join(syscall.Setgroups(nil), syscall.Setgid(id), syscall.Setuid(id))
}

// openAsNobody opens a file as the user nobody, and prints the result.
func openAsNobody(path string) error {
	if err := becomeNobody(); err != nil {
		return err
	}
	s, err := sqlite.Open(context.Background(), path)
	if err != nil {
		_, err = fmt.Fprintln(os.Stdout, err)
		return err
	}
	_, err = fmt.Fprintln(os.Stdout, "opened")
	return errors.Join(err, s.Close())
}

func TestOpenWithoutWritePermission(t *testing.T) {
	for name, tc := range map[string]struct {
		reason    string
		file, dir os.FileMode
		want      string
	}{
		"read-only file":      {"the file cannot be written", 0o444, 0o755, "let the user of this process own both"},
		"read-only directory": {"the write-ahead log cannot be created", 0o666, 0o555, "let the user of this process own both"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "journal.db")
			writeJournals(t, path)
			if err := errors.Join(os.Chmod(filepath.Dir(dir), 0o755), os.Chmod(path, tc.file), os.Chmod(dir, tc.dir)); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := os.Chmod(dir, 0o700); err != nil {
					t.Error(err)
				}
			})
			program, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			child := exec.CommandContext(t.Context(), program)
			child.Env = append(os.Environ(), nobody+"="+path)
			output, err := child.Output()
			if err != nil {
				t.Fatalf("the child process failed: %v: %s", err, output)
			}
			wantErrorText(t, "Open: "+tc.reason, errors.New(string(output)), path, tc.want)
		})
	}
}
