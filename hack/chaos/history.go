package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
)

// history is what the journal of a Turn says of its runs, and what is wrong with the journal itself. It is the test's own
// reading of the journal: what the engine reads out of it is what is to be checked.
type history struct {
	uid      string
	entries  int
	epoch    int64
	runs     int
	requests []*request
	intents  []*intent
	finishes []loop.Finish
	steps    []loop.Step
	result   *turn.Result
	broken   []violation

	// open is what is in flight by the journal: a request or an intent that the same run has not ended yet.
	open *flight
}

// flight is something that was begun: a request or a call.
type flight struct {
	what  string
	epoch int64
	begun time.Time
	// ended is true when the journal has its outcome from the same run, else cut is when the next run began.
	ended bool
	cut   time.Time
}

// lost says whether nobody knows what became of it.
func (f *flight) lost() bool { return !f.ended }

// request to a model.
type request struct {
	flight
	loop.Request
	// replied says that the journal has the reply, usage is what it took; a failure has some, too.
	replied, unsent bool
	usage           model.Usage
}

// intent of a call.
type intent struct {
	flight
	loop.Intent
	outcome loop.Outcome
}

// repeatable says whether a call may be made twice. It is the test that knows, whatever the journal says of the effect.
func (i *intent) repeatable() bool { return i.Name == toolLook }

func (h *history) wrong(g guarantee, format string, args ...any) {
	h.broken = append(h.broken, violation{Guarantee: g, What: fmt.Sprintf(format, args...)})
}

// readHistory reads a journal.
func readHistory(uid string, entries []journal.Entry) *history {
	h := &history{uid: uid, entries: len(entries)}
	for i, e := range entries {
		if e.Seq != int64(i)+1 {
			h.wrong(wholeJournals, "entry %d of the journal has the place %d", i+1, e.Seq)
		}
		if err := h.read(e); err != nil {
			h.wrong(wholeJournals, "entry %d (%s) of the journal cannot be read: %v", e.Seq, e.Kind, err)
		}
	}
	if h.open != nil {
		h.wrong(wholeJournals, "the journal ends while %s is in flight", h.open.what)
	}
	return h
}

func (h *history) read(e journal.Entry) error {
	switch {
	case e.Epoch < h.epoch:
		h.wrong(wholeJournals, "entry %d (%s) is of epoch %d, after one of epoch %d", e.Seq, e.Kind, e.Epoch, h.epoch)
	case e.Kind != journal.RunStarted && (e.Epoch > h.epoch || h.runs == 0):
		h.wrong(wholeJournals, "entry %d (%s) of epoch %d does not follow a %s of that epoch", e.Seq, e.Kind, e.Epoch, journal.RunStarted)
	case h.result != nil:
		h.wrong(wholeJournals, "entry %d (%s) follows the end of the turn", e.Seq, e.Kind)
	}
	switch e.Kind { //nolint:exhaustive // because the others are neither asked, answered nor called
	case journal.RunStarted:
		h.started(e)
	case journal.ModelRequested:
		return decoded(e, h.requested)
	case journal.ModelReplied:
		return decoded(e, h.replied)
	case journal.ModelFailed:
		return decoded(e, h.failed)
	case journal.ToolIntended:
		return decoded(e, h.intended)
	case journal.ToolFinished:
		return decoded(e, h.finished)
	case journal.Finalized:
		h.idle(e, "the turn ends")
		return json.Unmarshal(e.Payload, &h.result)
	}
	return nil
}

func decoded[T any](e journal.Entry, take func(journal.Entry, T)) error {
	var payload T
	if err := json.Unmarshal(e.Payload, &payload); err != nil {
		return err
	}
	take(e, payload)
	return nil
}

// started begins a run: what was in flight is lost.
func (h *history) started(e journal.Entry) {
	if h.open != nil {
		h.open.cut = e.Time
		if e.Epoch == h.open.epoch {
			h.wrong(knownOutcomes, "%s was given up without a new epoch, so not by a kill", h.open.what)
		}
	}
	h.open = nil
	h.epoch = max(h.epoch, e.Epoch)
	h.runs++
}

// idle checks that nothing is in flight when something else begins.
func (h *history) idle(e journal.Entry, what string) {
	if h.open != nil {
		h.wrong(wholeJournals, "%s in entry %d while %s is in flight in the same run", what, e.Seq, h.open.what)
	}
	h.open = nil
}

func (h *history) requested(e journal.Entry, r loop.Request) {
	what := fmt.Sprintf("request %q for step %d", r.ID, r.Step)
	h.idle(e, what)
	if r.Step <= len(h.steps) {
		h.wrong(paidOnce, "%s was made although the journal had the reply", what)
	}
	if want := fmt.Sprintf("%s/%d", h.uid, e.Seq); r.ID != want {
		h.wrong(paidOnce, "%s should be called %q", what, want)
	}
	if missing := h.unfinishedCalls(); len(missing) > 0 {
		h.wrong(wholeJournals, "%s was made before calls %q had ended", what, missing)
	}
	sent := &request{flight: flight{what: what, epoch: e.Epoch, begun: e.Time}, Request: r}
	h.requests = append(h.requests, sent)
	h.open = &sent.flight
}

// unfinishedCalls are the IDs of the calls of the last reply that have no end yet.
func (h *history) unfinishedCalls() []string {
	if len(h.steps) == 0 {
		return nil
	}
	var ids []string
	last := h.steps[len(h.steps)-1]
	for _, c := range last.Reply.ToolCalls {
		if !slices.ContainsFunc(h.finishes, func(f loop.Finish) bool { return f.Step == last.Step && f.CallID == c.ID }) {
			ids = append(ids, c.ID)
		}
	}
	return ids
}

// pending returns the request in flight, if it is one for a step.
func (h *history) pending(e journal.Entry, step int) *request {
	if n := len(h.requests); n > 0 && h.open == &h.requests[n-1].flight && h.requests[n-1].Step == step {
		h.open = nil
		h.requests[n-1].ended = true
		return h.requests[n-1]
	}
	h.wrong(wholeJournals, "entry %d (%s) for step %d has no request in flight", e.Seq, e.Kind, step)
	return nil
}

func (h *history) replied(e journal.Entry, s loop.Step) {
	if r := h.pending(e, s.Step); r != nil {
		r.replied, r.usage = true, s.Reply.Usage
	}
	if s.Step != len(h.steps)+1 {
		h.wrong(paidOnce, "entry %d is a reply to step %d, after %d replies", e.Seq, s.Step, len(h.steps))
	}
	h.steps = append(h.steps, s)
}

func (h *history) failed(e journal.Entry, a loop.Attempt) {
	if r := h.pending(e, a.Step); r != nil {
		r.unsent, r.usage = a.Unsent, a.Usage
	}
}

func (h *history) intended(e journal.Entry, i loop.Intent) {
	what := fmt.Sprintf("call %q of %s in step %d", i.CallID, i.Name, i.Step)
	h.idle(e, what)
	made := &intent{flight: flight{what: what, epoch: e.Epoch, begun: e.Time}, Intent: i}
	if i.Effect.Repeatable() != made.repeatable() {
		h.wrong(calledOnce, "%s is said to be %s", what, i.Effect)
	}
	if before := h.intentOf(i.Step, i.CallID); before != nil {
		switch {
		case !made.repeatable():
			h.wrong(calledOnce, "%s, which must not be made twice, was intended again", what)
		case before.ended:
			h.wrong(calledOnce, "%s was intended again although it had ended", what)
		}
	}
	if !h.askedFor(i) {
		h.wrong(calledOnce, "%s was intended, and no reply asked for it", what)
	}
	h.intents = append(h.intents, made)
	h.open = &made.flight
}

func (h *history) askedFor(i loop.Intent) bool {
	if i.Step != len(h.steps) {
		return false
	}
	return slices.ContainsFunc(h.steps[i.Step-1].Reply.ToolCalls, func(c model.ToolCall) bool { return c.ID == i.CallID && c.Name == i.Name })
}

// intentOf is the newest intent of a call.
func (h *history) intentOf(step int, callID string) *intent {
	for _, i := range slices.Backward(h.intents) {
		if i.Step == step && i.CallID == callID {
			return i
		}
	}
	return nil
}

func (h *history) finished(e journal.Entry, f loop.Finish) {
	what := fmt.Sprintf("call %q of %s in step %d", f.CallID, f.Name, f.Step)
	if slices.ContainsFunc(h.finishes, func(b loop.Finish) bool { return b.Step == f.Step && b.CallID == f.CallID }) {
		h.wrong(calledOnce, "%s has ended twice", what)
	}
	h.finishes = append(h.finishes, f)
	i := h.intentOf(f.Step, f.CallID)
	inFlight := i != nil && h.open == &i.flight
	if i != nil {
		i.outcome = f.Outcome
	}
	switch f.Outcome {
	case loop.Unknown:
		if i == nil || inFlight || i.repeatable() || f.Class != tool.OutcomeUnknown {
			h.wrong(knownOutcomes, "the outcome of %s is called unknown, and no kill has cut it off", what)
		}
	case loop.Refused:
		h.wrong(wholeJournals, "%s was refused: %s", what, f.Content)
	case loop.Succeeded, loop.Failed:
		if !inFlight {
			h.wrong(knownOutcomes, "entry %d says that %s has %s, and it was not in flight", e.Seq, what, f.Outcome)
			return
		}
		i.ended = true
		h.open = nil
		if f.Outcome == loop.Failed {
			h.wrong(knownOutcomes, "%s has failed: %s", what, f.Content)
		}
	}
}

// unknown counts the calls that ended with nobody knowing.
func (h *history) unknown() int {
	n := 0
	for _, f := range h.finishes {
		if f.Outcome == loop.Unknown {
			n++
		}
	}
	return n
}
