package executor

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// equipped returns surroundings whose Agent has these tools, and whose profile pins the tools search and ask.
func equipped(tools ...v1alpha1.AgentTool) []client.Object {
	all := surroundings()
	all[0].(*v1alpha1.Agent).Spec.Tools = tools
	all[1].(*v1alpha1.PromptProfile).Spec.PinnedTools = []string{"search", "ask"}
	return all
}

func agentTool(name string) v1alpha1.AgentTool {
	return v1alpha1.AgentTool{AgentRef: &v1alpha1.SharedReference{Name: name}}
}

func serverTools(name string) v1alpha1.AgentTool {
	return v1alpha1.AgentTool{ServerRef: &v1alpha1.SharedReference{Name: name}}
}

func TestToolboxOfATurn(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		turn   func(*v1alpha1.Turn)
		tools  []v1alpha1.AgentTool
		// want is the name of the only tool, empty for none.
		want string
		wait string
	}{
		"a sub-agent": {"it exists", func(*v1alpha1.Turn) {}, []v1alpha1.AgentTool{agentTool("support")}, "support", ""},
		"at the maximum depth": {
			"it must not call sub-agents",
			func(t *v1alpha1.Turn) { t.Spec.Depth = new(int32(3)) },
			[]v1alpha1.AgentTool{agentTool("support")},
			"", "",
		},
		"without depth": {
			"the limit of the Turn is 0",
			func(t *v1alpha1.Turn) { t.Spec.Limits = &v1alpha1.Limits{MaxDepth: new(int32(0))} },
			[]v1alpha1.AgentTool{agentTool("support")},
			"", "",
		},
		"without descendants": {
			"the limit of the Turn is 0",
			func(t *v1alpha1.Turn) { t.Spec.Limits = &v1alpha1.Limits{MaxDescendants: new(int32(0))} },
			[]v1alpha1.AgentTool{agentTool("support")},
			"", "",
		},
		"a sub-agent that is gone": {
			"the Turn waits for it", func(*v1alpha1.Turn) {},
			[]v1alpha1.AgentTool{agentTool("gone")},
			"", `Agent "support" is not ready: Agent "gone" does not exist`,
		},
		"a server that is gone": {
			"the Turn waits for it", func(*v1alpha1.Turn) {},
			[]v1alpha1.AgentTool{serverTools("gone")},
			"", `Agent "support" is not ready: ToolServer "gone" does not exist`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			e, _ := newExecutor(t, interceptor.Funcs{}, append(equipped(tc.tools...), turnWith(tc.turn))...)
			in, err := newRun(t, e).input(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			offers, err := in.Toolbox.Offers(t.Context())
			if tc.wait != "" {
				if wait, ok := errors.AsType[*notReadyError](err); !ok ||
					wait.reason != v1alpha1.TurnReasonWaitingForAgent || wait.message != tc.wait {
					t.Errorf("error %v, want to wait: %s", err, tc.wait)
				}
				return
			}
			got := ""
			for _, o := range offers {
				for _, offered := range o.Tools {
					got += offered.Name
				}
			}
			if got != tc.want || err != nil {
				t.Errorf("offers %q (error %v), want %q: %s", got, err, tc.want, tc.reason)
			}
		})
	}
}

// TestEffectsOfToolServers checks that only a ToolServer that is gone makes its tools Destructive. While a ToolServer
// cannot be read, the effect of its tools is not known, and the run must try again.
func TestEffectsOfToolServers(t *testing.T) {
	server := &v1alpha1.ToolServer{
		ObjectMeta: metav1.ObjectMeta{Namespace: "helpdesk", Name: "tickets"},
		Spec:       v1alpha1.ToolServerSpec{Tools: []v1alpha1.ToolDeclaration{{Name: "look", Effect: v1alpha1.ToolEffectReadOnly}}},
	}
	var failure error
	get := func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
		if _, ok := o.(*v1alpha1.ToolServer); ok && failure != nil {
			return failure
		}
		return c.Get(ctx, key, o, opts...)
	}
	e, _ := newExecutor(t, interceptor.Funcs{Get: get}, append(equipped(serverTools("tickets")), server, turnWith())...)
	in, err := newRun(t, e).input(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	effect := func() (tool.Effect, error) {
		return in.Toolbox.Effect(t.Context(), tool.Tool{Source: tool.Source{Server: "tickets", Name: "look"}, Effect: tool.ReadOnly})
	}
	if got, err := effect(); got != tool.ReadOnly || err != nil {
		t.Errorf("%q (error %v), want the declared effect", got, err)
	}
	failure = broken
	if got, err := effect(); !errors.Is(err, broken) || outcomeOf(nil, err, false, false) != tryAgain {
		t.Errorf("%q (error %v) while the ToolServer cannot be read, want another attempt of the run", got, err)
	}
	failure = nil
	if err := e.Client.Delete(t.Context(), server); err != nil {
		t.Fatal(err)
	}
	if got, err := effect(); got != tool.Destructive || err != nil {
		t.Errorf("%q (error %v) of a ToolServer that is gone, want Destructive", got, err)
	}
}

func TestPinnedTools(t *testing.T) {
	for name, tc := range map[string]struct {
		reason  string
		objects []client.Object
		want    []string
	}{
		"of a profile":              {"its names", equipped(agentTool("support")), []string{"search", "ask"}},
		"of an agent without tools": {"there are no tools to choose from", equipped(), nil},
		"of a deleted profile":      {"the preparation reports it", append(equipped(agentTool("support"))[:1:1], equipped()[2]), nil},
	} {
		t.Run(name, func(t *testing.T) {
			e, _ := newExecutor(t, interceptor.Funcs{}, append(tc.objects, turnWith())...)
			in, err := newRun(t, e).input(t.Context())
			if diff := cmp.Diff(tc.want, in.Selection.Pinned); diff != "" || err != nil {
				t.Errorf("%s (error %v): -want +got:\n%s", tc.reason, err, diff)
			}
		})
	}
}

// TestTimeOfAParkedTurn checks that the wait for an approval does not count as time of the Turn.
func TestTimeOfAParkedTurn(t *testing.T) {
	e, _ := newExecutor(t, interceptor.Funcs{},
		append(surroundings(), turnWith(func(t *v1alpha1.Turn) { t.Status.ParkedMilliseconds = 400 }))...)
	in, err := newRun(t, e).input(t.Context())
	if err != nil || in.Timeout != in.Limit-600*1_000_000 {
		t.Errorf("%s of %s are left (error %v), want all but the 600 ms that it ran", in.Timeout, in.Limit, err)
	}
}
