package loop

import (
	"context"
	"crypto/rand"
	"errors"

	"github.com/capstan-dev/capstan/internal/runtime/fence"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// MaxOpenApprovals is how many calls people are asked about at the same time: as many as they can be shown. Further calls wait until
// some of these are decided.
const MaxOpenApprovals = 25

// await asks people about the first call and about the calls after it that come as far as that, so that they can decide at once,
// and takes their decisions. It returns a *Parked while there is none about the first. Where the first does not wait any more, as the
// time of the Turn has come near its end since, nobody is waited for: it is planned again.
func (in *Input) await(ctx context.Context, step int, open []placed) error {
	if err := in.takeDecisions(ctx, in.State.OpenApprovals()); err != nil {
		return err
	}
	for in.waits(step, open[0]) {
		before := len(in.State.Approvals)
		if err := in.request(ctx, step, open); err != nil {
			return err
		}
		if len(in.State.Approvals) == before {
			break
		}
		if err := in.takeDecisions(ctx, in.State.Approvals[before:]); err != nil {
			return err
		}
	}
	waiting := in.State.OpenApprovals()
	if !in.waits(step, open[0]) || in.State.asked(step, open[0].call.ID) == nil && len(waiting) < MaxOpenApprovals {
		return nil
	}
	return &Parked{Approvals: waiting}
}

// waits reports whether a call has neither an end nor a decision.
func (in *Input) waits(step int, c placed) bool {
	_, decided := in.State.Decision(step, c.call.ID)
	return in.State.finish(step, c.call.ID) == nil && (!decided || in.State.asked(step, c.call.ID) == nil)
}

// asked is the request for approval of a call; nil if there is none, or only that of an older version, which shows too little.
func (s *State) asked(step int, callID string) *Approval {
	if a := s.approval(step, callID); a != nil && a.Request != "" {
		return a
	}
	return nil
}

// request asks about the calls that wait and that nobody was asked about, as far as there is room for requests. A call whose tool
// has changed is refused instead.
func (in *Input) request(ctx context.Context, step int, open []placed) error {
	var records []journal.Record
	room := MaxOpenApprovals - len(in.State.OpenApprovals())
	all, of := 0, map[string]int{} // calls that may come before, of all tools and by name
	checked := map[string]error{}
	for _, c := range open {
		v := in.look(ctx, step, c)
		v.made, v.madeOf = v.made+all, v.madeOf+of[c.call.Name]
		got := judge(v)
		if got.ruling != waiting && got.ruling != allowed {
			continue
		}
		count := func() {
			if !v.again { // the state counts the others
				all++
				of[c.call.Name]++
			}
		}
		if got.ruling == allowed || in.State.asked(step, c.call.ID) != nil {
			count()
			continue
		}
		if room == 0 {
			break
		}
		failure, again := checked[v.tool.Name]
		if !again {
			failure = check(ctx, v.tool)
			checked[v.tool.Name] = failure
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if errors.Is(failure, tool.ErrChanged) { // a server that is away may be back when people have decided
			records = append(repaired(records, got.repairs), in.ending(step, c, v.tool).refused(failure))
			continue
		}
		room--
		count()
		now := in.Now()
		records = append(repaired(records, got.repairs), journal.Record{Kind: journal.ApprovalRequested, Payload: Approval{
			Request: rand.Text(), Step: step, CallID: c.call.ID, Name: v.tool.Name, ToolServerUID: v.tool.Source.UID, SchemaHash: v.tool.SchemaHash(),
			Arguments: got.arguments, ArgumentsHash: hashOf(got.arguments),
			Requested: now.UTC(), Expires: now.Add(in.Limits.ApprovalTimeout).UTC(),
		}})
	}
	if len(records) == 0 {
		return nil
	}
	return in.Record(records...)
}

// check finds out whether a tool is still the one that the Turn has, where that can be found out.
func check(ctx context.Context, t *tool.Tool) error {
	if c, ok := t.Caller.(tool.Checker); ok {
		return c.Check(ctx)
	}
	return nil
}

// release checks the calls of a wave that were approved just before they are made. A call whose tool has changed is refused.
func (in *Input) release(ctx context.Context, step int, p *plan) error {
	var kept []*planned
	for _, c := range p.wave {
		if c.tool.RequiresApproval && c.intent.Attempt == 1 {
			failure := check(ctx, c.tool)
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if failure != nil {
				p.records = append(repaired(p.records, c.repairs), in.ending(step, c.placed, c.tool).refused(failure))
				continue
			}
		}
		kept = append(kept, c)
	}
	p.wave = kept
	return nil
}

// refused is the end of a call that was not made because its tool was checked before.
func (e ending) refused(err error) journal.Record {
	failure := tool.AsError(err)
	return e.failedAs(Refused, failure.Class, failure.Message, failure.Said)
}

// takeDecisions journals what was decided about requests by now: nothing follows from it before.
func (in *Input) takeDecisions(ctx context.Context, about []Approval) error {
	for i := range about {
		d, err := in.decisionOn(ctx, about[i])
		if err != nil {
			return err
		}
		if d == nil {
			continue
		}
		if err := in.Record(journal.Record{Kind: journal.ApprovalDecided, Payload: *d}); err != nil {
			return err
		}
	}
	return nil
}

const (
	// maxByChars and maxReasonChars bound what is kept of a decision, in characters.
	maxByChars     = 256
	maxReasonChars = 1000
)

// decisionOn returns the decision about a request, or nil if none has been made. One that does not name all that the request shows
// does not count.
func (in *Input) decisionOn(ctx context.Context, a Approval) (*Decision, error) {
	if in.Decide != nil {
		d, err := in.Decide(ctx, a)
		if err != nil {
			return nil, err
		}
		if d != nil && d.isAbout(&a) {
			d := *d
			d.By, _ = fence.Cap(d.By, maxByChars)
			d.Reason, _ = fence.Cap(d.Reason, maxReasonChars)
			return &d, nil
		}
	}
	if in.Now().Before(a.Expires) {
		return nil, nil //nolint:nilnil // because no decision is no failure
	}
	d := a.Decided(false)
	d.Expired = true
	return d, nil
}

// somebody is the name of a person as the model can be told it.
func somebody(by string) string {
	if fence.Blank(by) {
		return "somebody"
	}
	return fence.NeutralLine(by, "")
}

func why(reason string) string {
	if fence.Blank(reason) {
		return ""
	}
	return " (" + fence.NeutralLine(reason, "") + ")"
}
