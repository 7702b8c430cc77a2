package cli

import (
	"context"
	"fmt"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/toolbox"
	"github.com/capstan-dev/capstan/internal/toolservers"
	"github.com/capstan-dev/capstan/internal/translate"
)

// toolbox returns the tools of the Agent of a Turn.
func (j *localRun) toolbox(w *localTurn) *toolbox.Box {
	box := w.box(w.turn, j.servers)
	box.Call = func(agent string) tool.Caller { return &subAgent{localRun: j, parent: w, agent: agent} }
	return box
}

// box returns the tools of the bundle's Agent for a Turn. The sub-agents among them cannot be called yet.
func (p *bundle) box(t *v1alpha1.Turn, servers toolbox.Servers) *toolbox.Box {
	box := &toolbox.Box{
		Agent: p.agent, MaxDepth: v1alpha1.MaxDepth(t.Spec.Limits, p.agent.Spec.Limits), Servers: servers,
		MaxDescendants: v1alpha1.MaxDescendants(t.Spec.Limits, p.agent.Spec.Limits),
		Server: func(_ context.Context, name string) (*v1alpha1.ToolServer, error) {
			server, ok := p.set.ToolServer(t.Namespace, name)
			return server, goneUnless(ok, kindToolServer, name)
		},
		SubAgent: func(_ context.Context, name string) (*v1alpha1.Agent, error) {
			agent, ok := p.set.Agent(t.Namespace, name)
			return agent, goneUnless(ok, kindAgent, name)
		},
	}
	if t.Spec.Depth != nil {
		box.Depth = int(*t.Spec.Depth)
	}
	return box
}

// goneUnless returns a NotFound error unless held is true. It is a safeguard: find has checked that the manifests
// hold all objects.
func goneUnless(held bool, kind, name string) error {
	if held {
		return nil
	}
	return apierrors.NewNotFound(schema.GroupResource{Group: v1alpha1.GroupVersion.Group, Resource: kind}, name)
}

// reachable is a cache of connections to ToolServers. It prints one note for each server that cannot be reached.
type reachable struct {
	*toolservers.Cache
	tell func(string)

	mu   sync.Mutex
	told map[string]bool
}

// Tools returns the current tools of a server. It returns toolbox.ErrUnknown if the server cannot be reached,
// because without a cluster no status holds its last known tools.
func (s *reachable) Tools(ctx context.Context, server *v1alpha1.ToolServer) ([]tool.Tool, error) {
	listing, err := s.Discover(ctx, server)
	if err == nil {
		return listing.Tools, nil
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.told == nil {
		s.told = map[string]bool{}
	}
	if name := server.Namespace + "/" + server.Name; !s.told[name] {
		s.told[name] = true
		s.tell(fmt.Sprintf("note: the tools of ToolServer %s are not offered: %s", name, err))
	}
	return nil, toolbox.ErrUnknown
}

// subAgent calls another Agent. Each call is a Turn of its own, which runs while the calling Turn is parked.
type subAgent struct {
	localRun *localRun
	parent   *localTurn
	agent    string
}

// Call creates or finds the child Turn. It returns the child's answer, or a *tool.Pending if there is none yet.
func (s *subAgent) Call(ctx context.Context, c tool.Call) (tool.Result, error) {
	t, err := translate.ChildOf(s.parent.turn, s.parent.agent, s.agent, c)
	if err != nil {
		return tool.Result{}, err
	}
	child, err := s.child(ctx, t)
	switch {
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
	t.UID, t.Generation = uidOf([]byte(string(s.parent.turn.UID)+"/"+t.Name)), 1
	before, err := s.localRun.store.earlierRuns(ctx, string(t.UID))
	if err != nil {
		return nil, err
	}
	member := s.parent.team[s.agent]
	if member == nil {
		return nil, fmt.Errorf("the manifests have no Agent %q", s.agent)
	}
	p := *member
	p.turn = t
	b := boundAfter(before, s.localRun.clock())
	b.write(t, before)
	w, err := s.localRun.begin(&p, t, b)
	if err != nil {
		return nil, err
	}
	s.parent.children[t.Name] = w
	return w, nil
}
