package decisions

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	clientfake "sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/yaml"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/cli/output"
	"github.com/capstan-dev/capstan/internal/cli/terminal"
)

// TestDecisionsAsYAML checks that several decisions of one command are documents of one YAML stream, whether the
// command has made them or found them.
func TestDecisionsAsYAML(t *testing.T) {
	t.Parallel()
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	turn := &v1alpha1.Turn{}
	turn.Namespace, turn.Name, turn.UID = "helpdesk", "first", "uid-1"
	var out bytes.Buffer
	c := &pendingCalls{
		Options: &Options{Env: terminal.Environment{Out: &out, Err: io.Discard}, Verb: Approve, Output: output.YAML},
		api:     clientfake.NewClientBuilder().WithScheme(scheme).Build(), turn: turn, who: "ada",
	}
	for _, id := range []string{"call_1", "call_2", "call_1"} {
		if err := c.create(t.Context(), v1alpha1.PendingApproval{RequestID: "request of " + id, CallID: id}); err != nil {
			t.Fatal(err)
		}
	}
	var calls []string
	for reader := utilyaml.NewYAMLReader(bufio.NewReader(&out)); ; {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		var a v1alpha1.ToolApproval
		if err := yaml.UnmarshalStrict(document, &a); err != nil {
			t.Fatalf("%v in\n%s", err, document)
		}
		calls = append(calls, a.Kind+" "+a.Spec.CallID)
	}
	want := []string{"ToolApproval call_1", "ToolApproval call_2", "ToolApproval call_1"}
	if diff := cmp.Diff(want, calls); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
