package translate_test

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/translate"
)

// filled returns objects in which every field of the specs has a value.
func filled() translate.Objects {
	o := translate.Objects{
		Turn:    &v1alpha1.Turn{ObjectMeta: metav1.ObjectMeta{Name: "turn"}},
		Agent:   &v1alpha1.Agent{ObjectMeta: metav1.ObjectMeta{Name: "agent"}},
		Profile: &v1alpha1.PromptProfile{ObjectMeta: metav1.ObjectMeta{Name: "profile"}}, ConfigMaps: configMaps,
	}
	eachLeaf(o, func(path string, leaf reflect.Value) {
		switch leaf.Kind() {
		case reflect.String:
			leaf.SetString(path)
		case reflect.Int32, reflect.Int64:
			leaf.SetInt(1)
		case reflect.Bool:
			leaf.SetBool(true)
		case reflect.Map: // labels; no other map is in the API
			leaf.Set(reflect.MakeMap(leaf.Type()))
			leaf.SetMapIndex(reflect.ValueOf("team"), reflect.ValueOf(v1alpha1.LabelValue("red")))
		default:
			panic("no value for " + path)
		}
		switch v := leaf.Addr().Interface().(type) {
		case *v1alpha1.Trust:
			*v = v1alpha1.TrustTrusted
		case *v1alpha1.HistoryRole:
			*v = v1alpha1.HistoryRoleAssistant
		case *v1alpha1.ViolationAction:
			*v = v1alpha1.ViolationRetry // so that maxRetries counts
		}
	})
	o.Agent.Spec.Redaction = &v1alpha1.AgentRedaction{
		Patterns: []v1alpha1.RedactionPattern{{Name: "a", Pattern: "no such text", Replacement: "b"}}, JSONPaths: []string{"$.c"},
	}
	o.Agent.Spec.TimeZone, o.Turn.Spec.Context.Memories[0].Relevance = "UTC", new("0.5")
	return o
}

// eachLeaf visits every leaf field of the three specs: every field that is not a struct, a pointer or a list. It
// creates values for nil pointers and one element for each empty list.
func eachLeaf(o translate.Objects, visit func(path string, leaf reflect.Value)) {
	walk(reflect.ValueOf(&o.Agent.Spec).Elem(), "agent", visit)
	walk(reflect.ValueOf(&o.Profile.Spec).Elem(), "profile", visit)
	walk(reflect.ValueOf(&o.Turn.Spec).Elem(), "turn", visit)
}

func walk(v reflect.Value, path string, visit func(path string, leaf reflect.Value)) {
	if v.Type() == reflect.TypeFor[apiextensionsv1.JSON]() {
		return // free-form data of the user, which the engine receives unchanged
	}
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		walk(v.Elem(), path, visit)
	case reflect.Slice:
		if v.Len() == 0 {
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		}
		walk(v.Index(0), path+"[]", visit)
	case reflect.Struct:
		for i := range v.NumField() {
			name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
			walk(v.Field(i), path+"."+name, visit)
		}
	default:
		visit(path, v)
	}
}

// notInMessages maps each field that does not affect the messages to its purpose.
var notInMessages = map[string]string{
	"agent.promptProfileRef": "finds the profile", "turn.agentRef": "finds the agent", "turn.sessionRef": "finds the session",
	"turn.requestedBy": "the run",
	"agent.models":     "the model chain", "turn.model": "the first model of the chain", "turn.citations": "the result",
	"agent.toolPolicy": "the run", "agent.approval": "the decisions about calls", "agent.tools": "the toolbox", "agent.context": "the run",
	"agent.reasoningText":     "the run",
	"agent.redaction":         "the redaction",
	"agent.reflectEveryTurns": "the run", "turn.webMode": "the run", "turn.topK": "the run", "turn.output": "the run",
	"profile.allowedNamespaces": "which Agents find the profile",
	"agent.allowedNamespaces":   "which Agents may call the Agent",
	"profile.pinnedTools":       "the toolbox", "profile.judges": "after the answer",
	"agent.limits": "the run", "turn.limits": "the run", "turn.execution": "the run", "agent.decisionKey": "the record",
	"agent.evaluation":       "after the answer",
	"agent.embeddings":       "the run",
	"agent.memory.learning":  "after the answer",
	"agent.maxParallelTurns": "the queue", "turn.desiredState": "the controller", "turn.ttlSecondsAfterFinished": "the controller",
	"turn.onJournalLoss": "the run", "turn.attachments": "read by the run", "turn.undo": "the run, which makes no messages",
	"profile.variables[].description":         "people",
	"profile.skills[].contentFrom":            "used where there is no content",
	"profile.instructionsFrom":                "used where there are no instructions",
	"profile.identity.systemPromptFrom":       "used where there is no system prompt",
	"agent.instructionsFrom":                  "used where there are no instructions",
	"turn.messageFrom":                        "used where there is no message",
	"turn.parameters[].valueFrom":             "used where there is no value",
	"agent.contributions[].configMapKeyRef":   "used where there is no text",
	"profile.contributions[].configMapKeyRef": "as above", "turn.context.contributions[].configMapKeyRef": "as above",
}

func isNotInMessages(path string) bool {
	for prefix := range notInMessages {
		if path == prefix || strings.HasPrefix(path, prefix+".") || strings.HasPrefix(path, prefix+"[") {
			return true
		}
	}
	return false
}

// TestEveryFieldReachesTheEngine changes each field of the API on its own, and expects a change in the engine's input
// for the messages, unless notInMessages lists the field.
func TestEveryFieldReachesTheEngine(t *testing.T) {
	result := func(o translate.Objects) string {
		in, err := translate.Preparation(t.Context(), o, now)
		if err != nil {
			return err.Error()
		}
		data, err := json.Marshal(in)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	base := result(filled())
	if !strings.HasPrefix(base, "{") {
		t.Fatalf("Preparation: %s", base)
	}
	var paths []string
	eachLeaf(filled(), func(path string, _ reflect.Value) { paths = append(paths, path) })
	if slices.Sort(paths); len(paths) < 100 || len(slices.Compact(paths)) != len(paths) {
		t.Fatalf("the specs have the fields %v, want at least 100, each once", paths)
	}
	for _, changed := range paths {
		t.Run(changed, func(t *testing.T) {
			o := filled()
			eachLeaf(o, func(path string, leaf reflect.Value) {
				switch {
				case path != changed:
				case leaf.Kind() == reflect.String:
					leaf.SetString(leaf.String() + "x")
				case leaf.Kind() == reflect.Bool:
					leaf.SetBool(false)
				case leaf.Kind() == reflect.Map:
					leaf.SetMapIndex(reflect.ValueOf("more"), reflect.ValueOf(v1alpha1.LabelValue("x")))
				default:
					leaf.SetInt(2)
				}
			})
			if same := result(o) == base; same != isNotInMessages(changed) {
				t.Errorf("the input for the messages stayed the same: %t, want %t", same, !same)
			}
		})
	}
}
