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

// conversation returns a Session of the Turn's namespace: that of the manifests, else a new one, as a cluster makes it.
func (p *project) conversation(name string) *v1alpha1.Session {
	s := &v1alpha1.Session{ObjectMeta: metav1.ObjectMeta{Namespace: p.turn.Namespace, Name: name}}
	if held, ok := p.set.Session(p.turn.Namespace, name); ok {
		s = held.DeepCopy()
	}
	s.UID = sessionUID(p.turn.Namespace, name)
	return s
}

// sessionUID is the UID of a Session without a cluster: the same as long as it has its name, whatever becomes of the rest.
func sessionUID(namespace, name string) types.UID {
	data, _ := json.Marshal(map[string]string{"Session": name, "Namespace": namespace}) // texts always marshal
	return uidOf(data)
}

// converse brings the status of the Turn's Session up to date with what the store holds of it. It ends a Turn that has not
// begun and finds the budget of its Session used up, as a cluster does, and reports whether it did.
func (r *runner) converse(ctx context.Context, p *project, t *v1alpha1.Turn, s *store, before past) (closed bool, err error) {
	if p.session == nil {
		return false, nil
	}
	place, err := session.Latest(ctx, s, string(p.session.UID))
	if err != nil {
		return false, fail(ExitFailed, err)
	}
	if r.dataDir == "" {
		r.env.tell("note: Session %s/%s begins anew and is forgotten at the end: name a folder with --data-dir to keep it",
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
