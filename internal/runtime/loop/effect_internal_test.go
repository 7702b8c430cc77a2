package loop

import "testing"

// TestTookEffect checks that the compensation of a call that another Turn has undone had no effect, because its tool
// was not called.
func TestTookEffect(t *testing.T) {
	for name, c := range map[string]struct {
		result CallResult
		want   bool
	}{
		"succeeded":                {CallResult{Outcome: Succeeded}, true},
		"undone by another Turn":   {CallResult{Outcome: Succeeded, UndoneBy: "other"}, false},
		"unknown":                  {CallResult{Outcome: Unknown}, true},
		"failed":                   {CallResult{Outcome: Failed}, false},
		"failed after it had done": {CallResult{Outcome: Failed, MayHaveActed: true}, true},
		"refused":                  {CallResult{Outcome: Refused}, false},
	} {
		if got := c.result.TookEffect(); got != c.want {
			t.Errorf("%s: %t, want %t", name, got, c.want)
		}
	}
}
