package terminal_test

import (
	"bytes"
	"io"
	"testing"

	"github.com/capstan-dev/capstan/internal/cli/terminal"
)

// keyboard is a terminal at which a person types. Each read returns one text. Discard drops the first text if early is
// true, which means that it was typed before the question.
type keyboard struct {
	texts []string
	early bool
}

func (k *keyboard) Read(p []byte) (int, error) {
	if len(k.texts) == 0 {
		return 0, io.EOF
	}
	n := copy(p, k.texts[0])
	k.texts = k.texts[1:]
	return n, nil
}

func (k *keyboard) discard() {
	if k.early {
		k.texts = k.texts[1:]
	}
}

// TestEarlyReplyIsDropped checks that a line that was typed before a question at a terminal does not answer it.
func TestEarlyReplyIsDropped(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		reason   string
		texts    []string
		early    bool
		terminal bool
		second   bool
	}{
		"read with the first reply": {"the Asker has read the line too early", []string{"y\ny\n", "n\n"}, false, true, false},
		"typed after it":            {"the line is still in the terminal", []string{"y\n", "y\n", "n\n"}, true, true, false},
		"not a terminal":            {"the input is not typed", []string{"y\ny\n", "n\n"}, false, false, true},
		"not understood":            {"the question is the same", []string{"y\n", "what?\ny\n"}, false, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := &keyboard{texts: tc.texts}
			env := terminal.Environment{In: k, Err: &bytes.Buffer{}}
			if tc.terminal {
				env.DiscardInput = k.discard
			}
			a := terminal.NewAsker(env)
			if yes, err := a.Yes(t.Context(), "one?"); !yes || err != nil {
				t.Fatalf("want yes, have %t and %v", yes, err)
			}
			k.early = tc.early
			if yes, err := a.Yes(t.Context(), "two?"); yes != tc.second || err != nil {
				t.Errorf("%s: want the second reply %t, have %t and %v", tc.reason, tc.second, yes, err)
			}
		})
	}
}

// TestLogfGivesNoCommands checks that a quoted text cannot give a command to a CI server, which reads the output, and
// that a person at a terminal sees the text as it is.
func TestLogfGivesNoCommands(t *testing.T) {
	t.Parallel()
	const text = "##vso[task.setvariable variable=PATH]/tmp\n::stop-commands::x"
	for isTerminal, want := range map[bool]string{
		true: text + "\n", false: "## vso[task.setvariable variable=PATH]/tmp\n: :stop-commands::x\n",
	} {
		var out bytes.Buffer
		terminal.Environment{Err: &out, ErrIsTerminal: isTerminal}.Logf("%s", text)
		if out.String() != want {
			t.Errorf("Logf wrote %q, want %q", out.String(), want)
		}
	}
}
