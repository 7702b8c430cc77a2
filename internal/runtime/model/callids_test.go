package model_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/model"
)

func TestIdentifyCalls(t *testing.T) {
	longest := strings.Repeat("x", model.MaxCallID)
	for name, tc := range map[string]struct {
		reason     string
		ids, taken []string
		want       []string
	}{
		"usual": {
			"the endpoint's IDs stay",
			[]string{"call_1", "functions.find:0", "9Ae3bDef1"},
			nil,
			[]string{"call_1", "functions.find:0", "9Ae3bDef1"},
		},
		"longest":  {"128 characters are not too long", []string{longest}, nil, []string{longest}},
		"too long": {"129 characters are too long", []string{longest + "x"}, nil, []string{"call_0"}},
		"same prefix": {
			"two IDs that share 128 characters do not share the ID",
			[]string{longest + "1", longest + "2"},
			nil,
			[]string{"call_0", "call_1"},
		},
		"empty": {"a call without an ID gets one", []string{"", "a", ""}, nil, []string{"call_0", "a", "call_2"}},
		"space": {
			"a space does not show at the end of a line",
			[]string{"a ", " ", "a b"},
			nil,
			[]string{"call_0", "call_1", "call_2"},
		},
		"control": {
			"a control character does not show",
			[]string{"a\n", "a\x00", "a\x7f", "a\x1b[2J"},
			nil,
			[]string{"call_0", "call_1", "call_2", "call_3"},
		},
		"not ASCII": {
			"letters of other scripts look the same",
			[]string{"cаll_1", "call_\u200b1", "\xff"},
			nil,
			[]string{"call_0", "call_1", "call_2"},
		},
		"repeated":          {"the first keeps it", []string{"a", "a", "a_2", "a"}, nil, []string{"a", "a_3", "a_2", "a_4"}},
		"repeated, longest": {"a new ID is not too long either", []string{longest, longest}, nil, []string{longest, longest[:126] + "_2"}},
		"made ID is there":  {"a new ID differs from the IDs of other calls", []string{"", "call_0"}, nil, []string{"call_0_2", "call_0"}},
		"earlier":           {"an earlier call of the Turn has it", []string{"a", "b"}, []string{"a"}, []string{"a_2", "b"}},
		"earlier, made": {
			"a new ID differs from the IDs of earlier calls",
			[]string{"", "a"},
			[]string{"call_0", "a", "a_2"},
			[]string{"call_0_2", "a_3"},
		},
		"none": {"there is nothing to do", nil, []string{"a"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var calls []model.ToolCall
			for _, id := range tc.ids {
				calls = append(calls, model.ToolCall{ID: id})
			}
			model.IdentifyCalls(calls, func(id string) bool { return slices.Contains(tc.taken, id) })
			var got []string
			for _, c := range calls {
				got = append(got, c.ID)
				if !model.ValidCallID(c.ID) {
					t.Errorf("ID %q is not valid", c.ID)
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s: -want +got:\n%s", tc.reason, diff)
			}
		})
	}
}

// TestIdentifyCallsOfATurn checks that many replies with the same IDs get new IDs.
func TestIdentifyCallsOfATurn(t *testing.T) {
	taken := map[string]bool{}
	for step := range 100 {
		calls := []model.ToolCall{{ID: "call_0"}, {ID: "call_0"}, {ID: ""}}
		model.IdentifyCalls(calls, func(id string) bool { return taken[id] })
		for _, c := range calls {
			if taken[c.ID] {
				t.Fatalf("step %d: two calls have the ID %q", step, c.ID)
			}
			taken[c.ID] = true
		}
	}
	if n := len(taken); n != 300 {
		t.Error(fmt.Sprintf("%d IDs", n), "want 300")
	}
}
