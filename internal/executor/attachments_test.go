package executor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/redact"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
)

// TestArtifactsOfADeletedSession checks that a Session does not have the artifacts of a deleted Session of its name.
func TestArtifactsOfADeletedSession(t *testing.T) {
	inTalk := func(t *v1alpha1.Turn) { t.Spec.SessionRef = &v1alpha1.ObjectReference{Name: "talk"} }
	for name, tc := range map[string]struct {
		session types.UID // empty if the Session is gone
		ran     string    // the Session with which the source ran
		scope   v1alpha1.ArtifactScope
		want    string
	}{
		"the same Session":           {"new", "new", v1alpha1.ArtifactScopeSession, "there is no artifact"},
		"the Session before":         {"new", "old", v1alpha1.ArtifactScopeSession, "may have been created again"},
		"no scope":                   {"new", "old", "", "may have been created again"},
		"the Session is gone":        {"", "old", v1alpha1.ArtifactScopeSession, "was deleted"},
		"the source did not run":     {"new", "", v1alpha1.ArtifactScopeSession, "may have been created again"},
		"the scope is the namespace": {"new", "old", v1alpha1.ArtifactScopeNamespace, "there is no artifact"},
	} {
		t.Run(name, func(t *testing.T) {
			source := turnWith(inTalk)
			source.Name, source.UID = "source", "uid-source"
			e, j := newExecutor(t, interceptor.Funcs{}, source)
			if tc.ran != "" {
				payload := json.RawMessage(fmt.Sprintf(`{"history": {"sessionUID": %q}}`, tc.ran))
				if err := j.Append(t.Context(), "uid-source",
					journal.Entry{Seq: 1, Epoch: 1, Kind: journal.PreparationInput, Payload: payload}); err != nil {
					t.Fatal(err)
				}
			}
			var session *v1alpha1.Session
			if tc.session != "" {
				session = &v1alpha1.Session{ObjectMeta: metav1.ObjectMeta{Namespace: "helpdesk", Name: "talk", UID: tc.session}}
			}
			_, err := e.artifacts(turnWith(inTalk), session)(t.Context(), &v1alpha1.Attachment{
				Name: "plan", MediaType: "image/png",
				ArtifactRef: &v1alpha1.ArtifactReference{TurnName: "source", Name: "attachments/plan", Scope: tc.scope},
			}, 1<<20)
			if refused, ok := errors.AsType[*turn.ArtifactError](err); !ok || !strings.Contains(refused.Message, tc.want) {
				t.Errorf("error %v, want a refusal with %q", err, tc.want)
			}
		})
	}
}

// TestArtifactOfAnImpossibleTurn checks that a name that no Turn can have is refused at once. The client has an error
// for such a name that would be tried again.
func TestArtifactOfAnImpossibleTurn(t *testing.T) {
	for _, name := range []string{"a/b", "50%", ".", ".."} {
		e, _ := newExecutor(t, interceptor.Funcs{Get: func(
			_ context.Context, _ client.WithWatch, key client.ObjectKey, _ client.Object, _ ...client.GetOption,
		) error {
			return fmt.Errorf("invalid resource name %q", key.Name)
		}})
		_, err := e.artifacts(turnWith(), nil)(t.Context(), &v1alpha1.Attachment{
			Name: "plan", MediaType: "image/png",
			ArtifactRef: &v1alpha1.ArtifactReference{TurnName: name, Name: "call-1-1", Scope: v1alpha1.ArtifactScopeNamespace},
		}, 1<<20)
		if refused, ok := errors.AsType[*turn.ArtifactError](err); !ok || refused.Message != "it does not exist" {
			t.Errorf("%q: error %v, want the answer that the Turn does not exist", name, err)
		}
	}
}

// TestArtifactWithoutCredentials checks that the text of an artifact has none of the credentials of the namespaces of
// both Turns and of their Agents.
func TestArtifactWithoutCredentials(t *testing.T) {
	source := turnWith(func(t *v1alpha1.Turn) { t.Spec.AgentRef.Namespace = "platform" })
	source.Name, source.UID = "source", "uid-source"
	e, j := newExecutor(t, interceptor.Funcs{}, source)
	e.Credentials = redact.NewSet()
	credentials := map[string]string{
		"helpdesk": "sk-helpdesk-0123456789", "platform": "sk-platform-0123456789", "tools": "sk-tools-0123456789",
	}
	for namespace, credential := range credentials {
		e.Credentials.Put(namespace, "ToolServer/tickets", []string{credential})
	}
	output := journal.NewArtifact([]byte(strings.Join(slices.Collect(maps.Values(credentials)), " ")))
	payload, err := json.Marshal(loop.CallResult{ArtifactName: "call-1-1", Artifact: output.SHA256, Bytes: output.Bytes})
	if err != nil {
		t.Fatal(err)
	}
	if err := j.Append(t.Context(), "uid-source", journal.Entry{
		Seq: 1, Epoch: 1, Kind: journal.ToolFinished, Payload: payload, Artifacts: []journal.Artifact{output},
	}); err != nil {
		t.Fatal(err)
	}
	reader := turnWith(func(t *v1alpha1.Turn) { t.Spec.AgentRef.Namespace = "tools" })
	got, err := e.artifacts(reader, nil)(t.Context(), &v1alpha1.Attachment{
		Name: "tickets", MediaType: "text/plain",
		ArtifactRef: &v1alpha1.ArtifactReference{TurnName: "source", Name: "call-1-1", Scope: v1alpha1.ArtifactScopeNamespace},
	}, 1<<20)
	if err != nil || len(got) == 0 || strings.Contains(string(got), "sk-") {
		t.Errorf("the text is %q, %v; want it without credentials", got, err)
	}
}
