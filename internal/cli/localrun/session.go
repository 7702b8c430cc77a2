package localrun

import (
	"context"
	"fmt"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/cli/bundle"
	"github.com/capstan-dev/capstan/internal/cli/exit"
	"github.com/capstan-dev/capstan/internal/cli/journals"
	"github.com/capstan-dev/capstan/internal/runtime/session"
	"github.com/capstan-dev/capstan/internal/translate"
	"github.com/capstan-dev/capstan/internal/turnstatus"
)

// enterSession updates the status of the Turn's Session from the store. A Turn that has not started waits for an
// earlier Turn of the Session: enterSession returns an error. If the budget of the Session is used up, it ends such a
// Turn, as a cluster does, and returns true.
func (r *Options) enterSession(
	ctx context.Context, p *bundle.Bundle, t *v1alpha1.Turn, s *store, before earlierRuns,
) (closed bool, err error) {
	if p.Session == nil {
		return false, nil
	}
	tail, err := session.Latest(ctx, s, string(p.Session.UID), nil)
	if err != nil {
		return false, exit.WithCode(exit.Failed, err)
	}
	if r.DataDir == "" {
		r.Env.Logf("note: Session %s/%s has no history and is not kept: set --data-dir to keep it",
			p.Session.Namespace, p.Session.Name)
	}
	now := r.Clock()()
	if tail.Position > 0 {
		translate.SessionTotals(p.Session, tail.Totals, tail.Last, now)
	}
	if before.last.Seq > 0 {
		return false, nil
	}
	// The history has a Turn only after its end. A Turn that began before would not know what the other has done, and
	// its budget would lack the usage of the other.
	first, err := journals.OpenTurn(ctx, s, string(p.Session.UID), t.Namespace+"/"+t.Name)
	if err != nil {
		return false, exit.WithCode(exit.Failed, err)
	}
	if first != "" {
		return false, exit.WithCode(exit.Failed, fmt.Errorf("%s waits for Turn %s of Session %q, which has not ended: "+
			"continue it with the same capstan run, or set its desiredState to Cancelled and run it again",
			p.Title(), first, p.Session.Name))
	}
	used := translate.BudgetUsed(p.Session)
	if used == "" {
		return false, nil
	}
	turnstatus.End(t, v1alpha1.TurnReasonSessionClosed,
		fmt.Sprintf("the budget of Session %q is used up: %s; raise it, and create a new Turn", p.Session.Name, used), now)
	return true, nil
}
