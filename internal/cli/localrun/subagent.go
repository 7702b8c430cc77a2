package localrun

import (
	"context"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/cli/bundle"
	"github.com/capstan-dev/capstan/internal/cli/journals"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/toolbox"
	"github.com/capstan-dev/capstan/internal/translate"
	"github.com/capstan-dev/capstan/internal/turnstatus"
)

// toolbox returns the tools of the Agent of a Turn.
func (j *localRun) toolbox(w *localTurn) *toolbox.Box {
	box := w.Box(w.turn, j.servers)
	box.Call = func(agent string, mayCreate func(context.Context) error) tool.Caller {
		return &subAgent{localRun: j, parent: w, agent: agent, mayCreate: mayCreate}
	}
	return box
}

// subAgent calls another Agent. Each call is a new Turn, which runs while the calling Turn is parked.
type subAgent struct {
	localRun *localRun
	parent   *localTurn
	agent    string
	// mayCreate returns an error if the child must not be created.
	mayCreate func(context.Context) error
}

// Call creates or finds the child Turn. It returns the child's answer, or a *tool.Pending if the child has not ended.
func (s *subAgent) Call(ctx context.Context, c tool.Call) (tool.Result, error) {
	none := tool.Result{Descendants: new(0)}
	t, err := translate.ChildOf(s.parent.turn, s.parent.Agent, s.agent, c)
	if err != nil {
		return none, err
	}
	s.parent.trace.AnnotateChild(t, c.Step, c.CallID)
	child, mayExist, err := s.child(ctx, t)
	if mayExist {
		none.Descendants = nil // the call keeps its reservation
	}
	refusal, refused := errors.AsType[*tool.Error](err)
	switch {
	case refused:
		return none, refusal
	case err != nil:
		return none, &tool.Error{Class: tool.Unavailable, Message: "the sub-agent cannot run: " + err.Error(), Err: err}
	case child.result == nil:
		return tool.Result{}, &tool.Pending{Turn: t.Name}
	}
	return translate.ChildResult(child.turn, child.result.Text)
}

// child returns the child Turn of a call. A repeated call gets the same child. mayExist is true if this or an earlier
// run may have created the child, even if there is an error.
func (s *subAgent) child(ctx context.Context, t *v1alpha1.Turn) (child *localTurn, mayExist bool, err error) {
	s.parent.mu.Lock()
	defer s.parent.mu.Unlock()
	if known := s.parent.children[t.Name]; known != nil {
		return known, true, nil
	}
	t.UID, t.Generation = childUID(s.parent.turn, t.Name), 1
	before, err := s.localRun.store.earlierRuns(ctx, string(t.UID))
	if err != nil {
		return nil, true, err
	}
	mayExist = before.last.Seq > 0
	if !mayExist {
		if err := s.mayCreate(ctx); err != nil {
			return nil, false, err
		}
	}
	member := s.parent.Member(s.agent)
	if member == nil {
		return nil, mayExist, fmt.Errorf("the manifests have no Agent %q", s.agent)
	}
	p := *member
	p.Turn, p.Session = t, nil // an Agent that calls itself is in the team with the Session of the calling Turn
	b := boundAfter(before, s.localRun.Clock())
	turnstatus.Bind(t, b.Binding, b.end())
	w, err := s.localRun.begin(ctx, &p, t, b, childSeed(s.parent.in.SpanSeed, t.Name))
	if err != nil {
		return nil, mayExist, err
	}
	s.parent.children[t.Name] = w
	return w, true, nil
}

// childUID returns the UID of the Turn of a sub-agent.
func childUID(parent *v1alpha1.Turn, name string) types.UID {
	return derivedUID(string(parent.UID), name)
}

// derivedUID returns a UID that follows from an identity of a Turn and the name of the Turn of a sub-agent.
func derivedUID(parent, name string) types.UID { return bundle.UIDOf([]byte(parent + "/" + name)) }

// childUsage returns the usage of the Turn that a call of a sub-agent has created, for a run that ends without the
// answer of that Turn. The Turn ends, too, if it has not ended.
func (j *localRun) childUsage(ctx context.Context, w *localTurn, c loop.Intent) (tool.Result, error) {
	name := translate.ChildName(w.turn, c.Step, c.CallID)
	w.mu.Lock()
	child := w.children[name]
	w.mu.Unlock()
	if child != nil && child.result != nil {
		return tool.Result{Spent: translate.SubAgentUsage(child.turn), Descendants: translate.Descendants(child.turn)}, nil
	}
	return j.journalUsage(ctx, w.engine, w.turn, name)
}

// endReplaced ends all other Turns with the name of a cancelled Turn that have not ended. Only a run with their
// manifests and flags could continue them, and they would block their Sessions. All that their ends need is in their
// journals.
func (j *localRun) endReplaced(ctx context.Context, t *v1alpha1.Turn) error {
	if t.Spec.DesiredState != v1alpha1.DesiredStateCancelled {
		return nil
	}
	others, err := journals.Others(ctx, j.store, t.Namespace, t.Name, string(t.UID))
	if err != nil {
		return err
	}
	e := j.bareEngine()
	for _, uid := range others {
		before, err := j.store.earlierRuns(ctx, uid)
		if err == nil {
			err = j.endForSession(ctx, e, uid)
		}
		switch {
		case isUnreadable(err):
			j.Env.Logf("note: an earlier Turn of this name, with the UID %s, stays as it is: %s", uid, err)
		case err != nil:
			return fmt.Errorf("failed to end the earlier Turn of this name with the UID %s: %w", uid, err)
		case before.last.Kind != journal.Finalized:
			j.Env.Logf("note: an earlier Turn of this name, with other manifests, had not ended: it is cancelled, too")
		}
	}
	return nil
}

// endForSession ends a Turn that no run continues, unless it has ended, and adds it to its Session, unless the Session
// has it already: an earlier run may have stopped between the two.
func (j *localRun) endForSession(ctx context.Context, e *turn.Engine, uid string) error {
	if _, err := e.EndOpenTurn(ctx, uid, "the turn was cancelled after its manifests had changed", j.endedUsage(e)); err != nil {
		return err
	}
	ended, err := e.OpenDeletedTurn(ctx, uid, j.endedUsage(e))
	if err != nil || ended == nil {
		return err
	}
	_, err = ended.Charge(ended.Session)
	return err
}

// isUnreadable reports whether an error is that of a journal that this build cannot read.
func isUnreadable(err error) bool {
	_, panicked := errors.AsType[*turn.PanicError](err)
	return panicked || errors.Is(err, journal.ErrDamaged) || errors.Is(err, journal.ErrNewer)
}

// journalUsage returns the usage of the Turn of a sub-agent according to its journal. It is empty if there is no
// journal, or if this build cannot read it: the usage is then not known.
func (j *localRun) journalUsage(ctx context.Context, e *turn.Engine, parent *v1alpha1.Turn, name string) (tool.Result, error) {
	spent, err := e.EndOpenTurn(ctx, string(childUID(parent, name)), "the turn that called this one ended first", j.endedUsage(e))
	if isUnreadable(err) {
		return tool.Result{}, nil
	}
	return tool.Result{Spent: spent}, err
}

// endedUsage returns journalUsage for the sub-agents of a Turn that ends from its journal alone.
func (j *localRun) endedUsage(e *turn.Engine) turn.SubAgentUsageFunc {
	return func(ctx context.Context, p turn.DeletedTurn, c loop.Intent, _ string) (tool.Result, error) {
		t := &v1alpha1.Turn{ObjectMeta: metav1.ObjectMeta{Name: p.Name, UID: types.UID(p.UID)}}
		return j.journalUsage(ctx, e, t, translate.ChildName(t, c.Step, c.CallID))
	}
}
