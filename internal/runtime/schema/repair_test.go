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
			"list":{"type":"array","items":{"type":"object","required":["k"],` +
		`"properties":{"k":{"default":{"a":[1]}},"c":{"$ref":"#/$defs/count"}}}},
			"shape":{"oneOf":[{"required":["r"],"properties":{"r":{"type":"integer","default":1}},"additionalProperties":false},` +
		`{"type":"string","maxLength":1}]},
			"no":{"not":{"type":"string"}},
			"a b/c":{"type":"object","required":["d"],"properties":{"d":{"default":1e2}}}
		}
	}`
	for name, tc := range map[string]struct {
		reason, value string
		want          string
		changes       []string
	}{
		"fits":          {"a value that fits needs no repair", `{"n":1,"unit":"g"}`, "", nil},
		"no JSON":       {"invalid JSON cannot be repaired", `{"n":`, "", nil},
		"duplicate key": {"a duplicate key is ambiguous", `{"n":"1","n":"2","unit":"g"}`, "", nil},
		"integer": {
			"a text becomes the integer that it represents", `{"n":"3","unit":"g"}`, `{"n":3,"unit":"g"}`,
			[]string{"/n: converted the text to the number 3"},
		},
		"negative": {
			"a text becomes the negative integer that it represents", `{"n":"-3","unit":"g"}`, `{"n":-3,"unit":"g"}`,
			[]string{"/n: converted the text to the number -3"},
		},
		"number": {
			"a text becomes the number that it represents", `{"n":1,"unit":"g","x":"2.50e1"}`,
			`{"n":1,"unit":"g","x":2.50e1}`,
			[]string{"/x: converted the text to the number 2.50e1"},
		},
		"boolean": {
			"a text becomes the boolean that it represents", `{"n":1,"unit":"g","yes":"false"}`,
			`{"n":1,"unit":"g","yes":false}`,
			[]string{"/yes: converted the text to false"},
		},
		"alternatives of types": {
			"a text is repaired if the alternatives differ only in their types", `{"n":1,"unit":"g","either":"7"}`,
			`{"either":7,"n":1,"unit":"g"}`,
			[]string{"/either: converted the text to the number 7"},
		},
		"default": {
			"a missing property gets its default", `{"n":1}`, `{"n":1,"unit":"kg"}`,
			[]string{`added the default of "unit"`},
		},
		"no default": {"a property without a default stays missing", `{"unit":"g"}`, "", nil},
		"one default of two": {
			"only the property with a default is added", `{}`, `{"unit":"kg"}`, []string{`added the default of "unit"`},
		},
		"unknown": {
			"an unknown property is removed where none is allowed", `{"n":1,"unit":"g","z":1,"y":2}`, `{"n":1,"unit":"g"}`,
			[]string{`removed "y", "z"`},
		},
		"deep": {
			"repairs apply to the items of lists and to referenced schemas", `{"n":1,"unit":"g","list":[{"k":1},{"c":"2"}]}`,
			`{"list":[{"k":1},{"c":2,"k":{"a":[1]}}],"n":1,"unit":"g"}`,
			[]string{"/list/1/c: converted the text to the number 2", `/list/1: added the default of "k"`},
		},
		"unusual names": {
			"the names of properties may have any characters", `{"n":1,"unit":"g","a b/c":{}}`,
			`{"a b/c":{"d":1e2},"n":1,"unit":"g"}`,
			[]string{`/a b~1c: added the default of "d"`},
		},
		"several repairs": {
			"all unambiguous repairs are made", `{"n":"1","q":0}`, `{"n":1,"unit":"kg"}`,
			[]string{"/n: converted the text to the number 1", `added the default of "unit"`, `removed "q"`},
		},
		"words":             {"a word is not a number", `{"n":"three","unit":"g"}`, "", nil},
		"spaces":            {"a number with spaces is not a number in JSON", `{"n":" 3","unit":"g"}`, "", nil},
		"leading zero":      {"a number with a leading zero is not a number in JSON", `{"n":"03","unit":"g"}`, "", nil},
		"hexadecimal":       {"a hexadecimal number is not a number in JSON", `{"n":"0x3","unit":"g"}`, "", nil},
		"fraction":          {"an integer has no fraction", `{"n":"3.0","unit":"g"}`, "", nil},
		"huge":              {"a number beyond a 64-bit float is not repaired", `{"n":1,"unit":"g","x":"1e999"}`, "", nil},
		"TRUE":              {"only true and false are booleans", `{"n":1,"unit":"g","yes":"True"}`, "", nil},
		"1 for true":        {"a number is not a boolean", `{"n":1,"unit":"g","yes":1}`, "", nil},
		"number for text":   {"the conversion of a number to a text is not unambiguous", `{"n":1,"unit":3}`, "", nil},
		"null for missing":  {"a null property is not missing", `{"n":null,"unit":"g"}`, "", nil},
		"text for null":     {"a text does not become null", `{"n":1,"unit":"g","x":"null"}`, "", nil},
		"within either":     {"the intended alternative is not known", `{"n":1,"unit":"g","shape":{"r":"1","z":1}}`, "", nil},
		"within not":        {"a failure of not cannot be repaired", `{"n":1,"unit":"g","no":"3"}`, "", nil},
		"a list for object": {"a failure of another type cannot be repaired", `[1]`, "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := compiled(t, order)
			got, changes := s.Repair(t.Context(), json.RawMessage(tc.value))
			if diff := cmp.Diff(tc.changes, changes); diff != "" || string(got) != tc.want {
				t.Errorf("Repair = %s, want %s: %s; changes: -want +got:\n%s", got, tc.want, tc.reason, diff)
			}
		})
	}
}

// TestRepairsOfSchemasWithNames checks that a default is found by its location, even if a part of the schema has a
// name of its own by $id or $anchor.
func TestRepairsOfSchemasWithNames(t *testing.T) {
	const part = `"required":["d"],"properties":{"d":{"default":1}}`
	for _, source := range []string{
		`{"properties":{"o":{"$id":"https://example.com/o",` + part + `}}}`,
		`{"$id":"https://example.com/all","properties":{"o":{` + part + `}}}`,
		`{"$defs":{"o":{"$anchor":"o",` + part + `}},"properties":{"o":{"$ref":"#o"}}}`,
	} {
		if got, _ := compiled(t, source).Repair(t.Context(), json.RawMessage(`{"o":{}}`)); string(got) != `{"o":{"d":1}}` {
			t.Errorf("Repair with %s = %s, want the default", source, got)
		}
	}
}

// TestRepairKeeping checks that a repair cannot undo a property with which the model makes a call harmless, such as
// dry_run. The schema may not know the property, at any depth. It must not be dropped, and no default may be added in
// its place.
func TestRepairKeeping(t *testing.T) {
	const closed = `{
		"type":"object","additionalProperties":false,"required":["id"],
		"properties":{"id":{"type":"integer"},` +
		`"options":{"type":"object","additionalProperties":false,"properties":{"force":{"type":"boolean"}}},
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
		"unknown": {
			"an unknown property stays, and the value does not fit", closed, `{"id":1,"dry_run":true}`, "", nil,
		},
		"unknown, nested": {
			"an unknown property within an object stays", closed, `{"id":1,"options":{"force":true,"dry_run":true}}`, "",
			nil,
		},
		"unknown, in a list": {
			"an unknown property within a list stays", closed, `{"id":1,"steps":[{"n":1},{"n":2,"dry_run":true}]}`, "", nil,
		},
		"repair next to an unknown property": {
			"other repairs are made in spite of an unknown property", closed, `{"id":"1","dry_run":true}`,
			`{"dry_run":true,"id":1}`,
			[]string{"/id: converted the text to the number 1"},
		},
		"text for a boolean": {
			"a text becomes the boolean that it represents", open, `{"id":1,"dry_run":"true"}`, `{"dry_run":true,"id":1}`,
			[]string{"/dry_run: converted the text to true"},
		},
		"default": {
			"a missing property gets its default", open, `{"id":1}`, `{"dry_run":false,"id":1}`,
			[]string{`added the default of "dry_run"`},
		},
		"misspelt": {"a misspelt property is not missing", open, `{"id":1,"dryRun":true}`, "", nil},
		"misspelt, nested": {
			"a misspelt property within an object is not missing", open,
			`{"id":1,"dry_run":true,"options":{"dryRun":true}}`, "", nil,
		},
		"default, nested": {
			"each object is checked separately", open, `{"id":1,"dry_run":true,"options":{}}`,
			`{"dry_run":true,"id":1,"options":{"dry_run":false}}`,
			[]string{`/options: added the default of "dry_run"`},
		},
		"known by a pattern": {"a name that only a pattern matches is unknown", open, `{"id":1,"x-dry-run":true}`, "", nil},
		"no properties": {
			"without properties in the schema, all names are unknown", `{"required":["a"]}`, `{"b":1}`, "", nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, changes := compiled(t, tc.schema).RepairKeeping(t.Context(), json.RawMessage(tc.value))
			if diff := cmp.Diff(tc.changes, changes); diff != "" || string(got) != tc.want {
				t.Errorf("RepairKeeping = %s, want %s: %s; changes: -want +got:\n%s", got, tc.want, tc.reason, diff)
			}
		})
	}
}
