package sqlite_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/store/sqlite"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func openAt(t *testing.T, path string) *sqlite.Store {
	t.Helper()
	s, err := sqlite.Open(t.Context(), path)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}

func TestJournalContract(t *testing.T) {
	paths := map[journal.Journal]string{}
	journaltest.Run(t, func(t *testing.T) journal.Journal {
		path := filepath.Join(t.TempDir(), "odd ?name#%", "journal.db")
		s := openAt(t, path)
		paths[s] = path
		return s
	}, func(t *testing.T, j journal.Journal) journal.Journal {
		if err := j.(*sqlite.Store).Close(); err != nil {
			t.Fatalf("Close: %v", err)
		}
		return openAt(t, paths[j])
	})
}

func TestFileIsPrivate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data", "journal.db")
	openAt(t, path)
	for p, want := range map[string]os.FileMode{path: 0o600, filepath.Dir(path): os.ModeDir | 0o700} {
		info, err := os.Stat(p)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != want {
			t.Errorf("mode of %s is %v, want %v: a journal holds prompts and answers", filepath.Base(p), info.Mode(), want)
		}
	}
}

func TestOpenNamesTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.db")
	if err := os.WriteFile(path, []byte("this is no database, it only looks like a file of some length........."), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := sqlite.Open(t.Context(), path)
	if err == nil {
		t.Fatal(errors.Join(errors.New("Open took a text file for a journal"), s.Close()))
	}
	if !strings.Contains(err.Error(), path) {
		t.Errorf("error %q does not name the file %q", err, path)
	}
}

func TestDeleteForgetsOneTurn(t *testing.T) {
	s := openAt(t, filepath.Join(t.TempDir(), "journal.db"))
	for _, uid := range []string{"a", "b"} {
		e := journal.Entry{Seq: 1, Epoch: 1, Kind: journal.Prepared, Time: time.Unix(1, 0), Payload: []byte("{}")}
		if err := s.Append(t.Context(), uid, e); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // the second time there is nothing to forget
		if err := s.Delete(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
	}
	got, err := s.TurnUIDs(t.Context())
	if err != nil || !slices.Equal(got, []string{"b"}) {
		t.Errorf("TurnUIDs: %v, %v; want [b]", got, err)
	}
}

func TestAppendAfterClose(t *testing.T) {
	s := openAt(t, filepath.Join(t.TempDir(), "journal.db"))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	err := s.Append(t.Context(), "a", journal.Entry{Seq: 1, Epoch: 1})
	if !errors.Is(err, sqlite.ErrClosed) {
		t.Errorf("Append: %v, want ErrClosed", err)
	}
}

func TestProcessesThatOpenANewJournalAtOnce(t *testing.T) {
	for range 3 {
		path := filepath.Join(t.TempDir(), "journal.db")
		var group sync.WaitGroup
		for range 4 {
			group.Go(func() {
				s, err := sqlite.Open(t.Context(), path)
				if err != nil {
					t.Errorf("Open: %v, want all to get the new journal", err)
					return
				}
				if err := s.Close(); err != nil {
					t.Errorf("Close: %v", err)
				}
			})
		}
		group.Wait()
	}
}
