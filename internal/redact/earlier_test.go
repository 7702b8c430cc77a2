package redact_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/redact"
)

func TestEarlier(t *testing.T) {
	var many []string
	for i := range 40 {
		many = append(many, fmt.Sprint("v", i))
	}
	long := make([]string, 6) // each has the maximum length of a credential
	for i := range long {
		long[i] = strings.Repeat(fmt.Sprint(i), 16<<10)
	}
	for name, tc := range map[string]struct {
		reason            string
		earlier, old, now []string
		want              []string
	}{
		"first":          {"there was no value before", nil, nil, []string{"a"}, nil},
		"changed":        {"the old value is kept", nil, []string{"a"}, []string{"b"}, []string{"a"}},
		"again":          {"the newest is last", []string{"a"}, []string{"b"}, []string{"c"}, []string{"a", "b"}},
		"back":           {"a current value is not an earlier one", []string{"a"}, []string{"b"}, []string{"a"}, []string{"b"}},
		"one of several": {"only one value has changed", nil, []string{"a", "b"}, []string{"a", "c"}, []string{"b"}},
		"twice":          {"the latest is last", []string{"a", "b"}, []string{"a"}, []string{"c"}, []string{"b", "a"}},
		"many":           {"the latest stay", many[:39], many[39:], []string{"now"}, many[24:]},
		"long": {
			"the latest values with at most 64 KiB together stay", append([]string{"a"}, long[:5]...), long[5:],
			[]string{"now"},
			long[2:],
		},
		"longer": {
			"an older value does not fill the space that a newer value needs",
			[]string{"a", long[0], long[1], long[2], long[3]},
			[]string{"b"},
			[]string{"now"},
			[]string{long[1], long[2], long[3], "b"},
		},
	} {
		if diff := cmp.Diff(tc.want, redact.RetainPrevious(tc.earlier, tc.old, tc.now)); diff != "" {
			t.Errorf("%s: %s: -want +got:\n%s", name, tc.reason, diff)
		}
	}
}
