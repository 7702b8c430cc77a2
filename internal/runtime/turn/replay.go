package turn

import (
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
)

// past is what the journal of a Turn says has happened.
type past struct {
	// seen is true if it says anything.
	seen bool
	// input is what the messages are made of; nil for a Turn that is only prepared.
	input *frozen
	// prepared is the newest preparation.
	prepared *prepare.Prepared
	// requests are all that were sent, or were about to be.
	requests []loop.Request
	// attempts are the requests that failed.
	attempts []loop.Attempt
	// step is the reply that was bought.
	step *loop.Step
	// result is the end.
	result *Result
}

func replay(log *journal.Log) (past, error) {
	var p past
	var err error
	if p.input, err = last[frozen](log, journal.PreparationInput); err != nil {
		return p, err
	}
	if p.prepared, err = last[prepare.Prepared](log, journal.Prepared); err != nil {
		return p, err
	}
	if p.requests, err = journal.All[loop.Request](log, journal.ModelRequested); err != nil {
		return p, err
	}
	if p.attempts, err = journal.All[loop.Attempt](log, journal.ModelFailed); err != nil {
		return p, err
	}
	if p.step, err = last[loop.Step](log, journal.ModelReplied); err != nil {
		return p, err
	}
	if p.result, err = last[Result](log, journal.Finalized); err != nil {
		return p, err
	}
	p.seen = p.prepared != nil || len(p.requests) > 0 || p.step != nil || p.result != nil
	return p, nil
}

func last[T any](log *journal.Log, kind journal.Kind) (*T, error) {
	v, ok, err := journal.Last[T](log, kind)
	if err != nil || !ok {
		return nil, err
	}
	return &v, nil
}

func (p past) counts() Counts {
	c := Counts{ModelRequests: len(p.requests)}
	for _, r := range p.requests {
		if r.Attempt > 1 {
			c.ModelRetries++
		}
	}
	for _, a := range p.attempts {
		if a.Unsent {
			c.ModelRequests--
		}
	}
	c.ModelRetries = min(c.ModelRetries, max(0, c.ModelRequests-1))
	if p.step != nil {
		c.Steps = 1
	}
	return c
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
