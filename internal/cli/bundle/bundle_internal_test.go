package bundle

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/manifest"
)

func TestLocated(t *testing.T) {
	t.Parallel()
	named := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "default", Name: name} }
	p := &Bundle{
		Set: &manifest.Set{}, Turn: &v1alpha1.Turn{ObjectMeta: named("first")},
		Agent: &v1alpha1.Agent{ObjectMeta: named("support")}, Profile: &v1alpha1.PromptProfile{ObjectMeta: named("friendly")},
	}
	for name, tc := range map[string]struct{ reason, message, want string }{
		"a field of the profile": {
			"the object's name is added", "PromptProfile spec.mode: bad",
			"PromptProfile default/friendly: spec.mode: bad",
		},
		"a whole spec": {"the object's name is added", "Turn spec: too large", "Turn default/first: spec: too large"},
		"metadata": {
			"the object's name is added", "Agent metadata.name: must be given",
			"Agent default/support: metadata.name: must be given",
		},
		"a tool":        {"tools belong to the Agent", "tools[0].name: bad", "Agent default/support: tools[0].name: bad"},
		"a sentence":    {"a kind without a field names no object", "Turn after Turn fails", "Turn after Turn fails"},
		"another error": {"the error stays unchanged", "failed to read it", "failed to read it"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := p.Located(tc.message).Error(); got != tc.want {
				t.Errorf("%s: want %q, have %q", tc.reason, tc.want, got)
			}
		})
	}
}
