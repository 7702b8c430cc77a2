package turn

import (
	"context"
	"errors"
	"fmt"

	"github.com/capstan-dev/capstan/internal/runtime/invalid"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/zone"
)

// prepare freezes the messages for a candidate, once: a resumed run reads back what an earlier one froze.
func (r *run) prepare(ctx context.Context, c loop.Candidate) (*prepare.Prepared, error) {
	if p := r.past.prepared; p != nil && p.Provider == c.ProviderName && p.Model == c.Model {
		return p, nil
	}
	records, err := r.gather(ctx)
	if err != nil {
		return nil, err
	}
	in := *r.input
	in.Provider, in.Model = c.ProviderName, c.Model
	p, err := prepare.Prepare(in)
	if err != nil {
		return nil, endsTurn(err)
	}
	err = r.record(append(records,
		journal.Record{Kind: journal.PromptRendered, Payload: rendered(p)},
		journal.Record{Kind: journal.Prepared, Payload: p})...)
	if err != nil {
		return nil, err
	}
	return r.past.prepared, nil // as it comes back from the journal: a resumed run sends the same
}

// gather finds out what the messages are made of, once: what a fallback makes anew is made of the same, whatever has
// become of the profile since. It returns what the journal is to keep for that.
func (r *run) gather(ctx context.Context) ([]journal.Record, error) {
	if r.input != nil {
		return nil, nil
	}
	if f := r.past.input; f != nil {
		in, err := f.thaw()
		r.input = in
		return nil, err
	}
	in, err := r.in.Preparation(ctx)
	if err != nil {
		return nil, errors.Join(context.Cause(ctx), endsTurn(err))
	}
	for _, t := range r.in.Tools {
		in.Tools = append(in.Tools, t.Tool)
	}
	if err := r.recall(ctx, &in); err != nil {
		return nil, errors.Join(context.Cause(ctx), err)
	}
	r.input = &in
	if r.in.PrepareOnly {
		return nil, nil
	}
	return []journal.Record{{Kind: journal.PreparationInput, Payload: frozen{Input: in, Zone: in.Now.Location().String()}}}, nil
}

// frozen is what messages are made of, as the journal keeps it.
type frozen struct {
	Input prepare.Input `json:"input"`
	// Zone is the name of the time zone of Input.Now, which JSON does not keep.
	Zone string `json:"zone"`
}

func (f frozen) thaw() (*prepare.Input, error) {
	loc, err := zone.Load(f.Zone)
	if err != nil {
		return nil, fmt.Errorf("failed to load the time zone %q of the journal: %w", f.Zone, err)
	}
	in := f.Input
	in.Now = in.Now.In(loc)
	return &in, nil
}

// preparationError is the end of a Turn whose messages cannot be made.
type preparationError struct{ error }

// endsTurn marks an error that names a field of the input: nothing but another input cures it.
func endsTurn(err error) error {
	if wrong, ok := errors.AsType[*invalid.Error](err); ok {
		return &preparationError{wrong}
	}
	return err
}
