package toolbox_test

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/toolbox"
)

// fakeServers maps the name of a server to its answer when it is asked for its tools.
type fakeServers map[string]func() ([]tool.Tool, error)

func (f fakeServers) Tools(_ context.Context, s *v1alpha1.ToolServer) ([]tool.Tool, error) {
	return f[s.Name]()
}

// Current returns the same as Tools.
func (f fakeServers) Current(ctx context.Context, s *v1alpha1.ToolServer) ([]tool.Tool, error) {
	return f.Tools(ctx, s)
}

func (fakeServers) Caller(*v1alpha1.ToolServer, string) tool.Caller { return nil }

func boxOf(servers fakeServers, names ...string) *toolbox.Box {
	agent := &v1alpha1.Agent{}
	for _, name := range names {
		agent.Spec.Tools = append(agent.Spec.Tools, v1alpha1.AgentTool{ServerRef: &v1alpha1.SharedReference{Name: name}})
	}
	return &toolbox.Box{Agent: agent, Servers: servers, Server: func(_ context.Context, name string) (*v1alpha1.ToolServer, error) {
		return &v1alpha1.ToolServer{ObjectMeta: metav1.ObjectMeta{Name: name}}, nil
	}}
}

func TestOffersOfServers(t *testing.T) {
	find := tool.Tool{Tool: prompt.Tool{Name: "find"}}
	broken := errors.New("the process stops")
	servers := fakeServers{
		"web":    func() ([]tool.Tool, error) { return []tool.Tool{find}, nil },
		"empty":  func() ([]tool.Tool, error) { return nil, nil },
		"new":    func() ([]tool.Tool, error) { return nil, toolbox.ErrUnknown },
		"broken": func() ([]tool.Tool, error) { return nil, broken },
	}
	for name, tc := range map[string]struct {
		reason string
		names  []string
		want   []tool.Offer
		err    error
	}{
		"a server without tools": {"the tools are known: there are none", []string{"empty"}, []tool.Offer{{Server: "empty"}}, nil},
		"a server with unknown tools": {
			"the other servers offer their tools, and the Turn can name the missing server",
			[]string{"new", "web"},
			[]tool.Offer{{Server: "new", Missing: true}, {Server: "web", Tools: []tool.Tool{find}}},
			nil,
		},
		"a failure": {"a later run may succeed", []string{"new", "broken"}, nil, broken},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := boxOf(servers, tc.names...).Offers(t.Context())
			if diff := cmp.Diff(tc.want, got); diff != "" || !errors.Is(err, tc.err) {
				t.Errorf("%s: error %v; -want +got:\n%s", tc.reason, err, diff)
			}
		})
	}
}
