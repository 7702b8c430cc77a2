package turn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/capstan-dev/capstan/internal/fairgate"
	"github.com/capstan-dev/capstan/internal/runtime/invalid"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/judge"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/outputpolicy"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/runtime/turncontext"
	"github.com/capstan-dev/capstan/internal/runtime/zone"
)

// prepare freezes the messages for a candidate. A resumed run reads the messages that an earlier run has frozen.
func (r *run) prepare(ctx context.Context, c loop.Candidate) (*prepare.Prompt, error) {
	if err := r.memory.hold(0); err != nil {
		return nil, err
	}
	if p := r.replayed.prompt; p != nil && p.Provider == c.ProviderName && p.Model == c.Model {
		err := r.complete(ctx)
		r.dropCopies(c)
		return r.replayed.prompt, err
	}
	if err := r.ensureInput(ctx); err != nil {
		return nil, err
	}
	in := *r.input
	in.Provider, in.Model = c.ProviderName, c.Model
	done := fairgate.AcquireProcessor(ctx, preparationWork(&in))
	p, err := prepare.Prepare(in)
	done()
	if err != nil {
		return nil, endsTurn(err)
	}
	records := append(slices.Clip(r.pending),
		journal.Record{Kind: journal.PromptRendered, Payload: rendered(p)},
		journal.Record{Kind: journal.Prepared, Payload: recordOf(p, r.reference()), Artifacts: r.contents})
	if err := r.record(records...); err != nil {
		return nil, err
	}
	r.pending, r.contents = nil, nil
	err = r.complete(ctx)
	r.dropCopies(c)
	return r.replayed.prompt,
		errors.Join(err, r.memory.countPrompt()) // as read back from the journal, so that a resumed run sends the same messages
}

// preparationWork returns the work of making the messages, as the number of bytes whose decoding takes about as long.
// Prepare compiles the expressions of output policies, and each may take a millisecond.
func preparationWork(in *prepare.Input) int {
	if slices.ContainsFunc(in.Profile.OutputPolicies, func(p outputpolicy.Policy) bool { return p.Expression != "" }) {
		return fairgate.Large
	}
	return in.Size()
}

// dropCopies drops the run's own copies of data that it has read back from the journal. Otherwise both copies would
// stay in memory while the models and tools of the Turn work. If no other model follows c in the chain, no more
// messages are made, and the input is dropped except for the part that is still needed. If the chain has c several
// times, its first place counts.
func (r *run) dropCopies(c loop.Candidate) {
	if f := r.replayed.input; f != nil {
		r.input = nil
		isOther := func(o loop.Candidate) bool { return o.ProviderName != c.ProviderName || o.Model != c.Model }
		first := slices.IndexFunc(r.in.Chain, func(o loop.Candidate) bool { return !isOther(o) })
		if !slices.ContainsFunc(r.in.Chain[max(first, 0):], isOther) {
			r.replayed.input = f.withoutInput()
			r.memory.dropInput(outputpolicy.Size(r.replayed.input.policies))
		}
	}
	if r.replayed.exposure != nil {
		r.exposure = nil
	}
}

// ensureInput determines the input for the messages, once. The messages for a fallback are made from the same input,
// even if the profile has changed since. The next write to the journal includes the records of this input.
func (r *run) ensureInput(ctx context.Context) error {
	if r.input != nil {
		return nil
	}
	if f := r.replayed.input; f != nil {
		in, err := f.thaw()
		if err == nil && f.History != nil {
			err = r.restoreHistory(ctx, in, *f.History)
		}
		if err != nil {
			return err
		}
		r.input = in
		return nil
	}
	var in prepare.Input
	var err error
	if r.readInput(func() { in, err = r.in.Preparation(ctx) }); err != nil {
		return errors.Join(context.Cause(ctx), endsTurn(err))
	}
	r.memory.planned = int64(in.Size())
	if err := r.memory.hold(0); err != nil { // before the run waits for anything
		return errors.Join(context.Cause(ctx), err)
	}
	r.embeddedBefore = r.replayed.loop.EmbeddedBefore()
	learned, err := r.recall(ctx, in.Turn.Message)
	if err != nil {
		return errors.Join(context.Cause(ctx), err)
	}
	in.Turn.Memories = append(slices.Clip(in.Turn.Memories), learned...)
	r.memory.planned = int64(in.Size())
	number, err := r.loadHistory(ctx, &in)
	if err != nil {
		return errors.Join(context.Cause(ctx), err)
	}
	if err := r.memory.hold(0); err != nil {
		return err
	}
	if r.readInput(func() { in.Turn.Attachments, err = r.attach(ctx) }); err != nil {
		return errors.Join(context.Cause(ctx), err)
	}
	if err := r.expose(ctx, in.Turn.Message); err != nil {
		return errors.Join(context.Cause(ctx), err)
	}
	in.Tools = append(in.Tools, tool.DescribeForPrompt(slices.Concat(r.in.Tools, r.exposed().Tools))...)
	if !r.in.PrepareOnly {
		if in.Turn.Facts, err = r.facts(ctx, in.Turn); err != nil {
			return err
		}
		r.pending = append(r.pending, journal.Record{Kind: journal.PreparationInput, Payload: r.freeze(in, number)})
	}
	r.input, r.number = &in, number
	return nil
}

// frozen is the payload of the entry for the input of the messages.
type frozen struct {
	Input *prepare.Input `json:"input"`
	// Zone is the name of the time zone of Input.Now, which JSON does not keep.
	Zone string `json:"zone"`
	// Number is the number of the Turn in its Session, from 1. It is 1 for a Turn without a Session.
	Number int64 `json:"number,omitempty"`
	// History refers to the history of the Session, which Input omits. It is nil for a Turn without a Session.
	History *history `json:"history,omitempty"`
	// Judges are the judges that evaluate the answer. They come from the profile of the prompt.
	Judges []judge.Judge `json:"judges,omitempty"`
	// Settings are for replays only. They are nil in journals of older versions.
	Settings *Settings `json:"settings,omitempty"`
	// info is the part of Input that is still needed after Input was dropped. It is nil while Input is set.
	info *sessionInfo
	// policies are the output policies if Input was dropped.
	policies []outputpolicy.Policy
}

// outputPolicies returns the output policies that an answer of the Turn must follow.
func (f *frozen) outputPolicies() []outputpolicy.Policy {
	if f.info != nil {
		return f.policies
	}
	return f.Input.Profile.OutputPolicies
}

// sessionInfo is the information about the Session that a Turn receives.
type sessionInfo struct {
	missingTurns int64
	session      *turncontext.Session
}

// sessionInfo returns the information about the Session that the Turn has received.
func (f *frozen) sessionInfo() sessionInfo {
	if f.info != nil {
		return *f.info
	}
	return sessionInfo{f.Input.Turn.MissingTurns, f.Input.Turn.Session}
}

// UnmarshalJSON reads the JSON of a frozen input. It returns an error if there is no input, so Input is never nil
// before withoutInput drops it.
func (f *frozen) UnmarshalJSON(data []byte) error {
	type plain frozen
	if err := json.Unmarshal(data, (*plain)(f)); err != nil {
		return err
	}
	if f.Input == nil {
		return errors.New("the entry has no input")
	}
	return nil
}

// freeze returns the payload for an input, without the history that the journal of the Session keeps.
func (r *run) freeze(in prepare.Input, number int64) frozen {
	if r.history != nil {
		in.Turn.History, in.Turn.Summary = nil, ""
	}
	return frozen{
		Input: &in, Zone: in.Now.Location().String(), Number: number, History: r.history, Judges: r.judges(),
		Settings: &Settings{
			Output: r.in.Output, HideCitations: !r.in.ShowCitations, AppendCitations: r.in.AppendCitations, Web: !r.in.Policy.NoWeb,
		},
	}
}

// withoutInput returns a copy without Input, with the parts that are still needed after all messages were made.
func (f *frozen) withoutInput() *frozen {
	return &frozen{
		Zone: f.Zone, Number: f.Number, History: f.History, Judges: f.Judges, info: new(f.sessionInfo()), policies: f.outputPolicies(),
	}
}

// thaw returns the input, with its time in the recorded time zone.
func (f frozen) thaw() (*prepare.Input, error) {
	loc, err := zone.Load(f.Zone)
	if err != nil {
		return nil, fmt.Errorf("failed to load the time zone %q of the journal: %w", f.Zone, err)
	}
	in := *f.Input
	in.Now = in.Now.In(loc)
	return &in, nil
}

// preparationError ends a Turn whose messages cannot be made.
type preparationError struct{ error }

// endsTurn converts an *invalid.Error into an error that ends the Turn, because only another input can resolve it. It
// returns any other error unchanged.
func endsTurn(err error) error {
	if invalidInput, ok := errors.AsType[*invalid.Error](err); ok {
		return &preparationError{invalidInput}
	}
	return err
}
