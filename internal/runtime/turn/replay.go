package turn

import (
	"encoding/json"
	"errors"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/runtime/turncontext"
)

// past is what the journal of a Turn says has happened: a fold over its entries, those of earlier runs and then those of
// this one.
type past struct {
	// runs is how many runs have done something, and parks how many of them ended because the Turn waits.
	runs, parks int
	// input is what the messages are made of; nil for a Turn that is only prepared.
	input *frozen
	// prepared is the newest preparation, and leftOut are the messages that its entry refers to; nil where it refers to none.
	// Once a run has put them into prepared, leftOut counts none.
	prepared *prepare.Prepared
	leftOut  *leftOut
	// exposure is what the Turn has of tools.
	exposure *tool.Exposure
	// loop is what was asked, answered and called; tally counts and lists it, and artifacts are outputs that it keeps whole.
	loop      loop.State
	tally     tally
	artifacts artifacts
	// result is the end.
	result *Result
	// shares is what the Turn shares with others.
	shares shares
}

// apply takes an entry in.
func (p *past) apply(e journal.Entry) error {
	if e.Kind != journal.RunStarted {
		p.runs = max(1, p.runs) // an older version did not say that a run had begun
	}
	switch e.Kind { //nolint:exhaustive // because the others are the loop's
	case journal.RunStarted:
		p.runs++
		return nil
	case journal.RunParked:
		p.parks++
		return p.loop.Apply(e)
	case journal.ToolsExposed:
		if err := read(e, &p.exposure); err != nil {
			return err
		}
		p.loop.Distrusted = p.exposure.Distrust()
		p.shares.exposed(p.exposure)
		return nil
	case journal.PreparationInput:
		return read(e, &p.input)
	case journal.Prepared:
		var r preparedRecord
		if err := json.Unmarshal(e.Payload, &r); err != nil {
			return err
		}
		if r.Prepared == nil || len(r.Messages) == 0 {
			return errors.New("the prompt has no messages")
		}
		p.prepared, p.leftOut = r.Prepared, r.History
		p.prepared.Assembly = turncontext.Assembly{} // which is for readers of the journal
		p.shares.prepared(&p.prepared.Tools, p.prepared.Messages)
		return nil
	case journal.Finalized:
		return read(e, &p.result)
	}
	if err := p.loop.Apply(e); err != nil {
		return err
	}
	p.tally.count(e, &p.loop)
	if n := len(p.loop.Finishes); e.Kind == journal.ToolFinished {
		p.artifacts.add(p.loop.Finishes[n-1])
	}
	return nil
}

// resumes is how often the Turn has been taken up by now where a run had left it, not where it waited.
func (p *past) resumes() int { return max(0, p.runs-p.parks) }

func read[T any](e journal.Entry, into **T) error {
	v := new(T)
	if err := json.Unmarshal(e.Payload, v); err != nil {
		return err
	}
	*into = v
	return nil
}

// promptRendered is the journal's entry for a prompt that was made.
type promptRendered struct {
	prepare.Revision
	RenderHash  string   `json:"renderHash"`
	PromptHash  string   `json:"promptHash"`
	ContextHash string   `json:"contextHash"`
	Variables   []string `json:"variables,omitempty"`
}

func rendered(p *prepare.Prepared) promptRendered {
	return promptRendered{
		Revision: p.Report.Profile, RenderHash: p.Report.RenderHash, PromptHash: p.Report.PromptHash,
		ContextHash: p.Report.ContextHash, Variables: p.Report.Variables,
	}
}
