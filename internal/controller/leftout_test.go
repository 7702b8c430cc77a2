package controller

import (
	"context"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/bytebudget"
	"github.com/capstan-dev/capstan/internal/objectbudget"
	"github.com/capstan-dev/capstan/internal/sharing"
)

// TestReportOfAnObjectLeftOut checks the status of an Agent that was Stalled, and whose newer spec the cache has
// dropped.
func TestReportOfAnObjectLeftOut(t *testing.T) {
	a := subAgent("desk")
	finding{reason: v1alpha1.ReasonInvalidTimeZone}.setReady(&a.Status.Conditions, 1, now)
	a.Generation = 2
	c := inMemory(t, a)
	l := &LeftOut{Client: c, Live: c, Objects: objectbudget.New(bytebudget.New(1<<10, 1)), Now: func() time.Time { return now }}
	cached := leftOut(t, a.DeepCopy())
	if _, err := l.report(t.Context(), cached, &cached.Status.Conditions, &cached.Status.ObservedGeneration); err != nil {
		t.Fatal(err)
	}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(a), a); err != nil {
		t.Fatal(err)
	}
	is := a.Status.Conditions
	if len(is) != 1 || is[0].Type != v1alpha1.ConditionReady || is[0].Reason != v1alpha1.ReasonTooManyObjects {
		t.Errorf("the conditions are %+v, want Ready alone, with the reason TooManyObjects", is)
	}
	if got := a.Status.ObservedGeneration; got != 2 {
		t.Errorf("observedGeneration is %d, want 2: otherwise Argo CD waits for the controller", got)
	}
}

// TestForeignObjectsLeftOut checks that objects of another namespace that the cache holds without their content are
// reported as such to the namespaces that may use them, and only to those.
func TestForeignObjectsLeftOut(t *testing.T) {
	everyone := &v1alpha1.AllowedNamespaces{From: v1alpha1.NamespacesFromAll}
	const mayNot = `cannot be used in namespace "helpdesk": it does not exist, or its spec.allowedNamespaces does not allow ` +
		`this namespace: ask its owner, or use an object of this namespace`
	type results struct{ profile, models, server, subAgent, judges, turn string }
	for name, tc := range map[string]struct {
		allowed *v1alpha1.AllowedNamespaces
		want    results
	}{
		"with consent": {everyone, results{
			profile:  `False ProfileNotReady PromptProfile "owner/x" is not ready (TooManyObjects)`,
			models:   `False ProviderNotReady ModelProvider "owner/x" is not ready (TooManyObjects)`,
			server:   `False ToolServerNotReady the tools of ToolServer "owner/x" are not known (TooManyObjects)`,
			subAgent: `True Resolved sub-agent "owner/x" is not ready (TooManyObjects): its turns wait until it is`,
			judges:   `False ProviderNotReady ModelProvider "owner/x" is not ready (TooManyObjects)`,
			turn:     `Agent "owner/x" is not ready (TooManyObjects)`,
		}},
		"without consent": {nil, results{
			profile:  `False ReferenceNotAllowed PromptProfile "owner/x" ` + mayNot,
			models:   `False ReferenceNotAllowed ModelProvider "owner/x" ` + mayNot,
			server:   `False ReferenceNotAllowed ToolServer "owner/x" ` + mayNot,
			subAgent: `False ReferenceNotAllowed Agent "owner/x" ` + mayNot,
			judges:   `False ReferenceNotAllowed ModelProvider "owner/x" ` + mayNot,
			turn:     `Agent "owner/x" ` + mayNot,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			ref := v1alpha1.SharedReference{Namespace: "owner", Name: "x"}
			model := []v1alpha1.ModelReference{{ProviderRef: ref, Model: "m"}}
			desk := subAgent("desk")
			desk.Spec.PromptProfileRef, desk.Spec.Models = ref, model
			desk.Spec.Evaluation = &v1alpha1.AgentEvaluation{Models: model}
			profile, provider := &v1alpha1.PromptProfile{}, &v1alpha1.ModelProvider{}
			server, sub := newServer("x", toolOf("search", v1alpha1.ToolEffectReadOnly)), subAgent("x")
			profile.Spec.AllowedNamespaces, provider.Spec.AllowedNamespaces = tc.allowed, tc.allowed
			server.Spec.AllowedNamespaces, sub.Spec.AllowedNamespaces = tc.allowed, tc.allowed
			for _, o := range []client.Object{profile, provider, server, sub} {
				o.SetNamespace(ref.Namespace)
				o.SetName(ref.Name)
			}
			c := inMemory(t, desk, leftOut(t, profile), leftOut(t, provider), leftOut(t, server), leftOut(t, sub))
			clock := func() time.Time { return now }
			checker := sharing.New(c, clock, nil)
			r := &AgentReconciler{
				Client: c, Now: clock, ServerClock: clock, ConfigMaps: texts{}.in, ProbeInterval: time.Minute, Sharing: checker,
			}
			tools := func(entry v1alpha1.AgentTool) func(context.Context, *v1alpha1.Agent) (*finding, error) {
				return func(ctx context.Context, a *v1alpha1.Agent) (*finding, error) {
					with := a.DeepCopy()
					with.Spec.Tools = []v1alpha1.AgentTool{entry}
					f, _, err := r.resolveTools(ctx, with)
					return &f, err
				}
			}
			for _, check := range []struct {
				what, want string
				find       func(context.Context, *v1alpha1.Agent) (*finding, error)
			}{
				{"profile", tc.want.profile, func(ctx context.Context, a *v1alpha1.Agent) (*finding, error) {
					f, _, err := r.resolveProfile(ctx, a)
					return &f, err
				}},
				{"models", tc.want.models, func(ctx context.Context, a *v1alpha1.Agent) (*finding, error) {
					f, err := r.resolveModels(ctx, a)
					return &f, err
				}},
				{"server", tc.want.server, tools(v1alpha1.AgentTool{ServerRef: &ref})},
				{"sub-agent", tc.want.subAgent, tools(v1alpha1.AgentTool{AgentRef: &ref})},
				{"judges", tc.want.judges, r.resolveJudges},
			} {
				if f, err := check.find(t.Context(), desk); err != nil || textOf(f) != check.want {
					t.Errorf("%s: got %q, error %v; want %q", check.what, textOf(f), err, check.want)
				}
			}

			child := turnWith()
			child.Spec.AgentRef = ref
			turns := &TurnReconciler{Client: c, Sharing: checker}
			v := snapshot{turn: child, now: now}
			var err error
			if v.agent, v.refusedAgent, err = turns.agentOf(t.Context(), child); err != nil {
				t.Fatal(err)
			}
			d, waits := whenAgentNotReady(v)
			if !waits || d.reason != v1alpha1.TurnReasonWaitingForAgent || !strings.HasPrefix(d.message, tc.want.turn) {
				t.Errorf("the decision about a Turn is %+v, want a wait because %q", d, tc.want.turn)
			}
		})
	}
}
