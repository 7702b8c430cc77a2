package translate_test

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/translate"
)

// address is a text that a rule removes.
const address = "zoe@example.com"

// kept are the fields of a request from which no rule removes anything, with the reason.
var kept = map[string]string{
	"Name": "a name", "Namespace": "a name", "Attachments[].Name": "a name", "Contributions[].Name": "a name",
	"Attachments[].MediaType": "an enum", "Attachments[].SHA256": "a digest",
	"History[].ToolCallID": "an ID", "History[].ToolCalls[].ID": "an ID", "Session.ID": "an ID", "Facts[].ID": "an ID",
	"Memories[].ID": "an ID", "Enrichments[].ID": "an ID", "Shaping.Overlays[].ID": "an ID", "Shaping.Guardrails[].ID": "an ID",
	"Shaping.Guardrails[].Kind": "an enum", "Memories[].Scope": "an enum", "Memories[].Freshness": "an enum",
	"Enrichments[].Kind": "an enum", "Enrichments[].Audience": "an enum",
	"History[].ProviderData.Provider": "a name", "History[].ProviderData.Model": "a name",
	"History[].ProviderData.Endpoint": "a name", "History[].ProviderData.Format": "an enum",
}

// texts visits the fields of a request that may contain text: strings, maps and JSON, but not enums with a type of
// their own. It creates values for nil pointers, and one element for each empty list.
func texts(v reflect.Value, path string, visit func(path string, v reflect.Value)) {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		texts(v.Elem(), path, visit)
	case reflect.Map:
		visit(path, v)
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			visit(path, v)
			return
		}
		if v.Len() == 0 {
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		}
		texts(v.Index(0), path+"[]", visit)
	case reflect.Struct:
		for i := range v.NumField() {
			name := v.Type().Field(i).Name
			if path != "" {
				name = path + "." + name
			}
			texts(v.Field(i), name, visit)
		}
	case reflect.String:
		if v.Type() == reflect.TypeFor[string]() {
			visit(path, v)
		}
	default:
	}
}

// TestEveryTextOfARequestIsRedacted puts a text that a new rule removes into each field of a recorded request.
func TestEveryTextOfARequestIsRedacted(t *testing.T) {
	var in prepare.Input
	var fields []string
	texts(reflect.ValueOf(&in.Turn).Elem(), "", func(path string, v reflect.Value) {
		fields = append(fields, path)
		switch v.Kind() {
		case reflect.Map:
			v.Set(reflect.ValueOf(map[string]string{"name": "I am " + address}))
		case reflect.Slice:
			v.SetBytes([]byte(`{"name": "I am ` + address + `"}`))
		default:
			v.SetString("I am " + address)
		}
	})
	a := minimal().Agent
	a.Spec.Redaction = &v1alpha1.AgentRedaction{Patterns: []v1alpha1.RedactionPattern{{Name: "email", Pattern: "[a-z]+@[a-z.]+"}}}
	out, err := translate.PrepareAgain(t.Context(), &in, translate.Objects{Agent: a})
	if err != nil {
		t.Fatal(err)
	}
	before, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	texts(reflect.ValueOf(&out.Turn).Elem(), "", func(path string, v reflect.Value) {
		seen[path] = true
		text, err := json.Marshal(v.Interface())
		if err != nil {
			t.Fatal(err)
		}
		if has := strings.Contains(string(text), address); has != (kept[path] != "") {
			t.Errorf("%s has the address after the redaction: %t, want %t", path, has, !has)
		}
	})
	for path := range kept {
		if !slices.Contains(fields, path) || !seen[path] {
			t.Errorf("there is no field %s", path)
		}
	}
	if len(fields) < 30 {
		t.Errorf("the request has the fields %q, want more", fields)
	}
	if after, err := json.Marshal(in); err != nil || string(after) != string(before) {
		t.Errorf("the recorded request has changed, %v:\n%s", err, after)
	}
}
