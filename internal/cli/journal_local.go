package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/capstan-dev/capstan/internal/readapi"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/store/sqlite"
	"github.com/capstan-dev/capstan/internal/transcript"
)

const (
	// pageOfUIDs is how many journals are listed at once.
	pageOfUIDs = 256
	// localPoll is the time between two looks at a journal that is followed.
	localPoll = 500 * time.Millisecond
)

// local is the journal of a Turn of capstan run.
type local struct {
	store *sqlite.Reader
	uid   string
}

// localTurn is a Turn of which a folder has the journal.
type localTurn struct {
	uid, namespace, name string
	began                time.Time
}

func (t localTurn) title() string { return t.namespace + "/" + t.name }

// openFolder opens the journals of a folder to read them, also while a run writes them. They must be there: reading makes none.
func openFolder(ctx context.Context, dir string) (*sqlite.Reader, error) {
	path := filepath.Join(dir, journalFile)
	if _, err := os.Stat(path); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			err = fmt.Errorf("there is no %s: capstan run --data-dir %s makes it", path, dir)
		}
		return nil, fail(ExitFailed, fmt.Errorf("--data-dir: %w", err))
	}
	s, err := sqlite.OpenReader(ctx, path)
	if err != nil {
		return nil, fail(ExitFailed, err)
	}
	return s, nil
}

// openLocal finds the journal of a Turn in a folder: that of a UID, else the newest of the name.
func openLocal(ctx context.Context, env Environment, dir, namespace, name, uid string) (journalReader, error) {
	s, err := openFolder(ctx, dir)
	if err != nil {
		return nil, err
	}
	namespace = cmp.Or(namespace, "default")
	found, err := choose(ctx, env, s, dir, namespace, name, uid)
	if err != nil {
		return nil, fail(ExitFailed, errors.Join(err, s.Close()))
	}
	return &local{store: s, uid: found.uid}, nil
}

func choose(ctx context.Context, env Environment, s *sqlite.Reader, dir, namespace, name, uid string) (localTurn, error) {
	all, err := listLocal(ctx, s)
	if err != nil {
		return localTurn{}, err
	}
	title := namespace + "/" + name
	var found []localTurn
	for _, t := range all {
		if t.title() == title {
			found = append(found, t)
		}
	}
	if len(found) == 0 {
		return localTurn{}, fmt.Errorf("%s has no journal of Turn %s: it has those of %s", dir, title, titles(all))
	}
	if uid != "" {
		i := slices.IndexFunc(found, func(t localTurn) bool { return t.uid == uid })
		if i < 0 {
			return localTurn{}, fmt.Errorf("--uid: %s has no Turn %s with the UID %q: it has %s", dir, title, uid, uids(found))
		}
		return found[i], nil
	}
	if n := len(found); n > 1 {
		env.tell("note: %s has had %d Turns %s; this is the newest, and --uid picks another: %s", dir, n, title, uids(found[1:]))
	}
	return found[0], nil
}

// listLocal lists the Turns of which there are journals, newest first.
func listLocal(ctx context.Context, s *sqlite.Reader) ([]localTurn, error) {
	var all []localTurn
	for after := ""; ; {
		page, err := s.UIDs(ctx, after, pageOfUIDs)
		if err != nil {
			return nil, fmt.Errorf("failed to list the journals: %w", err)
		}
		if len(page) == 0 {
			break
		}
		for _, uid := range page {
			t, ok, err := firstOf(ctx, s, uid)
			if err != nil {
				return nil, err
			}
			if ok {
				all = append(all, t)
			}
		}
		after = page[len(page)-1]
	}
	slices.SortFunc(all, func(a, b localTurn) int { return cmp.Or(b.began.Compare(a.began), cmp.Compare(a.uid, b.uid)) })
	return all, nil
}

// firstOf says whose journal it is; ok is false for that of a Session.
func firstOf(ctx context.Context, s *sqlite.Reader, uid string) (t localTurn, ok bool, err error) {
	for e, err := range s.Read(ctx, uid, 0) {
		if err != nil {
			return t, false, fmt.Errorf("failed to read the journal of %q: %w", uid, err)
		}
		if e.Kind == journal.PreparationInput && journal.Fill(ctx, s, uid, &e) != nil { // it may be large, and kept as an artifact
			return t, false, ctx.Err() // one that is damaged must not hide the others
		}
		t = localTurn{uid: uid, began: e.Time}
		t.namespace, t.name, ok = transcript.Title(e)
		break
	}
	return t, ok, nil
}

// titles names Turns, each once.
func titles(all []localTurn) string {
	var names []string
	for _, t := range all {
		if !slices.Contains(names, t.title()) {
			names = append(names, t.title())
		}
	}
	slices.Sort(names)
	more := ""
	if n := len(names) - mostListed; n > 0 {
		names, more = names[:mostListed], fmt.Sprintf(" and %d more", n)
	}
	return cmp.Or(strings.Join(names, ", ")+more, "none")
}

// uids lists Turns of one name by what tells them apart.
func uids(all []localTurn) string {
	more := ""
	if n := len(all) - mostListed; n > 0 {
		all, more = all[:mostListed], fmt.Sprintf(" and %d more", n)
	}
	parts := make([]string, 0, len(all))
	for _, t := range all {
		parts = append(parts, fmt.Sprintf("%s (%s)", t.uid, t.began.Format(time.RFC3339)))
	}
	return strings.Join(parts, ", ") + more
}

// localTurns are the names of the Turns of a folder, for completion.
func localTurns(ctx context.Context, dir, namespace string) (found []string, err error) {
	s, err := openFolder(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	all, err := listLocal(ctx, s)
	if err != nil {
		return nil, err
	}
	for _, t := range all {
		name := t.name
		if t.namespace != cmp.Or(namespace, "default") {
			name = t.title()
		}
		if !slices.Contains(found, name) {
			found = append(found, name)
		}
	}
	return found, nil
}

func (l *local) close() error { return l.store.Close() }

// entries follows a journal by looking at it again until its last entry is there: another process may write it.
func (l *local) entries(ctx context.Context, q readapi.Query) iter.Seq2[journal.Entry, error] {
	return func(yield func(journal.Entry, error) bool) {
		poll := time.NewTicker(localPoll)
		defer poll.Stop()
		redactor := transcript.NewRedactor()
		for after := q.After; ; {
			for e, err := range l.store.Read(ctx, l.uid, after) {
				if err == nil {
					err = journal.Fill(ctx, l.store, l.uid, &e)
				}
				if err == nil {
					e, err = turn.Expand(ctx, l.store, e)
				}
				if err == nil && q.Redact {
					e, err = redactor.Redact(e)
				}
				if !yield(e, err) || err != nil || (q.Follow && e.Kind == journal.Finalized) {
					return
				}
				after = e.Seq
			}
			if !q.Follow {
				return
			}
			select {
			case <-poll.C:
			case <-ctx.Done():
				yield(journal.Entry{}, ctx.Err())
				return
			}
		}
	}
}

func (l *local) artifact(ctx context.Context, sha256 string) (io.ReadCloser, error) {
	a, err := l.store.Artifact(ctx, l.uid, sha256)
	if err != nil {
		return nil, err
	}
	content, err := a.Content()
	return io.NopCloser(bytes.NewReader(content)), err
}
