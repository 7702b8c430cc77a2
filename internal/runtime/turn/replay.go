package turn

import (
	"encoding/json"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// replayed is the state of a Turn according to its journal. It is a fold over the entries of earlier runs, and then
// over those of this run.
type replayed struct {
	// runs is the number of runs that have written an entry. parks is the number of runs that ended because the Turn
	// had to wait.
	runs, parks int
	// input is the input for the messages. It is nil if it is not recorded, as in a Turn that is only prepared.
	input *frozen
	// prompt is the newest prompt. leftOut describes the messages that its entry omits, or is nil if it omits none.
	// Once a run has inserted them into prompt, leftOut.Messages is 0.
	prompt  *prepare.Prompt
	leftOut *leftOut
	// report is the JSON of the prepare.Report about prompt, which takes less memory than the report and is not needed
	// while models and tools work.
	report json.RawMessage
	// exposure has the tools of the Turn.
	exposure *tool.Exposure
	// loop is the state of the loop. tally counts its events and lists its calls. artifacts are the tool outputs that
	// the journal keeps whole, without those that output policies have refused as the answer.
	loop      loop.State
	tally     tally
	artifacts artifacts
	// undo is the plan of a Turn that undoes calls of another Turn. It is nil before the plan is made, and for any
	// other Turn.
	undo *UndoPlan
	// result is the result of the Turn, or nil while the Turn has not ended.
	result *Result
	// redactions has the number of matches of each redaction rule. It is nil if there are none.
	redactions map[string]int64
	// shares has the values that this run shares with other runs.
	shares shares
}

// apply folds an entry into the state.
func (p *replayed) apply(e journal.Entry) error {
	if e.Kind != journal.RunStarted {
		p.runs = max(1, p.runs) // older versions did not record the beginning of a run
	}
	switch e.Kind { //nolint:exhaustive // because the loop handles the other kinds
	case journal.RunStarted:
		var s struct {
			EndOnly bool `json:"endOnly"`
		}
		if err := json.Unmarshal(e.Payload, &s); err != nil {
			return err
		}
		if !s.EndOnly {
			p.runs++
		}
		return p.loop.Apply(e)
	case journal.RunParked:
		p.parks++
		return p.loop.Apply(e)
	case journal.ToolsExposed:
		if err := readPayload(e, &p.exposure); err != nil {
			return err
		}
		p.loop.Distrusted = p.exposure.Distrust()
		p.shares.shareTools(p.exposure)
		return nil
	case journal.PreparationInput:
		return readPayload(e, &p.input)
	case journal.Prepared:
		r, err := readPrepared(e)
		if err != nil {
			return err
		}
		p.prompt, p.leftOut = new(r.Prompt), r.History
		p.shares.sharePrompt(&p.prompt.Tools, p.prompt.Messages)
		p.report, err = json.Marshal(r.Report)
		return err
	case journal.TextRedacted:
		return p.applyRedactions(e)
	case journal.UndoBegun, journal.UndoEnded: // another Turn writes them after the end of this Turn
		return nil
	case journal.Finalized:
		return readPayload(e, &p.result)
	case journal.UndoPlanned:
		var planned undoPlanned
		if err := json.Unmarshal(e.Payload, &planned); err != nil {
			return err
		}
		p.undo, p.exposure = &planned.UndoPlan, &planned.Exposure
		p.shares.shareTools(p.exposure)
	}
	if err := p.loop.Apply(e); err != nil {
		return err
	}
	p.tally.count(e, &p.loop)
	switch e.Kind { //nolint:exhaustive // because no other kind changes the artifacts
	case journal.ToolFinished:
		p.artifacts.add(p.loop.CallResults[len(p.loop.CallResults)-1])
	case journal.OutputRejected:
		if f := p.loop.NewestRefusedResult(); f != nil {
			p.artifacts.remove(f.ArtifactName) // a page of it would be a result that is kept after the end of the Turn
		}
	}
	return nil
}

// preparation returns the report about the newest prompt, or nil if there is no prompt.
func (p *replayed) preparation() *prepare.Report {
	if p.report == nil {
		return nil
	}
	var report prepare.Report
	if err := json.Unmarshal(p.report, &report); err != nil { // cannot happen: apply has written the JSON
		return nil
	}
	return &report
}

// resumes returns the number of runs so far that did not end with a wait.
func (p *replayed) resumes() int { return max(0, p.runs-p.parks) }

func readPayload[T any](e journal.Entry, into **T) error {
	v := new(T)
	if err := json.Unmarshal(e.Payload, v); err != nil {
		return err
	}
	*into = v
	return nil
}

// promptRendered is the payload of the entry with the hashes of a prompt.
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
