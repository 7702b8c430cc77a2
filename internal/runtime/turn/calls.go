package turn

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/capstan-dev/capstan/internal/runtime/fence"
	"github.com/capstan-dev/capstan/internal/runtime/finalize"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
)

// tally counts what the journal says has happened, and lists the calls. It is kept entry by entry, so that what a long Turn has
// done can be told after each of its steps.
type tally struct {
	counts Counts
	// unsent are requests that were never sent, and steps those that were counted, the last ones among them.
	unsent, steps int
	// calls in the order in which they were asked for, and at, their places.
	calls []CallRecord
	at    map[callKey]int
	// repaired are calls whose arguments were.
	repaired map[callKey]bool
}

// callKey names a call.
type callKey struct {
	step   int
	callID string
}

// The bounds of what a CallRecord says in a model's words, in characters.
const (
	maxCallID   = 128
	maxCallName = 64
)

// count takes in the newest entry, which the state of the loop has taken in.
func (t *tally) count(e journal.Entry, s *loop.State) {
	switch e.Kind { //nolint:exhaustive // because the others count nothing
	case journal.ModelRequested:
		t.counts.ModelRequests++
		if newest(s.Requests).Attempt > 1 {
			t.counts.ModelRetries++
		}
	case journal.ModelFailed:
		if newest(s.Attempts).Unsent {
			t.unsent++
		}
	case journal.ModelReplied:
		t.replied(s)
	case journal.ToolRepaired:
		t.repairedCall(newest(s.Repairs))
	case journal.ToolIntended:
		t.intended(newest(s.Intents))
	case journal.ToolFinished:
		t.finished(newest(s.Finishes))
	case journal.ApprovalDecided:
		t.decided(e.Payload)
	case journal.Compacted:
		t.counts.Compactions++
	case journal.Reflected:
		t.counts.Reflections++
	}
}

func newest[T any](all []T) T { return all[len(all)-1] }

// replied lists the calls of a new step. A reply that is no step has added none, and those of a last one are not made.
func (t *tally) replied(s *loop.State) {
	if len(s.Steps) == t.steps {
		return
	}
	t.steps = len(s.Steps)
	step := newest(s.Steps)
	if step.Last {
		return
	}
	t.counts.Steps++
	for _, c := range step.Reply.ToolCalls {
		t.asked(step.Step, c.ID, c.Name)
	}
}

// asked lists a call, and returns its record.
func (t *tally) asked(step int, callID, name string) *CallRecord {
	if t.at == nil {
		t.at = map[callKey]int{}
	}
	of := callKey{step, callID}
	i, listed := t.at[of]
	if !listed {
		i = len(t.calls)
		t.at[of] = i
		t.calls = append(t.calls, CallRecord{CallID: clean(callID, maxCallID), Name: clean(name, maxCallName), Step: step})
	}
	return &t.calls[i]
}

// clean makes what a model wrote fit for a status.
func clean(text string, most int) string {
	kept, _ := fence.Cap(strings.TrimSpace(fence.Strip(text)), most)
	return kept
}

func (t *tally) repairedCall(r loop.Repair) {
	if t.repaired == nil {
		t.repaired = map[callKey]bool{}
	}
	if of := (callKey{r.Step, r.CallID}); !t.repaired[of] {
		t.repaired[of] = true
		t.counts.ToolRepairs++
	}
}

func (t *tally) intended(i loop.Intent) {
	t.asked(i.Step, i.CallID, i.Name)
	if i.Attempt == 1 {
		t.counts.ToolCalls++
	}
	if i.Retry {
		t.counts.ToolRetries++
	}
}

// finished fills in what became of a call; the first end counts.
func (t *tally) finished(f loop.Finish) {
	c := t.asked(f.Step, f.CallID, f.Name)
	if c.Outcome != "" {
		return
	}
	if f.Outcome == loop.Unknown {
		t.counts.UnknownOutcomes++
	}
	c.Outcome, c.DurationMS, c.Bytes, c.Artifact = f.Outcome, f.DurationMS, f.Bytes, f.ArtifactName
	if f.Spent != nil {
		c.Turn = f.Spent.Turn
	}
}

func (t *tally) decided(payload json.RawMessage) {
	var d loop.Decision
	if json.Unmarshal(payload, &d) != nil {
		return // the loop has read it
	}
	if i, listed := t.at[callKey{d.Step, d.CallID}]; listed && t.calls[i].DecidedBy == "" {
		t.calls[i].DecidedBy = d.By
	}
}

// newest are the calls that a result lists.
func (t *tally) newest() []CallRecord {
	from := max(0, len(t.calls)-MaxCalls)
	return append([]CallRecord(nil), t.calls[from:]...)
}

// ended returns the counts and the newest calls of a Turn that ends now: with the ends of the calls that are open.
func (r *run) ended() (Counts, []CallRecord) {
	t := r.past.tally
	t.calls, t.at = slices.Clone(t.calls), maps.Clone(t.at)
	for _, record := range r.past.loop.OpenEnds(r.exposed().Nonce) {
		if f, ok := record.Payload.(loop.Finish); ok {
			t.finished(f)
		}
	}
	return r.countsOf(&t), t.newest()
}

// counts of what all runs did by now.
func (r *run) counts() Counts { return r.countsOf(&r.past.tally) }

func (r *run) countsOf(t *tally) Counts {
	c := t.counts
	c.ModelRequests = max(0, c.ModelRequests-t.unsent)
	c.ModelRetries = min(c.ModelRetries, max(0, c.ModelRequests-1))
	c.Resumes = r.resumes
	return c
}

// tell says what the Turn has done by now.
func (r *run) tell() {
	if r.in.Progress == nil {
		return
	}
	p := Progress{Counts: r.counts(), Calls: r.past.tally.newest(), SubAgents: subAgents(&r.past.loop)}
	spendings := r.spendings()
	for _, s := range spendings {
		p.Usage = p.Usage.Add(s.Usage)
	}
	p.Cost = finalize.Total(spendings)
	r.in.Progress(p)
}
