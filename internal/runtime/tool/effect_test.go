package tool_test

import (
	"fmt"
	"testing"

	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// TestHintsMayOnlyMakeAnEffectStricter goes through all that a server can say of a tool: no hint grants an effect that is not
// declared, and one that contradicts the declaration takes it back.
func TestHintsMayOnlyMakeAnEffectStricter(t *testing.T) {
	effects := []tool.Effect{"", "Unheard", tool.Destructive, tool.Idempotent, tool.ReadOnly}
	for _, readOnly := range []bool{false, true} {
		for _, idempotent := range []bool{false, true} {
			for _, destructive := range []*bool{nil, new(false), new(true)} {
				h := tool.Hints{ReadOnly: readOnly, Idempotent: idempotent, Destructive: destructive}
				for _, declared := range effects {
					got := tool.Judge(declared, h)
					if got != tool.Stricter(got, declared) {
						t.Errorf("declared %q with %s: %s, which is less strict", declared, said(h), got)
					}
					if got != tool.Destructive && got != declared {
						t.Errorf("declared %q with %s: %s, want the declaration or Destructive", declared, said(h), got)
					}
				}
			}
		}
	}
}

func said(h tool.Hints) string {
	text := fmt.Sprintf("readOnlyHint %t, idempotentHint %t", h.ReadOnly, h.Idempotent)
	if h.Destructive != nil {
		text += fmt.Sprintf(", destructiveHint %t", *h.Destructive)
	}
	return text
}

func TestEffectsThatHintsContradict(t *testing.T) {
	for name, tc := range map[string]struct {
		reason   string
		declared tool.Effect
		hints    tool.Hints
		want     tool.Effect
	}{
		"no hints":                     {"the declaration decides", tool.ReadOnly, tool.Hints{}, tool.ReadOnly},
		"agreed":                       {"so it does where the server agrees", tool.ReadOnly, tool.Hints{ReadOnly: true, Destructive: new(false)}, tool.ReadOnly},
		"not declared":                 {"a hint grants nothing", "", tool.Hints{ReadOnly: true}, tool.Destructive},
		"not declared, idempotent":     {"whatever it claims", "", tool.Hints{Idempotent: true, Destructive: new(false)}, tool.Destructive},
		"declared destructive":         {"nor does it soften a declaration", tool.Destructive, tool.Hints{ReadOnly: true}, tool.Destructive},
		"destroys":                     {"who owns the server knows less of it than the server", tool.ReadOnly, tool.Hints{Destructive: new(true)}, tool.Destructive},
		"destroys, and only reads":     {"a server that says both is not believed", tool.ReadOnly, tool.Hints{ReadOnly: true, Destructive: new(true)}, tool.Destructive},
		"idempotent":                   {"as declared", tool.Idempotent, tool.Hints{}, tool.Idempotent},
		"idempotent, destroys":         {"by the protocol it is not idempotent then", tool.Idempotent, tool.Hints{Destructive: new(true)}, tool.Destructive},
		"idempotent, both":             {"it may destroy the same thing twice", tool.Idempotent, tool.Hints{Destructive: new(true), Idempotent: true}, tool.Idempotent},
		"idempotent, claims to read":   {"the declaration is the stricter one", tool.Idempotent, tool.Hints{ReadOnly: true}, tool.Idempotent},
		"an effect that nobody knows":  {"what is not known may do harm", "readonly", tool.Hints{ReadOnly: true}, tool.Destructive},
		"idempotent, does not destroy": {"both agree", tool.Idempotent, tool.Hints{Idempotent: true, Destructive: new(false)}, tool.Idempotent},
	} {
		if got := tool.Judge(tc.declared, tc.hints); got != tc.want {
			t.Errorf("%s: declared %q with %s is %s, want %s: %s", name, tc.declared, said(tc.hints), got, tc.want, tc.reason)
		}
	}
}
