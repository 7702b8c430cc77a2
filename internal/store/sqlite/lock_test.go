//go:build unix

package sqlite_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/store/sqlite"
)

// holder is the environment variable with the file that a child process opens and holds until its standard input
// ends.
const holder = "CAPSTAN_TEST_HOLD"

// holdOpen opens a file, appends an entry, prints "opened" and waits until its standard input ends.
func holdOpen(path string) error {
	ctx := context.Background()
	s, err := sqlite.Open(ctx, path)
	if err != nil {
		return err
	}
	if err := s.Append(ctx, "a", entry(1)); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(os.Stdout, "opened"); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	return errors.Join(err, s.Close())
}

// startHolder starts a process that opens a file, and returns when the file is open. Closing end stops the process.
func startHolder(t *testing.T, path string) (child *exec.Cmd, end io.Closer) {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	child = exec.CommandContext(t.Context(), program)
	child.Env, child.Stderr = append(os.Environ(), holder+"="+path), os.Stderr
	in, inErr := child.StdinPipe()
	out, outErr := child.StdoutPipe()
	if err := errors.Join(inErr, outErr, child.Start()); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "opened\n" {
		t.Fatalf("the child process printed %q (error %v), want \"opened\"", line, err)
	}
	return child, in
}

func TestOpenWhileAnotherProcessUsesFile(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		end    func(child *exec.Cmd, in io.Closer) error
	}{
		"killed": {"the kernel releases the lock, and no acknowledged entry is lost", func(child *exec.Cmd, _ io.Closer) error {
			err := child.Process.Kill()
			if waited := child.Wait(); waited == nil {
				err = errors.Join(err, errors.New("the child process was not killed"))
			}
			return err
		}},
		"closed": {
			"the process releases the lock",
			func(child *exec.Cmd, in io.Closer) error { return errors.Join(in.Close(), child.Wait()) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "data", "journal.db")
			child, in := startHolder(t, path)
			s, err := sqlite.Open(t.Context(), path)
			if err == nil {
				t.Fatal(errors.Join(errors.New("Open succeeded while another process used the file"), s.Close()))
			}
			if !errors.Is(err, sqlite.ErrInUse) || !sqlite.IsInUse(err) {
				t.Errorf("Open: %v, want ErrInUse", err)
			}
			wantErrorText(t, "Open", err, path, "another process uses it", fmt.Sprintf("process %d on ", child.Process.Pid),
				"wait for that process or stop it")

			r, err := sqlite.OpenReader(t.Context(), path)
			if err != nil {
				t.Fatalf("OpenReader: %v, want no error for a file that is in use", err)
			}
			if got, err := journal.Collect(t.Context(), r, "a"); err != nil || len(got) != 1 {
				t.Errorf("%d entries (error %v), want the 1 entry of the other process", len(got), err)
			}
			wantErrorText(t, "Append of a reader", r.Append(t.Context(), "a", entry(2)), path, "opened for reading only")
			if err := errors.Join(r.Close(), tc.end(child, in)); err != nil {
				t.Fatal(err)
			}
			checkWorks(t, openAt(t, path), "a", 1) // because of tc.reason
		})
	}
}

func TestOpenWhileAnotherStoreUsesFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.db")
	first := openAt(t, path)
	if second, err := sqlite.Open(t.Context(), path); !errors.Is(err, sqlite.ErrInUse) {
		t.Fatalf("Open = %v, %v; want ErrInUse", second, err)
	}
	if err := first.Append(t.Context(), "a", entry(1)); err != nil {
		t.Errorf("Append of the first store: %v, want the second one to have changed nothing", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := sqlite.Open(ended, path); !errors.Is(err, context.Canceled) {
		t.Errorf("Open: %v, want the context's error", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	checkWorks(t, openAt(t, path), "a", 1)
}

// TestRestoreAfterWriterWasKilled restores a backup as the advice on damage says, and checks that the entries are those
// of the backup. The write-ahead log of the killed process has later ones.
func TestRestoreAfterWriterWasKilled(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.db")
	s := openAt(t, path)
	if err := errors.Join(s.Append(t.Context(), "b", entry(1)), s.Close()); err != nil {
		t.Fatal(err)
	}
	backup, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	child, _ := startHolder(t, path) // adds an entry to the journal a
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait() // the process was killed
	moved := t.TempDir()
	for _, suffix := range []string{"", "-wal", "-shm"} {
		if err := os.Rename(path+suffix, filepath.Join(moved, "journal.db"+suffix)); err != nil {
			t.Errorf("a killed process leaves FILE%s: %v", suffix, err)
		}
	}
	if err := os.WriteFile(path, backup, 0o600); err != nil {
		t.Fatal(err)
	}
	restored := openAt(t, path)
	checkWorks(t, restored, "b", 1)
	checkWorks(t, restored, "a", 0)
	checkWorks(t, openAt(t, filepath.Join(moved, "journal.db")), "a", 1) // the moved files are complete
}

func TestReaderAfterWriterWasKilled(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.db")
	child, _ := startHolder(t, path)
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait() // the process was killed
	r, err := sqlite.OpenReader(t.Context(), path)
	if err != nil {
		t.Fatalf("OpenReader: %v", err)
	}
	if got, err := journal.Collect(t.Context(), r, "a"); err != nil || len(got) != 1 {
		t.Errorf("%d entries (error %v), want the 1 entry in the write-ahead log", len(got), err)
	}
	s := openAt(t, path) // a reader does not block a writer
	if err := s.Append(t.Context(), "a", entry(2)); err != nil {
		t.Error(err)
	}
	if got, err := journal.Collect(t.Context(), r, "a"); err != nil || len(got) != 2 {
		t.Errorf("%d entries (error %v), want 2, with the new entry", len(got), err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	checkWorks(t, s, "a", 2)
}
