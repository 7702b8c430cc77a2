package translate_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/redact"
	"github.com/capstan-dev/capstan/internal/runtime/attachment"
	"github.com/capstan-dev/capstan/internal/runtime/invalid"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/translate"
)

// attached returns a Turn with a text from a ConfigMap and one from a URL.
func attached() *v1alpha1.Turn {
	return &v1alpha1.Turn{Spec: v1alpha1.TurnSpec{Attachments: []v1alpha1.Attachment{
		{Name: "a", MediaType: "text/plain", ConfigMapKeyRef: &v1alpha1.ConfigMapKeyReference{Name: "files", Key: "a.txt"}},
		{Name: "b", MediaType: "application/json", URL: "https://files.example/b.json"},
	}}}
}

func TestAttach(t *testing.T) {
	unreachable, notFound := errors.New("the API server is unreachable"), errors.New("status 404")
	values := translate.ConfigMapContents(map[string]string{"b": "x"}, map[string][]byte{"a.txt": []byte("one")})
	existing := func(_ context.Context, ref v1alpha1.ConfigMapKeyReference) (string, error) {
		return translate.ConfigMapValue(ref, values)
	}
	noServer := func(context.Context, v1alpha1.ConfigMapKeyReference) (string, error) { return "", unreachable }
	answer := func(data []byte, err error) translate.Fetch {
		return func(context.Context, string, string, int) ([]byte, error) { return data, err }
	}
	fetch := func(_ context.Context, url, mediaType string, maxBytes int) ([]byte, error) {
		if url != "https://files.example/b.json" || mediaType != "application/json" || maxBytes != 262144 {
			t.Errorf("fetch of %q as %q with at most %d bytes, want that of attachment b", url, mediaType, maxBytes)
		}
		return []byte(`{"two":2}`), nil
	}
	for name, tc := range map[string]struct {
		maps  translate.ConfigMaps
		fetch translate.Fetch
		want  string // the error
	}{
		"both":                   {existing, fetch, ""},
		"no ConfigMap":           {missing, fetch, `Turn spec.attachments[0].configMapKeyRef: ConfigMap "files" does not exist`},
		"API server unreachable": {noServer, fetch, unreachable.Error()},
		"URL not found":          {existing, answer(nil, notFound), "Turn spec.attachments[1].url: status 404"},
		"URLs not allowed": {
			existing, nil,
			"Turn spec.attachments[1].url: the operator of the cluster does not allow attachments from URLs: use a ConfigMap",
		},
		"empty content":         {existing, answer(nil, nil), "must not be empty"},
		"content of other type": {existing, answer([]byte{0}, nil), "not a text in UTF-8"},
	} {
		t.Run(name, func(t *testing.T) {
			attach, maxBytes := translate.Attach(attached(), translate.AttachmentSources{ConfigMaps: tc.maps, Fetch: tc.fetch})
			if maxBytes != 2*262144 {
				t.Errorf("the maximum size is %d bytes, want %d", maxBytes, 2*262144)
			}
			got, err := attach(t.Context())
			if tc.want != "" {
				if err == nil || !strings.Contains(err.Error(), tc.want) {
					t.Errorf("error is %v, want %q", err, tc.want)
				}
				return
			}
			if err != nil || len(got) != 2 || string(got[0].Data) != "one" || got[1].Name != "b" || string(got[1].Data) != `{"two":2}` {
				t.Errorf("contents are %+v, %v", got, err)
			}
		})
	}
	if attach, maxBytes := translate.Attach(&v1alpha1.Turn{}, translate.AttachmentSources{}); attach != nil || maxBytes != 0 {
		t.Error("Attach returns a function for a Turn without attachments")
	}
}

// missing is a translate.ConfigMaps of a namespace without ConfigMaps.
func missing(_ context.Context, ref v1alpha1.ConfigMapKeyReference) (string, error) {
	return translate.ConfigMapValue(ref, nil)
}

// TestFetchOfCancelledTurn checks that the error is the cause of the context if the context ends during a fetch. An
// *invalid.Error would end the Turn.
func TestFetchOfCancelledTurn(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("the executor stops")
	turn := attached()
	turn.Spec.Attachments = turn.Spec.Attachments[1:]
	attach, _ := translate.Attach(turn, translate.AttachmentSources{Fetch: func(context.Context, string, string, int) ([]byte, error) {
		cancel(stop)
		return nil, errors.New("no answer")
	}})
	if _, err := attach(ctx); !errors.Is(err, stop) {
		t.Errorf("error is %v, want the cause of the context", err)
	}
}

func TestCheckAttachments(t *testing.T) {
	provider := func(dialect v1alpha1.Dialect, capabilities ...v1alpha1.ModelCapability) *v1alpha1.ModelProvider {
		return &v1alpha1.ModelProvider{Spec: v1alpha1.ModelProviderSpec{
			Type: v1alpha1.ProviderTypeOpenAI, Dialect: dialect, Models: []v1alpha1.Model{{Name: "m", Capabilities: capabilities}},
		}}
	}
	objects := map[string]*v1alpha1.ModelProvider{
		"blind": provider("OpenAI"), "seeing": provider("OpenAI", v1alpha1.CapabilityImages),
		"some": provider("XAI", v1alpha1.CapabilityImages), "text": provider("DeepSeek", v1alpha1.CapabilityImages),
	}
	find := func(ref v1alpha1.SharedReference) (*v1alpha1.ModelProvider, error) { return objects[ref.Name], nil }
	const begin = `Turn spec.attachments: must be accepted by a model of Agent "eyes": ModelProvider `
	for name, tc := range map[string]struct {
		mediaType string
		chain     []string
		want      string
	}{
		"a text needs nothing": {"text/csv", []string{"blind"}, ""},
		"one model is enough":  {"image/png", []string{"blind", "seeing"}, ""},
		"a missing provider":   {"image/png", []string{"blind", "absent"}, ""},
		"no capability": {"image/png", []string{"blind", "text"}, begin + `"blind": model "m" does not accept attachments of type ` +
			`image/png: add the capability Images to the model, and set requests.images to On if the dialect does not accept them, ` +
			`or use another model`},
		"another type of image": {"image/gif", []string{"some"}, begin + `"some": model "m" does not accept attachments of type ` +
			`image/gif; it accepts the image types image/png, image/jpeg: use another type or model`},
		"a PDF": {"application/pdf", []string{"seeing"}, begin + `"seeing": model "m" does not accept attachments of type ` +
			`application/pdf: add the capability Files to the model, and set requests.files to On if the dialect does not accept them, ` +
			`or use another model`},
	} {
		t.Run(name, func(t *testing.T) {
			a := &v1alpha1.Agent{}
			a.Name = "eyes"
			for _, p := range tc.chain {
				a.Spec.Models = append(a.Spec.Models, v1alpha1.ModelReference{ProviderRef: v1alpha1.SharedReference{Name: p}, Model: "m"})
			}
			turn := &v1alpha1.Turn{Spec: v1alpha1.TurnSpec{Attachments: []v1alpha1.Attachment{{Name: "a", MediaType: tc.mediaType}}}}
			err := translate.CheckAttachments(turn, a, find)
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || err.Error() != tc.want) {
				t.Errorf("error is %v, want %q", err, tc.want)
			}
		})
	}
}

// TestAttachmentThatRedactionMakesTooLong checks that the error names the redaction and both sizes.
func TestAttachmentThatRedactionMakesTooLong(t *testing.T) {
	rules, err := redact.NewRules("spec.redaction", []redact.PatternRule{{Name: "a", Pattern: "a", Replacement: "removed"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Repeat("b", attachment.MaxTextBytes-1) + "a"
	attach, _ := translate.Attach(&v1alpha1.Turn{Spec: v1alpha1.TurnSpec{Attachments: []v1alpha1.Attachment{{
		Name: "a", MediaType: "text/plain", ConfigMapKeyRef: &v1alpha1.ConfigMapKeyReference{Name: "files", Key: "a"},
	}}}}, translate.AttachmentSources{
		ConfigMaps: func(context.Context, v1alpha1.ConfigMapKeyReference) (string, error) { return text, nil },
		Redaction:  redact.NewTurnRedactor(t.Context(), rules, nil),
	})
	const want = "Turn spec.attachments[0].configMapKeyRef: the redaction of the Agent makes the content longer, from 262144 to " +
		"262150 bytes, and it may have at most 262144: use a smaller content, or shorter replacements in spec.redaction"
	_, err = attach(t.Context())
	if _, ends := errors.AsType[*invalid.Error](err); !ends || err.Error() != want {
		t.Errorf("error is %v, want %q", err, want)
	}
}

// TestAttachArtifact checks the errors of artifacts, and that U+FFFD replaces the control characters in a text.
func TestAttachArtifact(t *testing.T) {
	asks := &v1alpha1.Turn{Spec: v1alpha1.TurnSpec{Attachments: []v1alpha1.Attachment{{
		Name: "a", MediaType: "text/plain", ArtifactRef: &v1alpha1.ArtifactReference{TurnName: "before", Name: "call-1-1"},
	}}}}
	unreachable := errors.New("the store is unreachable")
	for name, tc := range map[string]struct {
		artifacts translate.Artifacts
		want      string
		ends      bool
	}{
		"read": {func(context.Context, *v1alpha1.Attachment, int) ([]byte, error) { return []byte("\x1bone"), nil }, "", false},
		"missing": {
			func(context.Context, *v1alpha1.Attachment, int) ([]byte, error) {
				return nil, &turn.ArtifactError{Message: "it does not exist"}
			}, `Turn spec.attachments[0].artifactRef: Turn "before": it does not exist`, true,
		},
		"store unreachable": {
			func(context.Context, *v1alpha1.Attachment, int) ([]byte, error) { return nil, unreachable },
			`failed to read an artifact of Turn "before": the store is unreachable`, false,
		},
		"no reader": {nil, "Turn spec.attachments[0].artifactRef: the journals of other Turns cannot be read here", true},
	} {
		t.Run(name, func(t *testing.T) {
			attach, _ := translate.Attach(asks, translate.AttachmentSources{Artifacts: tc.artifacts})
			got, err := attach(t.Context())
			if tc.want == "" {
				if err != nil || string(got[0].Data) != "\uFFFDone" {
					t.Errorf("contents are %+v, %v", got, err)
				}
				return
			}
			_, ends := errors.AsType[*invalid.Error](err)
			if err == nil || err.Error() != tc.want || ends != tc.ends {
				t.Errorf("error is %v (ends the Turn: %v), want %q (%v)", err, ends, tc.want, tc.ends)
			}
		})
	}
}

// TestOutOfScope checks which Turns have artifacts that a given Turn may use.
func TestOutOfScope(t *testing.T) {
	in := func(session string) *v1alpha1.Turn {
		if session == "" {
			return &v1alpha1.Turn{}
		}
		return &v1alpha1.Turn{Spec: v1alpha1.TurnSpec{SessionRef: &v1alpha1.ObjectReference{Name: session}}}
	}
	session, namespace := &v1alpha1.ArtifactReference{Scope: v1alpha1.ArtifactScopeSession},
		&v1alpha1.ArtifactReference{Scope: v1alpha1.ArtifactScopeNamespace}
	for name, tc := range map[string]struct {
		turn, source   *v1alpha1.Turn
		ref            *v1alpha1.ArtifactReference
		uid, sourceUID string
		allowed        bool
	}{
		"the same Session":             {in("a"), in("a"), session, "1", "1", true},
		"another Session":              {in("a"), in("b"), session, "1", "2", false},
		"a source without a Session":   {in("a"), in(""), session, "1", "", false},
		"two Turns without Sessions":   {in(""), in(""), session, "", "", false},
		"the Session was re-created":   {in("a"), in("a"), session, "2", "1", false},
		"the Session is gone":          {in("a"), in("a"), session, "", "1", false},
		"both Sessions are gone":       {in("a"), in("a"), session, "", "", false},
		"the source's is not known":    {in("a"), in("a"), session, "1", "", false},
		"no scope":                     {in("a"), in("b"), &v1alpha1.ArtifactReference{}, "1", "2", false},
		"no scope, re-created Session": {in("a"), in("a"), &v1alpha1.ArtifactReference{}, "2", "1", false},
		"scope Namespace":              {in("a"), in("b"), namespace, "1", "2", true},
		"scope Namespace, re-created":  {in("a"), in("a"), namespace, "2", "1", true},
		"scope Namespace, no Sessions": {in(""), in(""), namespace, "", "", true},
	} {
		if why := translate.OutOfScope(tc.turn, tc.ref, tc.source, tc.uid, tc.sourceUID); (why == "") != tc.allowed {
			t.Errorf("%s: refused because %q, want allowed: %v", name, why, tc.allowed)
		}
	}
}
