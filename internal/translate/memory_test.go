package translate_test

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/memories"
	"github.com/capstan-dev/capstan/internal/translate"
)

// TestIsWrittenByRequester checks from which messages memories of a user may be learned.
func TestIsWrittenByRequester(t *testing.T) {
	parent := metav1.OwnerReference{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: "Turn", Name: "parent", UID: "p", Controller: new(true),
	}
	for name, tc := range map[string]struct {
		reason string
		turn   v1alpha1.Turn
		want   bool
	}{
		"requester": {"the message is in the Turn", v1alpha1.Turn{Spec: v1alpha1.TurnSpec{Message: "Hello."}}, true},
		"ConfigMap": {
			"anyone who may write the ConfigMap can have written it",
			v1alpha1.Turn{Spec: v1alpha1.TurnSpec{MessageFrom: from("a")}},
			false,
		},
		"sub-agent": {
			"another Agent has written it", v1alpha1.Turn{
				ObjectMeta: metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{parent}}, Spec: v1alpha1.TurnSpec{Message: "Hello."},
			}, false,
		},
		"depth": {
			"the owner reference can be removed, but the depth cannot change",
			v1alpha1.Turn{Spec: v1alpha1.TurnSpec{Message: "Hello.", Depth: new(int32(1))}},
			false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := translate.IsWrittenByRequester(&tc.turn); got != tc.want {
				t.Errorf("IsWrittenByRequester = %t, want %t: %s", got, tc.want, tc.reason)
			}
		})
	}
}

// TestAgentOfRecordsAndMemories checks that a Turn whose reference names its own namespace is recorded under the same
// Agent as one whose reference has no namespace, and uses the same memories.
func TestAgentOfRecordsAndMemories(t *testing.T) {
	a := &v1alpha1.Agent{Spec: v1alpha1.AgentSpec{Memory: &v1alpha1.AgentMemory{Learning: &v1alpha1.AgentLearning{
		Scopes: []v1alpha1.LearnedScope{v1alpha1.LearnedScope(memories.User)},
	}}}}
	for namespace, want := range map[string]string{"": "support", "helpdesk": "support", "platform": "platform/support"} {
		o := &v1alpha1.Turn{ObjectMeta: metav1.ObjectMeta{Namespace: "helpdesk"}}
		o.Spec.AgentRef = v1alpha1.SharedReference{Namespace: namespace, Name: "support"}
		if got := translate.About(o, nil).Agent; got != want {
			t.Errorf("the record of a Turn of an Agent of namespace %q has Agent %q, want %q", namespace, got, want)
		}
		owners := translate.MemoryOwners(o, a, "", "ada")
		if len(owners) != 1 || owners[0].Agent != want {
			t.Errorf("a Turn of an Agent of namespace %q uses the memories of %+v, want those of Agent %q", namespace, owners, want)
		}
	}
}
