package localrun

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/cli/exit"
	"github.com/capstan-dev/capstan/internal/cli/journals"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/store/sqlite"
	"github.com/capstan-dev/capstan/internal/turnstatus"
)

// store is a SQLite store, which may be temporary.
type store struct {
	*sqlite.Store
	// dir is the directory of the journal.
	dir string
	// temporary is the directory to remove at the end. It is nil if the journal is kept.
	temporary *sqlite.TemporaryDir
}

// hasJournals reports whether --data-dir may have journals of earlier runs.
func (r *Options) hasJournals() bool {
	if r.DataDir == "" {
		return false
	}
	_, err := os.Stat(filepath.Join(r.DataDir, journals.FileName))
	return !errors.Is(err, os.ErrNotExist)
}

// openStore opens the journal of --data-dir, or a temporary journal. Only the user of this process can read it.
func (r *Options) openStore(ctx context.Context) (*store, error) {
	s, err := r.openFile(ctx)
	if err != nil && r.DataDir == "" && ctx.Err() == nil {
		err = fmt.Errorf("%w; this journal is temporary: set TMPDIR to another directory", err)
	}
	return s, err
}

func (r *Options) openFile(ctx context.Context) (*store, error) {
	dir, temporary := r.DataDir, (*sqlite.TemporaryDir)(nil)
	if dir == "" {
		var err error
		if temporary, err = sqlite.NewTemporaryDir(ctx, "capstan-run-"); err != nil {
			return nil, err
		}
		dir = temporary.Path
	}
	s, err := sqlite.Open(ctx, filepath.Join(dir, journals.FileName))
	if err != nil {
		if temporary != nil {
			err = errors.Join(err, temporary.Remove())
		}
		if temporary == nil {
			err = journals.ExplainDir(dir, err)
		}
		return nil, err
	}
	opened := &store{Store: s, dir: dir, temporary: temporary}
	if err := opened.purgeMemories(ctx, earlier(r.Env.Now(), r.Clock()())); err != nil {
		return nil, errors.Join(err, opened.close())
	}
	return opened, nil
}

// purgeBatch is the number of memories that one transaction deletes.
const purgeBatch = 500

// purgeMemories deletes the memories that have expired, because no manager does so for a directory.
func (s *store) purgeMemories(ctx context.Context, now time.Time) error {
	for {
		n, err := s.PurgeMemories(ctx, now, purgeBatch)
		if err != nil {
			return fmt.Errorf("failed to delete expired memories: %w", err)
		}
		if n < purgeBatch {
			return nil
		}
	}
}

// earlier returns the earlier of two times. A memory is deleted only if it has expired both now and at --now: --now may
// be any time, and runs with the same --now in the past still use their memories.
func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func (s *store) close() error {
	err := s.Close()
	if s.temporary != nil {
		err = errors.Join(err, s.temporary.Remove())
	}
	if err != nil {
		return exit.WithCode(exit.Failed, fmt.Errorf("failed to close the journal: %w", err))
	}
	return nil
}

// earlierRuns describes the earlier runs of a Turn. It is the zero value if there were none.
type earlierRuns struct {
	// first and last are the first and the last entry of the journal. Entries about the undo of the Turn's calls, which
	// follow its end, do not count.
	first, last journal.Entry
}

// earlierRuns reads the first and the last entry of a Turn's journal.
func (s *store) earlierRuns(ctx context.Context, uid string) (earlierRuns, error) {
	var p earlierRuns
	for e, err := range s.Read(ctx, uid, 0) {
		if err != nil {
			return earlierRuns{}, fmt.Errorf("failed to read the journal: %w", err)
		}
		if e.Kind == journal.UndoBegun || e.Kind == journal.UndoEnded {
			continue
		}
		if p.last = e; e.Seq == 1 {
			p.first = e
		}
	}
	return p, nil
}

// binding is the assignment of a Turn to one run.
type binding struct {
	turnstatus.Binding
	clock func() time.Time
	// ended is when the Turn ended in an earlier run. It is zero if the Turn had not ended.
	ended time.Time
	// since is when the first run of the Turn began. It is zero if this run is the first.
	since time.Time
}

// end returns when the Turn ended: in an earlier run, or else now.
func (b binding) end() time.Time {
	if b.ended.IsZero() {
		return b.clock()
	}
	return b.ended
}

// bind binds a Turn to this run. An unfinished Turn gets a new epoch and a new deadline, as after a suspension. A
// finished Turn keeps its epoch and its times.
func (r *Options) bind(t *v1alpha1.Turn, p earlierRuns) binding {
	b := boundAfter(p, r.Clock())
	if !b.ended.IsZero() {
		r.Env.Logf("note: the Turn ended at %s and does not run again: to run it again, change it or delete %s",
			b.ended.Format(time.RFC3339), filepath.Join(r.DataDir, journals.FileName))
	}
	turnstatus.Bind(t, b.Binding, b.end())
	return b
}

// boundAfter returns the binding that follows the earlier runs of a Turn.
func boundAfter(p earlierRuns, clock func() time.Time) binding {
	b := binding{Binding: turnstatus.Binding{Executor: executorName, Epoch: p.last.Epoch + 1}, clock: clock, since: p.started().Begun}
	if p.last.Kind == journal.Finalized {
		b.Epoch, b.Start, b.ended = p.last.Epoch, p.first.Time, p.last.Time
	}
	return b
}
