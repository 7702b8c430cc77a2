package journals

import (
	"context"
	"errors"
	"fmt"

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
	return reader.Plan(uid), nil
}

// maxTitle is the number of characters shown of a name.
const maxTitle = 256
