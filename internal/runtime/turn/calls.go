package turn

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/capstan-dev/capstan/internal/runtime/finalize"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/smallmap"
	"github.com/capstan-dev/capstan/internal/runtime/untrusted"
)

// tally counts the events of a Turn and lists its calls. It is updated with each entry, so that the progress of a
// long Turn can be reported after each step.
type tally struct {
	counts Counts
	// unsent is the number of requests that were never sent. steps is the number of steps so far, including the extra
	// step that is requested when the step limit is reached.
	unsent, steps int
	// calls are in the order in which the model requested them, or Capstan made them. index has the index of each call
	// in calls.
	calls []CallRecord
	index smallmap.Map[callKey, int]
	// repaired is the set of calls whose arguments were repaired.
	repaired map[callKey]bool
}

// callKey identifies a call.
type callKey struct {
	step   int
	callID string
}

// The maximum lengths of a CallRecord's texts from a model, in characters.
const (
	maxCallID   = 128
	maxCallName = 64
)

// count adds the newest entry, which the state of the loop has already applied.
func (t *tally) count(e journal.Entry, s *loop.State) {
	switch e.Kind { //nolint:exhaustive // because other kinds change no count
	case journal.ModelRequested:
		t.counts.ModelRequests++
		if newest(s.Requests).Attempt > 1 {
			t.counts.ModelRetries++
		}
	case journal.ModelFailed:
		if f := newest(s.FailedRequests); !f.WasSent() && f.Kind != model.OverBudget { // a request over budget was never counted
			t.unsent++
		}
	case journal.ModelReplied:
		t.addReply(s)
	case journal.UndoPlanned:
		t.addPlan(s)
	case journal.ToolRepaired:
		t.addRepair(newest(s.Repairs))
	case journal.ToolIntended:
		t.addIntent(newest(s.Intents))
	case journal.ToolFinished:
		t.addResult(newest(s.CallResults))
	case journal.ApprovalDecided:
		t.addDecision(e.Payload)
	case journal.Compacted:
		t.counts.Compactions++
	case journal.Reflected:
		t.counts.Reflections++
	}
}

func newest[T any](all []T) T { return all[len(all)-1] }

// addReply lists the calls of a new step. Some replies add no step. The extra step that is requested when the step
// limit is reached does not count, and its calls are not made.
func (t *tally) addReply(s *loop.State) {
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
		t.listCall(step.Step, c.ID, c.Name)
	}
}

// addPlan lists the calls that a Turn makes without a model. A plan is not a reply, so it does not count as a step.
func (t *tally) addPlan(s *loop.State) {
	t.steps = len(s.Steps)
	for _, step := range s.Steps {
		for _, c := range step.Reply.ToolCalls {
			t.listCall(step.Step, c.ID, c.Name)
		}
	}
}

// listCall adds a call to the list, unless it is there already, and returns its record.
func (t *tally) listCall(step int, callID, name string) *CallRecord {
	key := callKey{step, callID}
	i, listed := t.index.Get(key)
	if !listed {
		i = len(t.calls)
		t.index.Set(key, i)
		t.calls = append(t.calls, CallRecord{CallID: clean(callID, maxCallID), Name: clean(name, maxCallName), Step: step})
	}
	return &t.calls[i]
}

// clean strips a text of a model and shortens it to at most limit characters, so that it fits into a status.
func clean(text string, limit int) string {
	kept, _ := untrusted.Cap(strings.TrimSpace(untrusted.Strip(text)), limit)
	return kept
}

func (t *tally) addRepair(r loop.Repair) {
	if t.repaired == nil {
		t.repaired = map[callKey]bool{}
	}
	if key := (callKey{r.Step, r.CallID}); !t.repaired[key] {
		t.repaired[key] = true
		t.counts.ToolRepairs++
	}
}

func (t *tally) addIntent(i loop.Intent) {
	t.listCall(i.Step, i.CallID, i.Name)
	if i.Attempt == 1 {
		t.counts.ToolCalls++
	}
	if i.Retry {
		t.counts.ToolRetries++
	}
}

// addResult fills in the outcome of a call. Only the first result of a call counts.
func (t *tally) addResult(f loop.CallResult) {
	c := t.listCall(f.Step, f.CallID, f.Name)
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

func (t *tally) addDecision(payload json.RawMessage) {
	var d loop.Decision
	if json.Unmarshal(payload, &d) != nil {
		return // this cannot happen, because the loop has already read the same payload
	}
	if i, listed := t.index.Get(callKey{d.Step, d.CallID}); listed && t.calls[i].DecidedBy == "" {
		t.calls[i].DecidedBy = d.By
	}
}

// newest returns the newest calls, at most MaxCalls.
func (t *tally) newest() []CallRecord {
	from := max(0, len(t.calls)-MaxCalls)
	return append([]CallRecord(nil), t.calls[from:]...)
}

// finalCounts returns the counts and the newest calls of a Turn that ends now. Its open calls receive their outcomes.
func (r *run) finalCounts() (Counts, []CallRecord) {
	t := r.replayed.tally
	t.calls, t.index = slices.Clone(t.calls), t.index.Clone()
	for _, f := range r.resultsOfOpenCalls() {
		t.addResult(f)
	}
	return r.countsOf(&t), t.newest()
}

// resultsOfOpenCalls returns the results that the open calls receive when the Turn ends now.
func (r *run) resultsOfOpenCalls() []loop.CallResult {
	var results []loop.CallResult
	for _, record := range r.replayed.loop.ResultsOfOpenCalls(r.exposed().Nonce) {
		if f, ok := record.Payload.(loop.CallResult); ok {
			results = append(results, f)
		}
	}
	return results
}

// counts returns the current totals over all runs.
func (r *run) counts() Counts { return r.countsOf(&r.replayed.tally) }

func (r *run) countsOf(t *tally) Counts {
	c := t.counts
	c.ModelRequests = max(0, c.ModelRequests-t.unsent)
	c.ModelRetries = min(c.ModelRetries, max(0, c.ModelRequests-1))
	c.Resumes = r.resumes
	return c
}

// reportProgress reports the progress of the Turn.
func (r *run) reportProgress() {
	if r.in.Progress == nil {
		return
	}
	p := Progress{Counts: r.counts(), Calls: r.replayed.tally.newest(), SubAgents: subAgents(&r.replayed.loop)}
	spendings := r.spendings()
	for _, s := range spendings {
		p.Usage = p.Usage.Add(s.Usage)
	}
	if p.Cost = finalize.Total(spendings); p.Cost == nil {
		p.KnownCost = finalize.Known(spendings)
	}
	r.in.Progress(p)
}

// reportUnended reports the progress of a run that ends with an error, so that the status has all requests of a Turn
// that has not ended: see isProgress. A run without progress reports nothing while its Turn must continue to wait.
func (r *run) reportUnended(err *error) {
	if *err != nil && (r.wrote || r.unreported) {
		r.reportProgress()
	}
}
