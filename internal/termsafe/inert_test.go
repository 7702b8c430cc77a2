package termsafe_test

import (
	"testing"

	"github.com/capstan-dev/capstan/internal/termsafe"
)

func TestInert(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ reason, text, want string }{
		"plain":      {"other texts stay", "a::b ## Title\n#[1] [[x]]\n : y\n", "a::b ## Title\n#[1] [[x]]\n : y\n"},
		"line":       {"GitHub ignores the space before a command", "a\n ::set-output name=x::y", "a\n : :set-output name=x::y"},
		"first line": {"a text may begin with a command", "::stop-commands::x", ": :stop-commands::x"},
		"older form": {"GitHub finds it anywhere in a line", "a ##[set-output name=x]y", "a ## [set-output name=x]y"},
		"Azure":      {"it may set a variable of the next task", "a ##vso[task.setvariable]x", "a ## vso[task.setvariable]x"},
		"TeamCity":   {"it may publish a file", "##teamcity[publishArtifacts 'x']", "## teamcity[publishArtifacts 'x']"},
		"file":       {"the file would be published", "a\n[[ATTACHMENT|/etc/passwd]]", "a\n[[ ATTACHMENT|/etc/passwd]]"},
		"case":       {"servers may ignore the case", "##VSO[a] [[Attachment|b]]", "## VSO[a] [[ Attachment|b]]"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := termsafe.Inert(tc.text); got != tc.want {
				t.Errorf("Inert(%q) is %q, want %q: %s", tc.text, got, tc.want, tc.reason)
			}
		})
	}
}
