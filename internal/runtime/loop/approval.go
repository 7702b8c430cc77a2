package loop

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/runtime/untrusted"
)

// MaxOpenApprovals is the maximum number of undecided requests for approval, because a status can list no more. Further
// calls wait until one of these requests is decided.
const MaxOpenApprovals = 25

// ErrNotListed means that this run cannot read the decision about a request, because the request was not listed for
// people when the run began. The request stays open, and the next run reads the decision.
var ErrNotListed = errors.New("the request for approval is not listed")

// awaitApproval requests approval for the first open call, and for later calls that reach the same gate, so that people
// can decide about all of them together. It records the decisions that exist, and returns a *Parked if the first call
// has no decision. If the first call no longer waits, for example because the Turn's time is nearly over, awaitApproval
// returns nil and the caller must plan the call again.
func (run *runner) awaitApproval(ctx context.Context, step int, open []openCall) error {
	if err := run.recordDecisions(ctx, run.State.OpenApprovals()); err != nil {
		return err
	}
	for run.needsDecision(step, open[0]) {
		before := len(run.State.Approvals)
		if err := run.requestApprovals(ctx, step, open); err != nil {
			return err
		}
		if len(run.State.Approvals) == before {
			break
		}
		if err := run.recordDecisions(ctx, run.State.Approvals[before:]); err != nil {
			return err
		}
	}
	waiting := run.State.OpenApprovals()
	if !run.needsDecision(step, open[0]) || run.State.currentApproval(step, open[0].call.ID) == nil && len(waiting) < MaxOpenApprovals {
		return nil
	}
	return &Parked{Approvals: waiting}
}

// needsDecision reports whether a call has no result and still needs a decision.
func (run *runner) needsDecision(step int, c openCall) bool {
	_, decided := run.State.Decision(step, c.call.ID)
	return run.State.result(step, c.call.ID) == nil && (!decided || run.State.currentApproval(step, c.call.ID) == nil)
}

// currentApproval returns the request for approval of a call. It returns nil if there is none, or if an older version
// of Capstan recorded the request without an ID.
func (s *State) currentApproval(step int, callID string) *Approval {
	if a := s.approval(step, callID); a != nil && a.Request != "" {
		return a
	}
	return nil
}

// requestApprovals requests approval for the waiting calls that have no request, as long as MaxOpenApprovals allows
// it. A call whose tool has changed is refused instead.
func (run *runner) requestApprovals(ctx context.Context, step int, open []openCall) error {
	var records []journal.Record
	room := MaxOpenApprovals - len(run.State.OpenApprovals())
	total, byTool := 0, map[string]int{} // the number of earlier calls of the reply that may be made, in total and by tool
	checked := map[string]error{}
	for _, c := range open {
		v := run.viewOf(ctx, step, c)
		v.callsMade, v.callsOfTool = v.callsMade+total, v.callsOfTool+byTool[c.call.Name]
		got := checkGates(v)
		if got.ruling != waiting && got.ruling != allowed {
			continue
		}
		count := func() {
			if !v.alreadyBegun { // the state already counts calls that have begun
				total++
				byTool[c.call.Name]++
			}
		}
		if got.ruling == allowed || run.State.currentApproval(step, c.call.ID) != nil {
			count()
			continue
		}
		if room == 0 {
			break
		}
		failure, known := checked[v.tool.Name]
		if !known {
			failure = checkTool(ctx, v.tool)
			checked[v.tool.Name] = failure
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		// If the server is only unreachable, approval is requested anyway: the server may be back after the decision.
		if errors.Is(failure, tool.ErrChanged) {
			records = append(appendRepairs(records, got.repairs), run.newResult(step, c, v.tool).refused(failure))
			continue
		}
		room--
		count()
		now := run.Now()
		records = append(appendRepairs(records, got.repairs), journal.Record{Kind: journal.ApprovalRequested, Payload: Approval{
			Request: rand.Text(), Step: step, CallID: c.call.ID, Name: v.tool.Name, ToolServerUID: v.tool.Source.UID,
			SchemaHash: v.tool.SchemaHash(),
			Arguments:  got.arguments, ArgumentsHash: hashOf(got.arguments),
			Requested: now.UTC(), Expires: now.Add(run.Limits.ApprovalTimeout).UTC(),
		}})
	}
	if len(records) == 0 {
		return nil
	}
	return run.Record(records...)
}

// checkTool returns an error if a tool has changed since the Turn started, or if its server cannot be reached. Tools
// whose Caller is not a tool.Checker are not checked.
func checkTool(ctx context.Context, t *tool.Tool) error {
	if c, ok := t.Caller.(tool.Checker); ok {
		return c.Check(ctx)
	}
	return nil
}

// checkApproved checks the tools of approved calls just before these calls are made. It refuses a call whose tool has
// changed or cannot be checked. If the check failed for a reason that may pass and is not the tool's, checkApproved
// returns an error, so that the next attempt of the run uses the approval.
func (run *runner) checkApproved(ctx context.Context, step int, p *plan) error {
	var kept []*planned
	for _, c := range p.wave {
		if c.tool.RequiresApproval && c.intent.Attempt == 1 {
			failure := checkTool(ctx, c.tool)
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if tool.MayPass(failure) {
				return fmt.Errorf("failed to check the approved tool %q: %w", c.tool.Name, failure)
			}
			if failure != nil {
				p.records = append(appendRepairs(p.records, c.repairs), run.newResult(step, c.openCall, c.tool).refused(failure))
				continue
			}
		}
		kept = append(kept, c)
	}
	p.wave = kept
	return nil
}

// refused returns the result of a call that was not made because the check of its tool failed.
func (b resultBuilder) refused(err error) journal.Record {
	failure := tool.AsError(err)
	return b.failedAs(Refused, failure.Class, failure.Message, failure.RemoteMessage)
}

// recordDecisions records the decisions that have been made about requests. No call is made before its decision is in
// the journal.
func (run *runner) recordDecisions(ctx context.Context, requests []Approval) error {
	for i := range requests {
		d, err := run.decisionOn(ctx, requests[i])
		if err != nil {
			return err
		}
		if d == nil {
			continue
		}
		if err := run.Record(journal.Record{Kind: journal.ApprovalDecided, Payload: *d}); err != nil {
			return err
		}
	}
	return nil
}

const (
	// maxByChars and maxReasonChars bound the user's name and the reason in a recorded decision, in characters.
	maxByChars     = 256
	maxReasonChars = 1000
)

// decisionOn returns the decision about a request, or nil if none has been made. It ignores a decision that does not
// name everything that the request shows. An expired request without a decision is denied, but only by a run that could
// read a decision: it may have been made in time, before the Turn was suspended.
func (run *runner) decisionOn(ctx context.Context, a Approval) (*Decision, error) {
	if run.Decide != nil {
		d, err := run.Decide(ctx, a)
		if errors.Is(err, ErrNotListed) {
			return nil, nil //nolint:nilnil // because the request stays open
		}
		if err != nil {
			return nil, err
		}
		if d != nil && d.isAbout(&a) {
			d := *d
			d.By, _ = untrusted.Cap(d.By, maxByChars)
			d.Reason, _ = untrusted.Cap(run.redacted(d.Reason), maxReasonChars)
			return &d, nil
		}
	}
	if run.Now().Before(a.Expires) {
		return nil, nil //nolint:nilnil // because no decision is no failure
	}
	d := a.Decided(false)
	d.Expired = true
	return d, nil
}

// personName returns the name of a person in a form that is safe to show to the model.
func personName(by string) string {
	if untrusted.Blank(by) {
		return "a person"
	}
	return untrusted.NeutralLine(by, "")
}

func reasonSuffix(reason string) string {
	if untrusted.Blank(reason) {
		return ""
	}
	return " (" + untrusted.NeutralLine(reason, "") + ")"
}
