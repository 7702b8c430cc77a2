package loop

import (
	"context"

	"github.com/capstan-dev/capstan/internal/runtime/fence"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
)

// await asks people about the first call and about all calls after it that come as far as that, so that they can decide at
// once, and takes their decisions. It returns a *Parked while there is none about the first. Where the first does not wait any
// more, as the time of the Turn has come near its end since, nobody is waited for: it is planned again.
func (in *Input) await(ctx context.Context, step int, open []placed) error {
	var records []journal.Record
	all, of := 0, map[string]int{} // calls that may come before, of all tools and by name
	for _, c := range open {
		v := in.look(ctx, step, c)
		v.made, v.madeOf = v.made+all, v.madeOf+of[c.call.Name]
		got := judge(v)
		if got.ruling != waiting && got.ruling != allowed {
			continue
		}
		if !v.again { // the state counts the others
			all++
			of[c.call.Name]++
		}
		if got.ruling == allowed || in.State.approval(step, c.call.ID) != nil {
			continue
		}
		now := in.Now()
		records = append(repaired(records, got.repairs), journal.Record{Kind: journal.ApprovalRequested, Payload: Approval{
			Step: step, CallID: c.call.ID, Name: v.tool.Name, Arguments: got.arguments, ArgumentsHash: hashOf(got.arguments),
			Requested: now.UTC(), Expires: now.Add(in.Limits.ApprovalTimeout).UTC(),
		}})
	}
	if len(records) > 0 {
		if err := in.Record(records...); err != nil {
			return err
		}
	}
	if err := in.takeDecisions(ctx); err != nil {
		return err
	}
	first := open[0].call.ID
	if _, decided := in.State.Decision(step, first); decided || in.State.approval(step, first) == nil {
		return nil
	}
	return &Parked{Approvals: in.State.OpenApprovals()}
}

// takeDecisions journals what was decided by now: nothing follows from it before.
func (in *Input) takeDecisions(ctx context.Context) error {
	for _, a := range in.State.OpenApprovals() {
		d, err := in.decisionOn(ctx, a)
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

// decisionOn is what was decided about a call; nil while nothing was. One about another call does not count.
func (in *Input) decisionOn(ctx context.Context, a Approval) (*Decision, error) {
	if in.Decide != nil {
		d, err := in.Decide(ctx, a)
		if err != nil {
			return nil, err
		}
		if d != nil && d.Step == a.Step && d.CallID == a.CallID {
			d := *d
			d.By, _ = fence.Cap(d.By, maxByChars)
			d.Reason, _ = fence.Cap(d.Reason, maxReasonChars)
			return &d, nil
		}
	}
	if in.Now().Before(a.Expires) {
		return nil, nil //nolint:nilnil // because no decision is no failure
	}
	return &Decision{Step: a.Step, CallID: a.CallID, Expired: true}, nil
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
