package turn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/capstan-dev/capstan/internal/runtime/invalid"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/runtime/turncontext"
	"github.com/capstan-dev/capstan/internal/runtime/zone"
)

// prepare freezes the messages for a candidate, once: a resumed run reads back what an earlier one froze.
func (r *run) prepare(ctx context.Context, c loop.Candidate) (*prepare.Prepared, error) {
	if err := r.hold(r.bytes); err != nil {
		return nil, err
	}
	if p := r.past.prepared; p != nil && p.Provider == c.ProviderName && p.Model == c.Model {
		err := r.complete(ctx)
		r.unload(c)
		return r.past.prepared, err
	}
	if err := r.gather(ctx); err != nil {
		return nil, err
	}
	in := *r.input
	in.Provider, in.Model = c.ProviderName, c.Model
	p, err := prepare.Prepare(in)
	if err != nil {
		return nil, endsTurn(err)
	}
	records := append(slices.Clip(r.pending),
		journal.Record{Kind: journal.PromptRendered, Payload: rendered(p)},
		journal.Record{Kind: journal.Prepared, Payload: recordOf(p, r.reference())})
	if err := r.record(records...); err != nil {
		return nil, err
	}
	r.pending = nil
	err = r.complete(ctx)
	r.unload(c)
	return r.past.prepared, err // as it comes back from the journal: a resumed run sends the same
}

// unload lets go of what the journal has, and the run as it came back from there: a second copy would be held for as long as the
// models and the tools of the Turn take. What messages are made of goes as well where c is the last candidate of the chain, for which
// the messages are made now; what is needed of it after that stays.
func (r *run) unload(c loop.Candidate) {
	if f := r.past.input; f != nil {
		r.input = nil
		if last := r.in.Chain[len(r.in.Chain)-1]; c.ProviderName == last.ProviderName && c.Model == last.Model {
			r.past.input = f.made()
		}
	}
	if r.past.exposure != nil {
		r.exposure = nil
	}
}

// gather finds out what the messages are made of, once: what a fallback makes anew is made of the same, whatever has
// become of the profile since. What the journal is to keep of that is pending, and goes with what is written next.
func (r *run) gather(ctx context.Context) error {
	if r.input != nil {
		return nil
	}
	if f := r.past.input; f != nil {
		in, err := f.thaw()
		if err == nil && f.History != nil {
			err = r.remind(ctx, in, *f.History)
		}
		if err != nil {
			return err
		}
		r.input = in
		return nil
	}
	in, err := r.in.Preparation(ctx)
	if err != nil {
		return errors.Join(context.Cause(ctx), endsTurn(err))
	}
	number, err := r.recall(ctx, &in)
	if err != nil {
		return errors.Join(context.Cause(ctx), err)
	}
	if err := r.expose(ctx, in.Turn.Message); err != nil {
		return errors.Join(context.Cause(ctx), err)
	}
	in.Tools = append(in.Tools, tool.Prompted(slices.Concat(r.in.Tools, r.exposed().Tools))...)
	if !r.in.PrepareOnly {
		if in.Turn.Facts, err = r.facts(ctx, in.Turn); err != nil {
			return err
		}
		r.pending = append(r.pending, journal.Record{Kind: journal.PreparationInput, Payload: freeze(in, number, r.history)})
	}
	r.input, r.number = &in, number
	return nil
}

// frozen is what messages are made of, as the journal keeps it.
type frozen struct {
	Input *prepare.Input `json:"input"`
	// Zone is the name of the time zone of Input.Now, which JSON does not keep.
	Zone string `json:"zone"`
	// Number of the Turn in its Session, from 1; 1 for a Turn without one.
	Number int64 `json:"number,omitempty"`
	// History refers to what was said in the Session, which Input does not repeat; nil for a Turn without one.
	History *history `json:"history,omitempty"`
	// told is what is needed of an Input that is nil by now.
	told *told
}

// told is what a Turn is told of its Session.
type told struct {
	missingTurns int64
	session      *turncontext.Session
}

// toldOf returns what the Turn was told of its Session.
func (f *frozen) toldOf() told {
	if f.told != nil {
		return *f.told
	}
	return told{f.Input.Turn.MissingTurns, f.Input.Turn.Session}
}

// UnmarshalJSON reads what freeze has made. It fails without an input, so that Input is never nil before made.
func (f *frozen) UnmarshalJSON(data []byte) error {
	type plain frozen
	if err := json.Unmarshal(data, (*plain)(f)); err != nil {
		return err
	}
	if f.Input == nil {
		return errors.New("there is no input")
	}
	return nil
}

// freeze is what the journal keeps of an input.
func freeze(in prepare.Input, number int64, h *history) frozen {
	if h != nil {
		in.Turn.History, in.Turn.Summary = nil, ""
	}
	return frozen{Input: &in, Zone: in.Now.Location().String(), Number: number, History: h}
}

// made is what is needed of an input once all messages are made of it.
func (f *frozen) made() *frozen {
	return &frozen{Zone: f.Zone, Number: f.Number, History: f.History, told: new(f.toldOf())}
}

func (f frozen) thaw() (*prepare.Input, error) {
	loc, err := zone.Load(f.Zone)
	if err != nil {
		return nil, fmt.Errorf("failed to load the time zone %q of the journal: %w", f.Zone, err)
	}
	in := *f.Input
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
