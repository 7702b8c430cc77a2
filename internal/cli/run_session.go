package cli

import (
	"context"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/session"
	"github.com/capstan-dev/capstan/internal/translate"
)

// sessionOf returns a Session of the Turn's namespace: the one in the manifests, or else a new one, which a
// cluster would create, too.
func (p *bundle) sessionOf(name string) *v1alpha1.Session {
	s := &v1alpha1.Session{ObjectMeta: metav1.ObjectMeta{Namespace: p.turn.Namespace, Name: name}}
	if held, ok := p.set.Session(p.turn.Namespace, name); ok {
		s = held.DeepCopy()
	}
	s.UID = sessionUID(p.turn.Namespace, name)
	return s
}

// sessionUID returns the UID of a Session without a cluster. It depends only on the namespace and the name, so that
// a changed Session keeps its history.
func sessionUID(namespace, name string) types.UID {
	data, _ := json.Marshal(map[string]string{"Session": name, "Namespace": namespace}) // maps of strings always marshal
	return uidOf(data)
}

// enterSession updates the status of the Turn's Session from the store. If the budget of the Session is used up, it
// ends a Turn that has not started, as a cluster does, and reports whether it did.
func (r *runCommand) enterSession(ctx context.Context, p *bundle, t *v1alpha1.Turn, s *store, before earlierRuns) (closed bool, err error) {
	if p.session == nil {
		return false, nil
	}
	place, err := session.Latest(ctx, s, string(p.session.UID))
	if err != nil {
		return false, fail(ExitFailed, err)
	}
	if r.dataDir == "" {
		r.env.tell("note: Session %s/%s starts without a history and is not kept: set --data-dir to a folder to keep it",
			p.session.Namespace, p.session.Name)
	}
	now := r.clock()()
	if place.Position > 0 {
		translate.SessionTotals(p.session, place.Totals, place.Last, now)
	}
	used := translate.BudgetUsed(p.session)
	if used == "" || before.last.Seq > 0 {
		return false, nil
	}
	t.Status.StopReason = v1alpha1.StopSessionClosed
	translate.End(t, metav1.ConditionFalse, v1alpha1.TurnReasonSessionClosed,
		fmt.Sprintf("the budget of Session %q is used up: %s; raise it, and create a new Turn", p.session.Name, used), now)
	return true, nil
}
