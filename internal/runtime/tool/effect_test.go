package tool_test

import (
	"fmt"
	"testing"

	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// TestHintsMayOnlyMakeAnEffectStricter checks all combinations of hints. No hint grants an effect that is not
// declared, and a hint that contradicts a declaration cancels it.
func TestHintsMayOnlyMakeAnEffectStricter(t *testing.T) {
	effects := []tool.Effect{"", "Unheard", tool.Destructive, tool.Idempotent, tool.ReadOnly}
	for _, readOnly := range []bool{false, true} {
		for _, idempotent := range []bool{false, true} {
			for _, destructive := range []*bool{nil, new(false), new(true)} {
				h := tool.Hints{ReadOnly: readOnly, Idempotent: idempotent, Destructive: destructive}
				for _, declared := range effects {
					got := tool.ResolveEffect(declared, h)
					if got != tool.Stricter(got, declared) {
						t.Errorf("declared %q with %s: %s, want nothing less strict than the declaration", declared, hintsText(h), got)
					}
					if got != tool.Destructive && got != declared {
						t.Errorf("declared %q with %s: %s, want the declaration or Destructive", declared, hintsText(h), got)
					}
				}
			}
		}
	}
}

// hintsText returns the hints as text for a failure message.
func hintsText(h tool.Hints) string {
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
		"no hints": {"the declaration decides", tool.ReadOnly, tool.Hints{}, tool.ReadOnly},
		"hints agree": {
			"the hints agree with the declaration", tool.ReadOnly,
			tool.Hints{ReadOnly: true, Destructive: new(false)},
			tool.ReadOnly,
		},
		"not declared": {"a hint does not grant an effect", "", tool.Hints{ReadOnly: true}, tool.Destructive},
		"not declared, idempotent": {
			"a hint does not grant an effect", "", tool.Hints{Idempotent: true, Destructive: new(false)}, tool.Destructive,
		},
		"declared destructive": {
			"a hint does not soften a declaration", tool.Destructive, tool.Hints{ReadOnly: true}, tool.Destructive,
		},
		"hint destroys": {
			"a hint that the tool destroys overrides the declaration", tool.ReadOnly,
			tool.Hints{Destructive: new(true)},
			tool.Destructive,
		},
		"hints contradict each other": {
			"contradictory hints count as destructive", tool.ReadOnly,
			tool.Hints{ReadOnly: true, Destructive: new(true)},
			tool.Destructive,
		},
		"idempotent": {"the declaration decides", tool.Idempotent, tool.Hints{}, tool.Idempotent},
		"idempotent, destroys": {
			"by the protocol, a destructive tool without an idempotent hint is not idempotent", tool.Idempotent,
			tool.Hints{Destructive: new(true)},
			tool.Destructive,
		},
		"idempotent, hints destroys and idempotent": {
			"an idempotent call may destroy the same thing twice", tool.Idempotent,
			tool.Hints{Destructive: new(true), Idempotent: true},
			tool.Idempotent,
		},
		"idempotent, claims to read": {
			"the declaration is stricter than the hint", tool.Idempotent, tool.Hints{ReadOnly: true}, tool.Idempotent,
		},
		"unknown effect": {
			"an unknown effect is Destructive", "readonly", tool.Hints{ReadOnly: true}, tool.Destructive,
		},
		"idempotent, does not destroy": {
			"the hints agree with the declaration", tool.Idempotent,
			tool.Hints{Idempotent: true, Destructive: new(false)},
			tool.Idempotent,
		},
	} {
		if got := tool.ResolveEffect(tc.declared, tc.hints); got != tc.want {
			t.Errorf("%s: declared %q with %s is %s, want %s: %s", name, tc.declared, hintsText(tc.hints), got, tc.want, tc.reason)
		}
	}
}
