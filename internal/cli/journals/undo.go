package journals

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/cli/exit"
	"github.com/capstan-dev/capstan/internal/readapi"
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
	if err := reader.FindAbandoned(func(m turn.UndoMark) (bool, error) { return j.hasEnded(ctx, r, &m) }); err != nil {
		return nil, err
	}
	return reader.Plan(uid), nil
}

// hasEnded reports whether the Turn that has written a mark has ended or is gone. In a cluster, it returns false with a
// note if the Turn cannot be read.
func (j *Source) hasEnded(ctx context.Context, r reader, m *turn.UndoMark) (bool, error) {
	var t *v1alpha1.Turn
	err := errors.New("there is no kubeconfig")
	switch r := r.(type) {
	case *local:
		open, err := turn.IsOpen(r.store.Read(ctx, m.TurnUID, 0))
		return !open, err
	case *Remote:
		if r.turn != nil {
			t, err = r.turn(ctx, m.Turn)
		}
	}
	switch {
	case apierrors.IsNotFound(err):
		return true, nil
	case ctx.Err() != nil:
		return false, ctx.Err()
	case err != nil:
		j.Env.Logf("note: it is not known whether the Turn %s, which has begun to undo the call %s, has ended: %s",
			termsafe.Line(m.Turn, maxTitle), termsafe.Line(m.CallID, maxTitle), termsafe.Line(err.Error(), maxTitle))
		return false, nil
	}
	return string(t.UID) != m.TurnUID || t.IsFinished(), nil
}

// Unfinished returns the first of the marks whose Turn has a journal in --data-dir and has not ended, or nil.
func (j *Source) Unfinished(ctx context.Context, marks []turn.UndoMark) (found *turn.UndoMark, err error) {
	s, err := openDir(ctx, j.DataDir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	for i := range marks {
		open, err := turn.IsOpen(s.Read(ctx, marks[i].TurnUID, 0))
		if err != nil {
			return nil, err
		}
		if open {
			return &marks[i], nil
		}
	}
	return nil, nil //nolint:nilnil // because nil means that all of these Turns have ended
}

// maxTitle is the number of characters shown of a name.
const maxTitle = 256
