package journals

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/capstan-dev/capstan/internal/cli/exit"
	"github.com/capstan-dev/capstan/internal/cli/output"
	"github.com/capstan-dev/capstan/internal/cli/terminal"
	"github.com/capstan-dev/capstan/internal/readapi"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/store/sqlite"
	"github.com/capstan-dev/capstan/internal/transcript"
)

const (
	// pageOfUIDs is the number of journals that one request lists.
	pageOfUIDs = 256
	// localPoll is the interval at which a followed journal is read again.
	localPoll = 500 * time.Millisecond
)

// FileName is the name of the journal in --data-dir. The manager's journal has another name, because a manager deletes
// the journals of Turns that its cluster does not have.
const FileName = "capstan-run.db"

// local reads the journal of one Turn from a directory of capstan run.
type local struct {
	store *sqlite.Reader
	uid   string
}

// storedTurn identifies a Turn whose journal is in a directory.
type storedTurn struct {
	uid, namespace, name string
	// sessionUID is the UID of the Session of the Turn. It is empty if the Turn has no Session, and in journals of
	// older versions.
	sessionUID string
	began      time.Time
}

func (t storedTurn) title() string { return t.namespace + "/" + t.name }

// pathIn returns the path of the journals of a directory, or an error if they do not exist.
func pathIn(dir string) (string, error) {
	path := filepath.Join(dir, FileName)
	if _, err := os.Stat(path); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			err = fmt.Errorf("%s does not exist: capstan run --data-dir %s creates it", path, dir)
		}
		return "", exit.WithCode(exit.Failed, ExplainDir(dir, fmt.Errorf("--data-dir: %w", err)))
	}
	return path, nil
}

// ExplainDir adds to an error about the journals of a directory what the user of capstan run can do. The remedies of
// the store itself are for the operator of a manager.
func ExplainDir(dir string, err error) error {
	switch {
	case errors.Is(err, journal.ErrNewer):
		return fmt.Errorf("--data-dir: a newer version of capstan wrote the journals in %s: use that version or a later one, or "+
			"another directory", dir)
	case errors.Is(err, syscall.ENOTDIR):
		return fmt.Errorf("--data-dir: %s is not a directory", dir)
	case errors.Is(err, sqlite.ErrInUse):
		return fmt.Errorf("%w; another capstan uses the same --data-dir: wait for it, or use another directory", err)
	}
	return err
}

// openDir opens the journals of a directory for reading, even while capstan run writes them. If they do not exist, it
// returns an error and creates no file.
func openDir(ctx context.Context, dir string) (*sqlite.Reader, error) {
	path, err := pathIn(dir)
	if err != nil {
		return nil, err
	}
	s, err := sqlite.OpenReader(ctx, path)
	if err != nil {
		return nil, exit.WithCode(exit.Failed, ExplainDir(dir, err))
	}
	return s, nil
}

// openLocal returns a reader of a Turn's journal in a directory. If uid is empty, it selects the newest journal of a
// Turn with this name.
func openLocal(ctx context.Context, env terminal.Environment, dir, namespace, name, uid string) (reader, error) {
	s, err := openDir(ctx, dir)
	if err != nil {
		return nil, err
	}
	namespace = cmp.Or(namespace, "default")
	found, err := choose(ctx, env, s, dir, namespace, name, uid)
	if err != nil {
		return nil, exit.WithCode(exit.Failed, errors.Join(err, s.Close()))
	}
	return &local{store: s, uid: found.uid}, nil
}

// choose returns the Turn with a name and a UID. If uid is empty, it returns the newest Turn with this name, and
// prints a note if there are several.
func choose(ctx context.Context, env terminal.Environment, s *sqlite.Reader, dir, namespace, name, uid string) (storedTurn, error) {
	all, err := listLocal(ctx, s)
	if err != nil {
		return storedTurn{}, err
	}
	title := namespace + "/" + name
	var found []storedTurn
	for _, t := range all {
		if t.title() == title {
			found = append(found, t)
		}
	}
	if len(found) == 0 {
		return storedTurn{}, fmt.Errorf("%s has no journal of Turn %s; it has journals of these Turns: %s", dir, title, titles(all))
	}
	if uid != "" {
		i := slices.IndexFunc(found, func(t storedTurn) bool { return t.uid == uid })
		if i < 0 {
			return storedTurn{}, fmt.Errorf("--uid: %s has no Turn %s with the UID %q: the Turns with this name have the UIDs %s",
				dir, title, uid, uids(found))
		}
		return found[i], nil
	}
	if n := len(found); n > 1 {
		env.Logf("note: %s has journals of %d Turns with the name %s. This is the newest one. To select another, set --uid: %s", dir, n,
			title, uids(found[1:]))
	}
	return found[0], nil
}

// journalDir is a store with the journals of one directory.
type journalDir interface {
	journal.Journal
	UIDs(ctx context.Context, after string, limit int) ([]string, error)
	First(ctx context.Context, uid string) (journal.Entry, error)
}

// Newest returns the UID of the newest Turn with a name that has a journal, or "" if there is no such Turn. It
// ignores the Turn with the UID except.
func Newest(ctx context.Context, s journalDir, namespace, name, except string) (uid string, err error) {
	all, err := Others(ctx, s, namespace, name, except)
	if err != nil || len(all) == 0 {
		return "", err
	}
	return all[0], nil
}

// Others returns the UIDs of all Turns with a name that have a journal, newest first. It ignores the Turn with the
// UID except.
func Others(ctx context.Context, s journalDir, namespace, name, except string) (uids []string, err error) {
	all, err := listLocal(ctx, s)
	if err != nil {
		return nil, err
	}
	for _, t := range all {
		if t.namespace == namespace && t.name == name && t.uid != except {
			uids = append(uids, t.uid)
		}
	}
	return uids, nil
}

// OpenTurn returns NAMESPACE/NAME of a Turn of a Session that has a journal and has not ended, or "" if there is none.
// If several Turns have the same name, only the newest counts, because its manifests have replaced those of the others.
// Turns that began at the same time, as with the same --now, all count, because any of them may be the newest.
// OpenTurn ignores Turns with the title except.
func OpenTurn(ctx context.Context, s journalDir, sessionUID, except string) (title string, err error) {
	all, err := listLocal(ctx, s)
	if err != nil {
		return "", err
	}
	newest := map[string]time.Time{}
	for _, t := range all {
		if t.sessionUID != sessionUID || t.title() == except {
			continue
		}
		if began, known := newest[t.title()]; known && t.began.Before(began) {
			continue
		}
		newest[t.title()] = t.began
		ended, err := hasEnded(ctx, s, t.uid)
		if err != nil {
			return "", err
		}
		if !ended {
			return t.title(), nil
		}
	}
	return "", nil
}

// hasEnded reports whether a journal has the end of its Turn. Entries about the undo of the Turn's calls may follow the
// end.
func hasEnded(ctx context.Context, s journal.Journal, uid string) (bool, error) {
	last, err := s.Last(ctx, uid)
	if err != nil {
		return false, fmt.Errorf("failed to read the journal of %q: %w", uid, err)
	}
	for _, after := range []int64{last - 1, 0} { // the end is usually the last entry, and a journal may be long
		for e, err := range s.Read(ctx, uid, after) {
			if err != nil {
				return false, fmt.Errorf("failed to read the journal of %q: %w", uid, err)
			}
			if e.Kind == journal.Finalized {
				return true, nil
			}
		}
	}
	return false, nil
}

// listLocal returns the Turns that have a journal, newest first.
func listLocal(ctx context.Context, s journalDir) ([]storedTurn, error) {
	var all []storedTurn
	for after := ""; ; {
		page, err := s.UIDs(ctx, after, pageOfUIDs)
		if err != nil {
			return nil, fmt.Errorf("failed to list the journals: %w", err)
		}
		if len(page) == 0 {
			break
		}
		for _, uid := range page {
			t, ok, err := turnOf(ctx, s, uid)
			if err != nil {
				return nil, err
			}
			if ok {
				all = append(all, t)
			}
		}
		after = page[len(page)-1]
	}
	slices.SortFunc(all, func(a, b storedTurn) int { return cmp.Or(b.began.Compare(a.began), cmp.Compare(a.uid, b.uid)) })
	return all, nil
}

// turnOf returns the Turn to which a journal belongs. ok is false for the journal of a Session, and for a damaged
// journal.
func turnOf(ctx context.Context, s journalDir, uid string) (t storedTurn, ok bool, err error) {
	e, err := s.First(ctx, uid)
	switch {
	case err != nil:
		return t, false, fmt.Errorf("failed to read the journal of %q: %w", uid, err)
	case e.Seq == 0:
		return t, false, nil
	case e.Kind == journal.PreparationInput && journal.LoadPayload(ctx, s, uid, &e) != nil: // a large payload is kept as an artifact
		return t, false, ctx.Err() // a damaged journal must not hide the others
	}
	t = storedTurn{uid: uid, began: e.Time}
	t.namespace, t.name, ok = transcript.Title(e)
	t.sessionUID = sessionOf(e)
	return t, ok, nil
}

// sessionOf returns the UID of the Session that the first entry of a journal names, or "" if it names none.
func sessionOf(first journal.Entry) string {
	var started struct {
		Session struct {
			UID string `json:"uid"`
		} `json:"session"`
	}
	if first.Kind != journal.RunStarted || json.Unmarshal(first.Payload, &started) != nil {
		return ""
	}
	return started.Session.UID
}

// titles returns the names of Turns as a list for messages, without duplicates.
func titles(all []storedTurn) string {
	var names []string
	for _, t := range all {
		if !slices.Contains(names, t.title()) {
			names = append(names, t.title())
		}
	}
	slices.Sort(names)
	more := ""
	if n := len(names) - output.MostListed; n > 0 {
		names, more = names[:output.MostListed], fmt.Sprintf(" and %d more", n)
	}
	return cmp.Or(strings.Join(names, ", ")+more, "none")
}

// uids returns the UIDs and the start times of Turns as a list for messages.
func uids(all []storedTurn) string {
	more := ""
	if n := len(all) - output.MostListed; n > 0 {
		all, more = all[:output.MostListed], fmt.Sprintf(" and %d more", n)
	}
	parts := make([]string, 0, len(all))
	for _, t := range all {
		parts = append(parts, fmt.Sprintf("%s (%s)", t.uid, t.began.Format(time.RFC3339)))
	}
	return strings.Join(parts, ", ") + more
}

// turnNames returns the names of the Turns of a directory, for shell completion.
func turnNames(ctx context.Context, dir, namespace string) (found []string, err error) {
	s, err := openDir(ctx, dir)
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

// Close closes the store.
func (l *local) Close() error { return l.store.Close() }

// Entries returns the entries of the journal. With Follow it polls the journal until the last entry appears,
// because another process may be writing it.
func (l *local) Entries(ctx context.Context, q readapi.Query) iter.Seq2[journal.Entry, error] {
	return func(yield func(journal.Entry, error) bool) {
		poll := time.NewTicker(localPoll)
		defer poll.Stop()
		redactor := transcript.NewRedactor()
		for after := q.After; ; {
			for e, err := range l.store.Read(ctx, l.uid, after) {
				if err == nil {
					err = journal.LoadPayload(ctx, l.store, l.uid, &e)
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
			if l.store.IsCopy() {
				yield(journal.Entry{}, errors.New("an older version of capstan wrote the journals, so a copy was read, which gets no new "+
					"entries: follow them with that version, or leave out -f"))
				return
			}
			if l.store.IsImmutable() {
				yield(journal.Entry{}, errors.New("the directory of the journals cannot be written, so new entries cannot be followed: "+
					"leave out -f"))
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

// Artifact returns the content of an artifact.
func (l *local) Artifact(ctx context.Context, sha256 string) (io.ReadCloser, error) {
	a, err := l.store.Artifact(ctx, l.uid, sha256)
	if err != nil {
		return nil, err
	}
	content, err := a.Content()
	return io.NopCloser(bytes.NewReader(content)), err
}
