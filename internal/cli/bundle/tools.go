package bundle

import (
	"context"
	"fmt"
	"sync"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/cli/terminal"
	"github.com/capstan-dev/capstan/internal/netpolicy"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/toolbox"
	"github.com/capstan-dev/capstan/internal/toolservers"
)

// Box returns the tools of the bundle's Agent for a Turn. To call the sub-agents among them, the caller must set the
// field Call of the result.
func (p *Bundle) Box(t *v1alpha1.Turn, servers toolbox.Servers) *toolbox.Box {
	box := &toolbox.Box{
		Agent: p.Agent, MaxDepth: v1alpha1.MaxDepth(t.Spec.Limits, p.Agent.Spec.Limits), Servers: servers,
		MaxDescendants: v1alpha1.MaxDescendants(t.Spec.Limits, p.Agent.Spec.Limits),
		Server: func(_ context.Context, name string) (*v1alpha1.ToolServer, error) {
			server, err := p.toolServer(v1alpha1.ParseSharedReference(name))
			if err != nil {
				return nil, fmt.Errorf("%w: %w", toolbox.ErrUnusable, err)
			}
			return server, nil
		},
		SubAgent: func(_ context.Context, name string) (*v1alpha1.Agent, error) {
			member := p.Member(name)
			if member == nil {
				return nil, fmt.Errorf("%w: %w", toolbox.ErrUnusable, gone(kindAgent, name))
			}
			return member.Agent, nil
		},
	}
	if t.Spec.Depth != nil {
		box.Depth = int(*t.Spec.Depth)
	}
	return box
}

// gone returns a NotFound error. It is only a safeguard, because findTeam has checked that the manifests have all
// objects.
func gone(kind, name string) error {
	return apierrors.NewNotFound(schema.GroupResource{Group: v1alpha1.GroupVersion.Group, Resource: kind}, name)
}

// Connections is a cache of connections to ToolServers. It prints one note for each server that cannot be reached.
type Connections struct {
	*toolservers.Cache
	env *terminal.Environment

	mu sync.Mutex
	// noted holds the names of the servers about which a note was printed.
	noted map[string]bool
}

// Connect returns a cache of connections, which is empty at first. The caller must close it.
func (p *Bundle) Connect(env *terminal.Environment) *Connections {
	return &Connections{Cache: toolservers.NewCache(p.ReadSecret, netpolicy.NewLocalPolicy(), env.Now, logr.Discard()), env: env}
}

// Tools returns the current tools of a server. It returns toolbox.ErrUnknown if the server cannot be reached,
// because without a cluster no status holds its last known tools.
func (s *Connections) Tools(ctx context.Context, server *v1alpha1.ToolServer) ([]tool.Tool, error) {
	listing, err := s.Discover(ctx, server)
	if err == nil {
		return listing.Tools, nil
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.noted == nil {
		s.noted = map[string]bool{}
	}
	if name := server.Namespace + "/" + server.Name; !s.noted[name] {
		s.noted[name] = true
		s.env.Logf("note: the tools of ToolServer %s are not offered: %s", name, err)
	}
	return nil, toolbox.ErrUnknown
}
