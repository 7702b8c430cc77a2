package controller

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/translate"
)

// wholeAndStripped returns a Turn and its stripped form. The decisions about both must be the same.
func wholeAndStripped(turn *v1alpha1.Turn) []*v1alpha1.Turn {
	stripped := turn.DeepCopy()
	Strip(stripped)
	return []*v1alpha1.Turn{turn, stripped}
}

// large returns a Turn with much data, and with a few references to ConfigMaps.
func large() *v1alpha1.Turn {
	text := strings.Repeat("x", 1000)
	t := turnWith(func(t *v1alpha1.Turn) {
		t.Labels = map[string]string{translate.ParentLabel: "p"}
		t.Annotations = map[string]string{"example.com/note": strings.Repeat(text, 200)}
		for i := range 500 {
			t.Labels[fmt.Sprintf("example.com/label-%d", i)] = "yes"
		}
		s := &t.Spec
		s.Message = strings.Repeat(text, 32)
		s.Parameters = []v1alpha1.Parameter{{Name: "p", Value: &text}, {Name: "q", ValueFrom: textIn("values")}}
		s.Guardrails = []v1alpha1.Guardrail{{ID: "g", Rule: text}}
		s.Shaping = &v1alpha1.Shaping{}
		s.Output = &v1alpha1.TurnOutput{Schema: apiextensionsv1.JSON{Raw: []byte(`{"title":"` + text + `"}`)}}
		s.Context = &v1alpha1.TurnContext{Contributions: []v1alpha1.Contribution{
			{Name: "first", Text: &text},
			{Name: "second", ConfigMapKeyRef: &v1alpha1.ConfigMapKeyReference{Name: "terms", Key: "k"}},
		}}
		s.Attachments = []v1alpha1.Attachment{
			{Name: "a", MediaType: "image/png", URL: "https://files.example/" + text},
			{Name: "b", MediaType: "text/csv", ConfigMapKeyRef: &v1alpha1.ConfigMapKeyReference{Name: "files", Key: "k"}},
			{Name: "c", MediaType: "text/csv", ArtifactRef: &v1alpha1.ArtifactReference{TurnName: text, Name: text}},
		}
		s.Model, s.Limits = "m", &v1alpha1.Limits{MaxSteps: new(int32(3))}
		for range 64 {
			s.History = append(s.History, v1alpha1.HistoryMessage{Role: v1alpha1.HistoryRoleUser, Content: text})
		}
	})
	return t
}

func TestStripKeepsTheFieldsThatDecisionsNeed(t *testing.T) {
	whole := large()
	size, err := json.Marshal(whole.Spec)
	if err != nil {
		t.Fatal(err)
	}
	want := whole.DeepCopy()
	want.Labels = map[string]string{translate.ParentLabel: "p"}
	want.Annotations = nil
	named := func(name string) *v1alpha1.ConfigMapKeyReference { return &v1alpha1.ConfigMapKeyReference{Name: name} }
	want.Spec = v1alpha1.TurnSpec{
		Message:    fmt.Sprintf("%s%d %d", strippedMark, len(size), metadataBytes(whole)),
		Parameters: []v1alpha1.Parameter{{}, {ValueFrom: &v1alpha1.ContentSource{ConfigMapKeyRef: *named("values")}}},
		AgentRef:   whole.Spec.AgentRef, DesiredState: whole.Spec.DesiredState, Model: "m", Limits: whole.Spec.Limits,
		Attachments: []v1alpha1.Attachment{
			{Name: "a", MediaType: "image/png", URL: placeholderURL},
			{Name: "b", MediaType: "text/csv", ConfigMapKeyRef: named("files")},
			{Name: "c", MediaType: "text/csv"},
		},
		Context: &v1alpha1.TurnContext{Contributions: []v1alpha1.Contribution{
			{}, {ConfigMapKeyRef: named("terms")},
		}},
	}
	got := whole.DeepCopy()
	for range 2 { // the cache may strip a stripped Turn again
		Strip(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("stripped Turn (-want +got):\n%s", diff)
		}
	}
	if kept, err := json.Marshal(got); err != nil || len(kept) > 2000 {
		t.Errorf("the stripped Turn has %d bytes of %d (error %v), want at most 2000", len(kept), len(size), err)
	}
	if diff := cmp.Diff(awaitedConfigMaps(whole), awaitedConfigMaps(got)); diff != "" {
		t.Errorf("a stripped Turn awaits other ConfigMaps (-want +got):\n%s", diff)
	}
}

// TestStripOfManyReferences checks how much the cache holds of Turns with as many references as the schema allows, each
// to another ConfigMap.
func TestStripOfManyReferences(t *testing.T) {
	ref := func(i int) *v1alpha1.ConfigMapKeyReference {
		return &v1alpha1.ConfigMapKeyReference{Name: fmt.Sprintf("%0253d", i), Key: strings.Repeat("k", 253)}
	}
	many := func(t *v1alpha1.Turn) {
		s := &t.Spec
		s.Message, s.MessageFrom = "", &v1alpha1.ContentSource{ConfigMapKeyRef: *ref(0)}
		s.Context = &v1alpha1.TurnContext{}
		for i := range 32 {
			s.Parameters = append(s.Parameters, v1alpha1.Parameter{ValueFrom: &v1alpha1.ContentSource{ConfigMapKeyRef: *ref(100 + i)}})
		}
		for i := range 16 {
			s.Context.Contributions = append(s.Context.Contributions, v1alpha1.Contribution{ConfigMapKeyRef: ref(200 + i)})
		}
		for i := range 8 {
			s.Attachments = append(s.Attachments, v1alpha1.Attachment{Name: "a", MediaType: "text/csv", ConfigMapKeyRef: ref(300 + i)})
		}
	}
	undo := func(t *v1alpha1.Turn) {
		t.Spec.Message, t.Spec.Undo = "", &v1alpha1.TurnUndo{TurnUID: "a", Calls: slices.Repeat([]string{strings.Repeat("c", 128)}, 100)}
	}
	for name, tc := range map[string]struct {
		turn        *v1alpha1.Turn
		awaits, max int
	}{
		"waiting":   {turnWith(many), 57, 20_000},
		"suspended": {turnWith(many, desired(v1alpha1.DesiredStateSuspended)), 0, 2000},
		"undo":      {turnWith(undo), 0, 1000},
	} {
		t.Run(name, func(t *testing.T) {
			for _, turn := range wholeAndStripped(tc.turn) {
				if got := len(awaitedConfigMaps(turn)); got != tc.awaits {
					t.Errorf("the Turn awaits %d ConfigMaps, want %d", got, tc.awaits)
				}
				if kept, err := json.Marshal(turn); isStripped(turn) && (err != nil || len(kept) > tc.max) {
					t.Errorf("the stripped Turn has %d bytes (error %v), want at most %d", len(kept), err, tc.max)
				}
			}
		})
	}
}

// TestStripOfTurnsWithoutMessage checks that Turns without a message are stripped, too, whatever their annotations are.
func TestStripOfTurnsWithoutMessage(t *testing.T) {
	for name, spec := range map[string]v1alpha1.TurnSpec{
		"undo":        {Undo: &v1alpha1.TurnUndo{TurnUID: "a"}},
		"messageFrom": {MessageFrom: textIn("request")},
	} {
		t.Run(name, func(t *testing.T) {
			whole := turnWith(func(t *v1alpha1.Turn) {
				t.Annotations = map[string]string{"cache.capstan.dev/spec-bytes": "1", "example.com/note": "n"}
				t.Spec = spec
			})
			stripped := wholeAndStripped(whole)[1]
			if !isStripped(stripped) || len(stripped.Annotations) > 0 {
				t.Errorf("the cache has the Turn with the message %q and the annotations %v", stripped.Spec.Message, stripped.Annotations)
			}
			if diff := cmp.Diff(awaitedConfigMaps(whole), awaitedConfigMaps(stripped)); diff != "" {
				t.Errorf("a stripped Turn awaits other ConfigMaps (-want +got):\n%s", diff)
			}
		})
	}
}

// TestStrippedTurnIsTooLarge checks that the size of the whole spec counts for a stripped Turn, too.
func TestStrippedTurnIsTooLarge(t *testing.T) {
	turn := turnWith(func(t *v1alpha1.Turn) { t.Spec.Message = strings.Repeat("x", v1alpha1.MaxSpecBytes) })
	for _, turn := range wholeAndStripped(turn) {
		if err := checkSize(turn); err == nil || !strings.Contains(err.Error(), "spec is ") {
			t.Errorf("checkSize = %v, want an error with the size of the spec", err)
		}
	}
}

// TestStrippedTurnHasTooMuchMetadata checks that the size of the metadata counts for a stripped Turn, too.
func TestStrippedTurnHasTooMuchMetadata(t *testing.T) {
	turn := turnWith(func(t *v1alpha1.Turn) {
		t.ManagedFields = []metav1.ManagedFieldsEntry{{
			FieldsV1: metav1.NewFieldsV1(`"` + strings.Repeat("x", v1alpha1.MaxMetadataBytes) + `"`),
		}}
	})
	for _, turn := range wholeAndStripped(turn) {
		if err := checkSize(turn); err == nil || !strings.Contains(err.Error(), "metadata is ") {
			t.Errorf("checkSize = %v, want an error with the size of the metadata", err)
		}
		turn.Status.Executor = &v1alpha1.ExecutorBinding{Epoch: 1}
		if err := checkSize(turn); err != nil {
			t.Errorf("checkSize = %v, want none for a Turn that has run", err)
		}
	}
	escaped := turnWith(func(t *v1alpha1.Turn) {
		t.Annotations = map[string]string{"example.com/a": strings.Repeat("<", v1alpha1.MaxMetadataBytes/6)}
	})
	for _, turn := range wholeAndStripped(escaped) {
		if err := checkSize(turn); err == nil || !strings.Contains(err.Error(), "metadata is ") {
			t.Errorf("checkSize = %v, want an error, because JSON has six bytes for each character", err)
		}
	}
}

// TestStrippedTurnWaitsForConfigMap checks that the message for a stripped Turn names the same field of the spec as the
// message for the whole Turn.
func TestStrippedTurnWaitsForConfigMap(t *testing.T) {
	client := inMemory(t)
	for _, turn := range wholeAndStripped(large()) {
		missing, err := missingConfigMap(t.Context(), client, turn)
		const want = `ConfigMap "values", which spec.parameters[1].valueFrom.configMapKeyRef names, does not exist`
		if err != nil || missing != want {
			t.Errorf("missingConfigMap = %q, %v, want %q", missing, err, want)
		}
	}
}
