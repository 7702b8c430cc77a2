package fairgate_test

import (
	"slices"
	"testing"

	"github.com/capstan-dev/capstan/internal/fairgate"
)

func TestInTurn(t *testing.T) {
	for name, tc := range map[string]struct{ given, want []string }{
		"nothing":    {nil, nil},
		"one group":  {[]string{"a1", "a2"}, []string{"a1", "a2"}},
		"two groups": {[]string{"a1", "a2", "a3", "b1", "b2"}, []string{"a1", "b1", "a2", "b2", "a3"}},
		"mixed":      {[]string{"b1", "a1", "b2", "c1"}, []string{"b1", "a1", "c1", "b2"}},
	} {
		if got := fairgate.InTurn(tc.given, func(s string) string { return s[:1] }); !slices.Equal(got, tc.want) {
			t.Errorf("%s: got %q, want %q", name, got, tc.want)
		}
	}
}
