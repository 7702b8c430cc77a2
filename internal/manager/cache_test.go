package manager

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/translate"
)

func TestTurnsOf(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		roles  []string
		want   string
	}{
		"Both":       {"a possible leader needs all Turns that may be bound", nil, "status.completionTime="},
		"Controller": {"a possible leader needs all Turns that may be bound", []string{RoleController}, "status.completionTime="},
		"Executor": {
			"Turns of other executors are not its own",
			[]string{RoleExecutor},
			"status.executor.name=capstan-3,status.completionTime=",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := turnsOf(Options{Roles: tc.roles, ExecutorName: "capstan-3"}).String(); got != tc.want {
				t.Errorf("%s: selects %q, want %q", tc.reason, got, tc.want)
			}
		})
	}
}

func TestCacheDropsUnusedMetadata(t *testing.T) {
	full := &v1alpha1.Turn{ObjectMeta: metav1.ObjectMeta{
		Name: "one", ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubectl"}},
		Annotations: map[string]string{corev1.LastAppliedConfigAnnotation: "{}", "example.com/long": strings.Repeat("x", 250_000)},
		Labels:      map[string]string{"example.com/many": "yes", "capstan.dev/parent": "two", "capstan.dev/many": "yes"},
		Finalizers:  []string{"example.com/one", "example.com/two"},
		OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "v1", Kind: "ConfigMap", Name: "a", UID: "1"},
			{APIVersion: "capstan.dev/v1alpha1", Kind: "Turn", Name: "two", UID: "2", Controller: new(true)},
		},
	}}
	want := &v1alpha1.Turn{ObjectMeta: metav1.ObjectMeta{
		Name: "one", Labels: map[string]string{"capstan.dev/parent": "two"},
		OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "capstan.dev/v1alpha1", Kind: "Turn", Name: "two", UID: "2", Controller: new(true)},
		},
	}}
	for range 2 { // the cache may apply the transform to its own result
		got, err := withoutBookkeeping(full)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("the cache must keep only the metadata that is used (-want +got):\n%s", diff)
		}
	}
	agent := &v1alpha1.Agent{ObjectMeta: metav1.ObjectMeta{
		Name: "one", Finalizers: want.Finalizers, OwnerReferences: full.OwnerReferences, Labels: map[string]string{"team": "a"},
	}}
	if _, err := withoutBookkeeping(agent); err != nil || len(agent.OwnerReferences) > 0 || agent.Labels["team"] != "a" {
		t.Errorf("an Agent is %+v, %v; want its labels, but no owner", agent.ObjectMeta, err)
	}
	selects := func(b v1alpha1.BudgetAgents, a *v1alpha1.Agent) bool {
		rule := translate.Budget(&v1alpha1.Budget{Spec: v1alpha1.BudgetSpec{Selector: &v1alpha1.BudgetSelector{Agents: &b}}})
		return rule.SelectsAgent(client.ObjectKeyFromObject(a), a.Labels)
	}
	byLabel := &v1alpha1.LabelSelector{MatchLabels: map[string]v1alpha1.LabelValue{"capstan.dev/team": "a"}}
	for i := range 1000 {
		agent.Labels[fmt.Sprint("capstan.dev/", i)] = "yes"
	}
	live := agent.DeepCopy() // the API server is read if the cache has no memory for the Agent
	for range 2 {
		if _, err := withoutBookkeeping(agent); err != nil || len(agent.Labels) > 1 {
			t.Errorf("an Agent with 1001 labels keeps %d, %v; want at most one", len(agent.Labels), err)
		}
		for name, a := range map[string]*v1alpha1.Agent{"cached": agent, "live": live} {
			if !selects(v1alpha1.BudgetAgents{LabelSelector: byLabel}, a) {
				t.Errorf("a Budget with a label selector misses the %s Agent with 1001 labels", name)
			}
			if selects(v1alpha1.BudgetAgents{LabelSelector: byLabel, Names: []string{"two"}}, a) {
				t.Errorf("a Budget that names another Agent selects the %s Agent with 1001 labels", name)
			}
		}
	}
	long := full.DeepCopy()
	long.OwnerReferences[0].Name = strings.Repeat("x", 1<<20)
	if _, err := withoutBookkeeping(long); err != nil || len(long.OwnerReferences) > 0 {
		t.Errorf("an owner's name of 1 MiB is kept, %v", err)
	}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"capstan.dev/capacity": "5"}}}
	if _, err := withoutBookkeeping(lease); err != nil || lease.Annotations["capstan.dev/capacity"] != "5" {
		t.Errorf("a Lease has %v, %v; want its annotations kept: they hold its data", lease.Annotations, err)
	}
	tombstone := toolscache.DeletedFinalStateUnknown{Key: "a/b"}
	if got, err := withoutBookkeeping(tombstone); err != nil || got != any(tombstone) {
		t.Errorf("got %v, %v; want an unchanged value that is not an object", got, err)
	}
}

// TestCacheSharesSpecsWithRuns checks that the spec of a Turn that runs here is shared only once: other goroutines may
// read an object that the transform has returned before.
func TestCacheSharesSpecsWithRuns(t *testing.T) {
	shared := 0
	transform := withoutRequests("capstan-3", func(*v1alpha1.Turn) { shared++ })
	for name, want := range map[string]int{"capstan-3": 1, "capstan-4": 0} {
		in := &v1alpha1.Turn{Status: v1alpha1.TurnStatus{Executor: &v1alpha1.ExecutorBinding{Name: name, Epoch: 1}}}
		in.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}
		shared = 0
		for range 2 {
			if _, err := transform(in); err != nil {
				t.Fatal(err)
			}
		}
		if shared != want {
			t.Errorf("the spec of a Turn that runs on %q was shared %d times, want %d", name, shared, want)
		}
	}
}

// TestCacheDropsRequestsOfTurnsThatRunElsewhere checks that thousands of suspended Turns of 96 KiB each do not
// fill the memory.
func TestCacheDropsRequestsOfTurnsThatRunElsewhere(t *testing.T) {
	for name, tc := range map[string]struct {
		executor *v1alpha1.ExecutorBinding
		kept     bool
	}{
		"waits":           {nil, false},
		"runs here":       {&v1alpha1.ExecutorBinding{Name: "capstan-3", Epoch: 1}, true},
		"runs elsewhere":  {&v1alpha1.ExecutorBinding{Name: "capstan-4", Epoch: 1}, false},
		"was handed back": {&v1alpha1.ExecutorBinding{Epoch: 1}, false},
	} {
		t.Run(name, func(t *testing.T) {
			in := &v1alpha1.Turn{Spec: v1alpha1.TurnSpec{Message: "Hello"}, Status: v1alpha1.TurnStatus{Executor: tc.executor}}
			out, err := withoutRequests("capstan-3", func(*v1alpha1.Turn) {})(in)
			got, ok := out.(*v1alpha1.Turn)
			if err != nil || !ok || (got.Spec.Message == "Hello") != tc.kept {
				t.Errorf("the cache keeps %v, error %v; want the message kept: %t", out, err, tc.kept)
			}
		})
	}
}
