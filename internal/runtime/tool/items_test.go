package tool_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// TestItems checks that a model receives the items of a list one after another, and that readers of JSON receive the
// list, also after a change of the text.
func TestItems(t *testing.T) {
	for name, tc := range map[string]struct{ reason, list, whole, changed, data string }{
		"texts": {
			"a text may have several lines", `["my secret\nis 7","b"]`, "my secret\nis 7\nb", "my x\nis 7\nb", `["my x\nis 7","b"]`,
		},
		"JSON": {
			"objects and numbers stay JSON", `[{"by":"secret"},7]`, `{"by":"secret"}` + "\n7", `{"by":"x"}` + "\n7", `[{"by":"x"},7]`,
		},
		"a number":      {"the text alone would be other data", `[7]`, "7", "7", `[7]`},
		"no change":     {"the list stays as it is", `["a","b"]`, "a\nb", "a\nb", `["a","b"]`},
		"an empty text": {"it is an item", `["","secret"]`, "\nsecret", "\nx", `["","x"]`},
		"no JSON":       {"an item is not JSON any more", `["secret",null]`, "secret\nnull", "x\ngone", "x\ngone"},
		"fewer lines":   {"the places of the items are unknown", `["a","line","b"]`, "a\nline\nb", "a b", "a b"},
		"more lines":    {"the places of the items are unknown", `["a","more"]`, "a\nmore", "a\nx\ny", "a\nx\ny"},
	} {
		t.Run(name, func(t *testing.T) {
			r := tool.Items(json.RawMessage(tc.list))
			if r.Whole() != tc.whole || r.Data() != tc.list {
				t.Fatalf("Items = %+v with the text %q and the data %q; want %q and %q", r, r.Whole(), r.Data(), tc.whole, tc.list)
			}
			r = r.Map(strings.NewReplacer("secret", "x", "null", "gone", "\nline\n", " ", "more", "x\ny").Replace)
			if r.Whole() != tc.changed || r.Data() != tc.data {
				t.Errorf("after the change, the text is %q and the data %q; want %q and %q: %s", r.Whole(), r.Data(), tc.changed, tc.data,
					tc.reason)
			}
		})
	}
}
