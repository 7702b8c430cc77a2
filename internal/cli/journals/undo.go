package journals

import (
	"context"
	"errors"
	"fmt"

	"github.com/capstan-dev/capstan/internal/cli/exit"
	"github.com/capstan-dev/capstan/internal/readapi"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/termsafe"
)

// UndoPlan reads the journal of a Turn, given as NAME or NAMESPACE/NAME, and returns how its calls can be undone.
func (j *Source) UndoPlan(ctx context.Context, name string) (plan *turn.UndoPlan, err error) {
	r, err := j.open(ctx, name)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	reader := turn.NewUndoReader()
	n, err := forEach(r.Entries(ctx, readapi.Query{}), reader.Apply)
	if err != nil {
		return nil, err
	}
	uid := ""
	switch r := r.(type) {
	case *local:
		uid = r.uid
	case *Remote:
		uid = r.UID
	}
	if n == 0 || uid == "" {
		return nil, exit.WithCode(exit.Failed, fmt.Errorf("the journal of Turn %s is empty: there is nothing to undo",
			termsafe.Line(name, maxTitle)))
	}
	return reader.Plan(uid), nil
}

// Unfinished returns the first of the marks whose Turn has a journal in --data-dir and has not ended, or nil.
func (j *Source) Unfinished(ctx context.Context, marks []turn.UndoMark) (found *turn.UndoMark, err error) {
	s, err := openDir(ctx, j.DataDir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	for i := range marks {
		began, ended := false, false
		for e, err := range s.Read(ctx, marks[i].TurnUID, 0) {
			if err != nil {
				return nil, fmt.Errorf("failed to read the journal of the Turn %q: %w", marks[i].Turn, err)
			}
			began, ended = true, ended || e.Kind == journal.Finalized
		}
		if began && !ended {
			return &marks[i], nil
		}
	}
	return nil, nil //nolint:nilnil // because nil means that all of these Turns have ended
}

// maxTitle is the number of characters shown of a name.
const maxTitle = 256
