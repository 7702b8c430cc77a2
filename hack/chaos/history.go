package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
)

// history is what happened in a Turn according to its journal, with the violations that the journal itself shows. The
// test has its own code to read journals, because it tests the engine's code.
type history struct {
	uid      string
	entries  int
	epoch    int64
	runs     int
	requests []*request
	intents  []*intent
	finishes []loop.CallResult
	// steps are the replies that are steps, and asides the other replies.
	steps, asides []loop.Step
	// approvals are the requests for a decision.
	approvals []*approval
	// exposures, compactions and waves count the frozen tool lists, the summaries, and the groups of calls that
	// were made together.
	exposures, compactions, waves int
	// parked counts the runs that continued after a park, and cutOff the runs that continued after anything else.
	parked, cutOff int
	// waits reports whether the last entry is a park.
	waits  bool
	result *turn.Result
	broken []violation

	// open holds what is in flight: a request, or calls that the same run has intended and not finished.
	open []*flight
}

// flight is a request or a call that has begun.
type flight struct {
	what  string
	epoch int64
	begun time.Time
	// toSubAgent reports whether this is a call of a sub-agent: the run ends while the child runs, and the next run
	// makes the call again.
	toSubAgent bool
	// ended is true if the same run has recorded the outcome. Otherwise cut is the time at which the next run
	// began.
	ended bool
	cut   time.Time
}

// lost reports whether the run that began the request or the call ended without recording its outcome.
func (f *flight) lost() bool { return !f.ended }

// request is a request to a model.
type request struct {
	flight
	loop.Request
	// replied is true if the journal has the reply. unsent is true if the journal has a failure before the request was
	// sent. usage is the usage of the reply or of the failure.
	replied, unsent bool
	usage           model.Usage
}

// intent is the intent of a call.
type intent struct {
	flight
	loop.Intent
	outcome loop.Outcome
}

// approval is a request for a decision.
type approval struct {
	loop.Approval
	// decision is nil until the decision is recorded.
	decision *loop.Decision
}

// repeatable reports whether a call may be made twice. It ignores the effect in the journal, because the test
// checks it.
func (i *intent) repeatable() bool { return i.Name == toolLook || i.toSubAgent }

func (h *history) wrong(g guarantee, format string, args ...any) {
	h.broken = append(h.broken, violation{Guarantee: g, What: fmt.Sprintf(format, args...)})
}

// readHistory reads a journal.
func readHistory(uid string, entries []journal.Entry) *history {
	h := &history{uid: uid, entries: len(entries)}
	for i, e := range entries {
		if e.Seq != int64(i)+1 {
			h.wrong(wholeJournals, "entry %d of the journal has the number %d", i+1, e.Seq)
		}
		if err := h.read(e); err != nil {
			h.wrong(wholeJournals, "entry %d (%s) of the journal cannot be read: %v", e.Seq, e.Kind, err)
		}
	}
	h.checkIdle(journal.Entry{Seq: int64(len(entries)) + 1}, "the journal ends")
	return h
}

func (h *history) read(e journal.Entry) error {
	switch {
	case e.Epoch < h.epoch:
		h.wrong(wholeJournals, "entry %d (%s) is of epoch %d, after one of epoch %d", e.Seq, e.Kind, e.Epoch, h.epoch)
	case e.Kind != journal.RunStarted && (e.Epoch > h.epoch || h.runs == 0):
		h.wrong(wholeJournals, "entry %d (%s) of epoch %d does not follow a %s of that epoch", e.Seq, e.Kind, e.Epoch, journal.RunStarted)
	case h.waits && e.Kind != journal.RunStarted:
		h.wrong(wholeJournals, "entry %d (%s) follows the park of its run", e.Seq, e.Kind)
	case h.result != nil:
		h.wrong(wholeJournals, "entry %d (%s) follows the end of the turn", e.Seq, e.Kind)
	}
	switch e.Kind { //nolint:exhaustive // because the others are of no concern here
	case journal.RunStarted:
		h.started(e)
	case journal.RunParked:
		return decoded(e, h.parks)
	case journal.ModelRequested:
		return decoded(e, h.requested)
	case journal.ModelReplied:
		return decoded(e, h.replied)
	case journal.ModelFailed:
		return decoded(e, h.failed)
	case journal.ToolsExposed:
		if h.exposures++; h.exposures > 1 {
			h.wrong(wholeJournals, "entry %d records the tool list again", e.Seq)
		}
	case journal.Compacted:
		h.compacted(e)
	case journal.ApprovalRequested:
		return decoded(e, h.approvalRequested)
	case journal.ApprovalDecided:
		return decoded(e, h.decided)
	case journal.ToolIntended:
		return decoded(e, h.intended)
	case journal.ToolFinished:
		return decoded(e, h.finished)
	case journal.Finalized:
		h.checkIdle(e, "the turn ends")
		return json.Unmarshal(e.Payload, &h.result)
	}
	return nil
}

// decoded decodes the payload of an entry and passes both to take.
func decoded[T any](e journal.Entry, take func(journal.Entry, T)) error {
	var payload T
	if err := json.Unmarshal(e.Payload, &payload); err != nil {
		return err
	}
	take(e, payload)
	return nil
}

// started begins a run: everything that was in flight is lost.
func (h *history) started(e journal.Entry) {
	for _, f := range h.open {
		f.cut = e.Time
		if e.Epoch == f.epoch {
			h.wrong(knownOutcomes, "%s was abandoned without a new epoch, so not because of a kill", f.what)
		}
	}
	switch {
	case h.waits:
		h.parked++
	case h.runs > 0:
		h.cutOff++
	}
	h.open, h.waits = nil, false
	h.epoch = max(h.epoch, e.Epoch)
	h.runs++
}

// waiting is the payload of a park.
type waiting struct {
	Approvals int      `json:"approvals"`
	Turns     []string `json:"turns"`
}

// parks ends a run that waits. Only calls of sub-agents may be in flight, and the run must wait for something.
func (h *history) parks(e journal.Entry, w waiting) {
	h.waits = true
	var children []*flight
	for _, f := range h.open {
		if !f.toSubAgent {
			h.wrong(wholeJournals, "the run parks in entry %d while %s is in flight", e.Seq, f.what)
			continue
		}
		children = append(children, f)
	}
	undecided := 0
	for _, a := range h.approvals {
		if a.decision == nil {
			undecided++
		}
	}
	if w.Approvals != 0 && w.Approvals != undecided || len(w.Turns) != len(children) || w.Approvals+len(w.Turns) == 0 {
		h.wrong(wholeJournals, "the run parks in entry %d for %d decisions and %d Turns, but %d and %d are open",
			e.Seq, w.Approvals, len(w.Turns), undecided, len(children))
	}
}

// checkIdle checks that nothing is in flight at an entry. The text in what describes the entry, for example as a
// request that begins.
func (h *history) checkIdle(e journal.Entry, what string) {
	for _, f := range h.open {
		h.wrong(wholeJournals, "%s in entry %d while %s is in flight in the same run", what, e.Seq, f.what)
	}
	h.open = nil
}

func (h *history) requested(e journal.Entry, r loop.Request) {
	what := fmt.Sprintf("request %q for step %d", r.ID, r.Step)
	if r.Purpose != loop.ForStep {
		what += " (" + string(r.Purpose) + ")"
	}
	h.checkIdle(e, what)
	if r.Step <= len(h.steps) || slices.ContainsFunc(h.asides,
		func(s loop.Step) bool { return s.Step == r.Step && s.Purpose == r.Purpose }) {
		h.wrong(paidOnce, "%s was made although the journal already had the reply", what)
	}
	if want := fmt.Sprintf("%s/%d", h.uid, e.Seq); r.ID != want {
		h.wrong(paidOnce, "%s must have the ID %q", what, want)
	}
	if missing := h.unfinishedCalls(); len(missing) > 0 {
		h.wrong(wholeJournals, "%s was made before calls %q had ended", what, missing)
	}
	sent := &request{flight: flight{what: what, epoch: e.Epoch, begun: e.Time}, Request: r}
	h.requests = append(h.requests, sent)
	h.open = []*flight{&sent.flight}
}

// unfinishedCalls returns the IDs of those calls of the last reply that have no outcome yet.
func (h *history) unfinishedCalls() []string {
	if len(h.steps) == 0 {
		return nil
	}
	var ids []string
	last := h.steps[len(h.steps)-1]
	for _, c := range last.Reply.ToolCalls {
		if !slices.ContainsFunc(h.finishes, func(f loop.CallResult) bool { return f.Step == last.Step && f.CallID == c.ID }) {
			ids = append(ids, c.ID)
		}
	}
	return ids
}

// endFlight removes a request or a call that has ended from open, and reports whether it was in flight.
func (h *history) endFlight(f *flight) bool {
	i := slices.Index(h.open, f)
	if i < 0 {
		return false
	}
	h.open = slices.Delete(h.open, i, i+1)
	f.ended = true
	return true
}

// endRequest ends the request in flight and returns it. If no request with this step and purpose is in flight,
// endRequest records a violation and returns nil.
func (h *history) endRequest(e journal.Entry, step int, purpose loop.Purpose) *request {
	if n := len(h.requests); n > 0 && h.requests[n-1].Step == step && h.requests[n-1].Purpose == purpose &&
		h.endFlight(&h.requests[n-1].flight) {
		return h.requests[n-1]
	}
	h.wrong(wholeJournals, "entry %d (%s) for step %d has no request in flight", e.Seq, e.Kind, step)
	return nil
}

func (h *history) replied(e journal.Entry, s loop.Step) {
	if r := h.endRequest(e, s.Step, s.Purpose); r != nil {
		r.replied, r.usage = true, s.Reply.Usage
	}
	if s.Purpose != loop.ForStep {
		h.asides = append(h.asides, s)
		return
	}
	if s.Step != len(h.steps)+1 {
		h.wrong(paidOnce, "entry %d is a reply to step %d, after %d replies", e.Seq, s.Step, len(h.steps))
	}
	h.steps = append(h.steps, s)
}

func (h *history) failed(e journal.Entry, a loop.FailedRequest) {
	if r := h.endRequest(e, a.Step, a.Purpose); r != nil {
		r.unsent, r.usage = !a.WasSent(), a.Usage
	}
}

// unknownCalls returns the sorted IDs of the calls whose outcome is unknown.
func (h *history) unknownCalls() []string {
	var ids []string
	for _, f := range h.finishes {
		if f.Outcome == loop.Unknown {
			ids = append(ids, f.CallID)
		}
	}
	slices.Sort(ids)
	return ids
}
