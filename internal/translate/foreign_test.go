package translate_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/translate"
)

// shared returns an Agent of the namespace "owner" that refers to objects of this namespace and of other namespaces.
func shared() *v1alpha1.Agent {
	return &v1alpha1.Agent{
		ObjectMeta: metav1.ObjectMeta{Namespace: "owner", Name: "helper"},
		Spec: v1alpha1.AgentSpec{
			PromptProfileRef: v1alpha1.SharedReference{Name: "house"},
			Models: []v1alpha1.ModelReference{
				{ProviderRef: v1alpha1.SharedReference{Name: "demo"}},
				{ProviderRef: v1alpha1.SharedReference{Namespace: "third", Name: "demo"}},
			},
			Tools: []v1alpha1.AgentTool{
				{ServerRef: &v1alpha1.SharedReference{Name: "tickets"}},
				{AgentRef: &v1alpha1.SharedReference{Name: "deep"}},
				{AgentRef: &v1alpha1.SharedReference{Namespace: "team", Name: "support"}},
			},
		},
	}
}

func TestForeign(t *testing.T) {
	t.Parallel()
	a := shared()
	got, err := translate.Foreign(a)
	if err != nil {
		t.Fatal(err)
	}
	names := []string{got.Spec.PromptProfileRef.String()}
	for _, m := range got.Spec.Models {
		names = append(names, m.ProviderRef.String())
	}
	names = append(names, got.Spec.Tools[0].ServerRef.String(), got.Spec.Tools[1].AgentRef.String(), got.Spec.Tools[2].AgentRef.String())
	want := []string{"owner/house", "owner/demo", "third/demo", "owner/tickets", "owner/deep", "team/support"}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("the references (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(shared(), a); diff != "" {
		t.Errorf("the Agent of the cache has changed (-want +got):\n%s", diff)
	}
	a.Spec.Tools[0].ServerRef.Name = strings.Repeat("n", 248)
	if _, err := translate.Foreign(a); err == nil || !strings.Contains(err.Error(), "too long for the use in another namespace") {
		t.Errorf("error for a name that is too long for a status = %v, want one that says so", err)
	}
}

// TestChildOfSharedAgents checks that the Turns of a called Agent always refer to this Agent in the same way, whichever
// Agent calls it.
func TestChildOfSharedAgents(t *testing.T) {
	t.Parallel()
	parent := &v1alpha1.Turn{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "parent", UID: "p"}}
	for name, want := range map[string]v1alpha1.SharedReference{
		"deep":         {Name: "deep"},
		"team/support": {Name: "support"},
		"owner/helper": {Namespace: "owner", Name: "helper"},
	} {
		c, err := translate.ChildOf(parent, shared(), name, tool.Call{Step: 1, CallID: "c", Arguments: []byte(`{"task": "t"}`)})
		if err != nil {
			t.Fatal(err)
		}
		if c.Spec.AgentRef != want || c.Namespace != "team" {
			t.Errorf("the Turn of %q is in namespace %q and names %+v, want %+v", name, c.Namespace, c.Spec.AgentRef, want)
		}
	}
}
