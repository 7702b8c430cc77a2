package schema_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRepair(t *testing.T) {
	const order = `{
		"type":"object","additionalProperties":false,"required":["n","unit"],
		"$defs":{"count":{"type":"integer"}},
		"properties":{
			"n":{"type":"integer"},"unit":{"type":"string","default":"kg"},"x":{"type":["number","null"]},"yes":{"type":"boolean"},
			"either":{"anyOf":[{"type":"integer"},{"type":"null"}],"default":null},
			"list":{"type":"array","items":{"type":"object","required":["k"],"properties":{"k":{"default":{"a":[1]}},"c":{"$ref":"#/$defs/count"}}}},
			"shape":{"oneOf":[{"required":["r"],"properties":{"r":{"type":"integer","default":1}},"additionalProperties":false},{"type":"string","maxLength":1}]},
			"no":{"not":{"type":"string"}},
			"a b/c":{"type":"object","required":["d"],"properties":{"d":{"default":1e2}}}
		}
	}`
	for name, tc := range map[string]struct {
		reason, value string
		want          string
		changes       []string
	}{
		"fits":               {"nothing to mend", `{"n":1,"unit":"g"}`, "", nil},
		"no JSON":            {"nothing that could be mended", `{"n":`, "", nil},
		"twice":              {"what is not clear is not certain", `{"n":"1","n":"2","unit":"g"}`, "", nil},
		"integer":            {"3 for \"3\"", `{"n":"3","unit":"g"}`, `{"n":3,"unit":"g"}`, []string{"/n: read the text as the number 3"}},
		"negative":           {"also below 0", `{"n":"-3","unit":"g"}`, `{"n":-3,"unit":"g"}`, []string{"/n: read the text as the number -3"}},
		"number":             {"any number", `{"n":1,"unit":"g","x":"2.50e1"}`, `{"n":1,"unit":"g","x":2.50e1}`, []string{"/x: read the text as the number 2.50e1"}},
		"boolean":            {"a truth value", `{"n":1,"unit":"g","yes":"false"}`, `{"n":1,"unit":"g","yes":false}`, []string{"/yes: read the text as false"}},
		"of alternatives":    {"that differ in type alone", `{"n":1,"unit":"g","either":"7"}`, `{"either":7,"n":1,"unit":"g"}`, []string{"/either: read the text as the number 7"}},
		"default":            {"of what is missing", `{"n":1}`, `{"n":1,"unit":"kg"}`, []string{`added the default of "unit"`}},
		"no default":         {"without one nothing is certain", `{"unit":"g"}`, "", nil},
		"one default of two": {"the other stays missing", `{}`, `{"unit":"kg"}`, []string{`added the default of "unit"`}},
		"unknown":            {"it is dropped where none is allowed", `{"n":1,"unit":"g","z":1,"y":2}`, `{"n":1,"unit":"g"}`, []string{`removed "y", "z"`}},
		"deep":               {"in lists as well, also behind references", `{"n":1,"unit":"g","list":[{"k":1},{"c":"2"}]}`, `{"list":[{"k":1},{"c":2,"k":{"a":[1]}}],"n":1,"unit":"g"}`, []string{"/list/1/c: read the text as the number 2", `/list/1: added the default of "k"`}},
		"odd names":          {"whatever a property is called", `{"n":1,"unit":"g","a b/c":{}}`, `{"a b/c":{"d":1e2},"n":1,"unit":"g"}`, []string{`/a b~1c: added the default of "d"`}},
		"all at once":        {"all that is certain", `{"n":"1","q":0}`, `{"n":1,"unit":"kg"}`, []string{"/n: read the text as the number 1", `added the default of "unit"`, `removed "q"`}},
		"words":              {"a word is no number", `{"n":"three","unit":"g"}`, "", nil},
		"spaces":             {"nor is anything but a number", `{"n":" 3","unit":"g"}`, "", nil},
		"leading zero":       {"as JSON writes it", `{"n":"03","unit":"g"}`, "", nil},
		"hexadecimal":        {"and nothing else", `{"n":"0x3","unit":"g"}`, "", nil},
		"fraction":           {"an integer has none", `{"n":"3.0","unit":"g"}`, "", nil},
		"huge":               {"nor is it beyond all measure", `{"n":1,"unit":"g","x":"1e999"}`, "", nil},
		"TRUE":               {"a truth value is true or false", `{"n":1,"unit":"g","yes":"True"}`, "", nil},
		"1 for true":         {"and no number", `{"n":1,"unit":"g","yes":1}`, "", nil},
		"number for text":    {"the other way is not certain", `{"n":1,"unit":3}`, "", nil},
		"null for missing":   {"null is there", `{"n":null,"unit":"g"}`, "", nil},
		"text for null":      {"null is no text", `{"n":1,"unit":"g","x":"null"}`, "", nil},
		"within either":      {"which alternative was meant is not certain", `{"n":1,"unit":"g","shape":{"r":"1","z":1}}`, "", nil},
		"within not":         {"nor what was not meant", `{"n":1,"unit":"g","no":"3"}`, "", nil},
		"a list for object":  {"nor what is none of all these", `[1]`, "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := compiled(t, order)
			got, changes := s.Repair(json.RawMessage(tc.value))
			if diff := cmp.Diff(tc.changes, changes); diff != "" || string(got) != tc.want {
				t.Errorf("Repair = %s, want %s: %s; changes: -want +got:\n%s", got, tc.want, tc.reason, diff)
			}
		})
	}
}

// TestRepairsOfSchemasWithNames look for a default where it stands, whatever a part of the schema calls itself.
func TestRepairsOfSchemasWithNames(t *testing.T) {
	const part = `"required":["d"],"properties":{"d":{"default":1}}`
	for _, source := range []string{
		`{"properties":{"o":{"$id":"https://example.com/o",` + part + `}}}`,
		`{"$id":"https://example.com/all","properties":{"o":{` + part + `}}}`,
		`{"$defs":{"o":{"$anchor":"o",` + part + `}},"properties":{"o":{"$ref":"#o"}}}`,
	} {
		if got, _ := compiled(t, source).Repair(json.RawMessage(`{"o":{}}`)); string(got) != `{"o":{"d":1}}` {
			t.Errorf("Repair with %s = %s, want the default", source, got)
		}
	}
}

// TestRepairKeeping adds and changes only what cannot undo what a model wrote to hold a call back: a property that the schema does
// not know, wherever it stands, is neither dropped nor passed over by a default that may be what it was meant to say.
func TestRepairKeeping(t *testing.T) {
	const closed = `{
		"type":"object","additionalProperties":false,"required":["id"],
		"properties":{"id":{"type":"integer"},"options":{"type":"object","additionalProperties":false,"properties":{"force":{"type":"boolean"}}},
			"steps":{"type":"array","items":{"type":"object","additionalProperties":false,"properties":{"n":{"type":"integer"}}}}}
	}`
	const open = `{
		"type":"object","required":["id","dry_run"],"patternProperties":{"^x-":{}},
		"properties":{"id":{"type":"integer"},"dry_run":{"type":"boolean","default":false},
			"options":{"type":"object","required":["dry_run"],"properties":{"dry_run":{"type":"boolean","default":false}}}}
	}`
	for name, tc := range map[string]struct {
		reason, schema, value string
		want                  string
		changes               []string
	}{
		"unknown":             {"it stays, and the value does not fit", closed, `{"id":1,"dry_run":true}`, "", nil},
		"unknown, nested":     {"so it does within an object", closed, `{"id":1,"options":{"force":true,"dry_run":true}}`, "", nil},
		"unknown, in a list":  {"and within a list", closed, `{"id":1,"steps":[{"n":1},{"n":2,"dry_run":true}]}`, "", nil},
		"beside another":      {"what else is certain is mended", closed, `{"id":"1","dry_run":true}`, `{"dry_run":true,"id":1}`, []string{"/id: read the text as the number 1"}},
		"a truth value":       {"a text that says one is read as it, and never the other way", open, `{"id":1,"dry_run":"true"}`, `{"dry_run":true,"id":1}`, []string{"/dry_run: read the text as true"}},
		"default":             {"what is left out has its default", open, `{"id":1}`, `{"dry_run":false,"id":1}`, []string{`added the default of "dry_run"`}},
		"misspelt":            {"what stands under another name is not left out", open, `{"id":1,"dryRun":true}`, "", nil},
		"misspelt, nested":    {"also within an object", open, `{"id":1,"dry_run":true,"options":{"dryRun":true}}`, "", nil},
		"default, nested":     {"each object is looked at by itself", open, `{"id":1,"dry_run":true,"options":{}}`, `{"dry_run":true,"id":1,"options":{"dry_run":false}}`, []string{`/options: added the default of "dry_run"`}},
		"known by a pattern":  {"a name that no property has is not known", open, `{"id":1,"x-dry-run":true}`, "", nil},
		"of another document": {"of a schema without properties nothing is known", `{"required":["a"]}`, `{"b":1}`, "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			got, changes := compiled(t, tc.schema).RepairKeeping(json.RawMessage(tc.value))
			if diff := cmp.Diff(tc.changes, changes); diff != "" || string(got) != tc.want {
				t.Errorf("RepairKeeping = %s, want %s: %s; changes: -want +got:\n%s", got, tc.want, tc.reason, diff)
			}
		})
	}
}
