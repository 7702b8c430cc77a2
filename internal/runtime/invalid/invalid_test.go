package invalid_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/invalid"
)

func TestErrorNamesFieldPositionAndReason(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		err    *invalid.Error
		want   string
	}{
		"no position": {
			"without a line, only the field is named",
			invalid.Field("Turn spec.message", "must not be blank"), "Turn spec.message: must not be blank",
		},
		"values": {
			"the reason names the values",
			invalid.Field("spec", "%q is no mode: use %s or %s", "x", "a", "b"), `spec: "x" is no mode: use a or b`,
		},
		"line": {"without a column, only the line is named", &invalid.Error{Field: "f", Line: 3, Reason: "r"}, "f:3: r"},
		"line and column": {
			"line and column have the form of compilers",
			&invalid.Error{Field: "f", Line: 3, Column: 7, Reason: "r"}, "f:3:7: r",
		},
		"column alone": {"a column without a line is left out", &invalid.Error{Field: "f", Column: 7, Reason: "r"}, "f: r"},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, tc.err.Error()); diff != "" {
				t.Errorf("Error(): %s: -want +got:\n%s", tc.reason, diff)
			}
		})
	}
}

func TestErrorKeepsItsFormInJSON(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		err    *invalid.Error
		want   string
	}{
		"whole field": {"an unknown position is left out", invalid.Field("f", "r"), `{"field":"f","reason":"r"}`},
		"position": {
			"tools can read the position", &invalid.Error{Field: "f", Line: 1, Column: 2, Reason: "r"},
			`{"field":"f","line":1,"column":2,"reason":"r"}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := json.Marshal(tc.err)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, string(got)); diff != "" {
				t.Errorf("JSON: %s: -want +got:\n%s", tc.reason, diff)
			}
		})
	}
}
