package localrun

import (
	"context"
	"errors"
	"fmt"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/cli/bundle"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
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
	t, err := translate.ChildOf(s.parent.turn, s.parent.Agent, s.agent, c)
	if err != nil {
		return tool.Result{}, err
	}
	s.localRun.traces.Of(s.parent.turn).AnnotateChild(t, c.Step, c.CallID)
	child, err := s.child(ctx, t)
	refusal, refused := errors.AsType[*tool.Error](err)
	switch {
	case refused:
		return tool.Result{}, refusal
	case err != nil:
		return tool.Result{}, &tool.Error{Class: tool.Unavailable, Message: "the sub-agent cannot run: " + err.Error(), Err: err}
	case child.result == nil:
		return tool.Result{}, &tool.Pending{Turn: t.Name}
	}
	return translate.ChildResult(child.turn, child.result.Text)
}

// child returns the child Turn of a call. A repeated call gets the same child.
func (s *subAgent) child(ctx context.Context, t *v1alpha1.Turn) (*localTurn, error) {
	s.parent.mu.Lock()
	defer s.parent.mu.Unlock()
	if known := s.parent.children[t.Name]; known != nil {
		return known, nil
	}
	t.UID, t.Generation = bundle.UIDOf([]byte(string(s.parent.turn.UID)+"/"+t.Name)), 1
	before, err := s.localRun.store.earlierRuns(ctx, string(t.UID))
	if err != nil {
		return nil, err
	}
	if before.last.Seq == 0 { // no earlier run has created the child
		if err := s.mayCreate(ctx); err != nil {
			return nil, err
		}
	}
	member := s.parent.Member(s.agent)
	if member == nil {
		return nil, fmt.Errorf("the manifests have no Agent %q", s.agent)
	}
	p := *member
	p.Turn = t
	b := boundAfter(before, s.localRun.Clock())
	turnstatus.Bind(t, b.Binding, b.end())
	w, err := s.localRun.begin(ctx, &p, t, b)
	if err != nil {
		return nil, err
	}
	s.parent.children[t.Name] = w
	return w, nil
}
