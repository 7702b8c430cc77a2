package docs_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/cli"
	"github.com/capstan-dev/capstan/internal/cli/terminal"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
)

const promptPage = "docs/prompt.md"

var update = flag.Bool("update", false, "update the output of the commands in "+promptPage)

// console finds the blocks that show a command and its output.
var console = regexp.MustCompile("(?ms)^```console\n(.*?)^```$")

func TestPromptPageShowsRealOutput(t *testing.T) {
	page := read(t, promptPage)
	path, err := filepath.Abs(filepath.Join(root, promptPage))
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(root) // the commands name files relative to the root
	blocks := console.FindAllStringSubmatchIndex(page, -1)
	if len(blocks) == 0 {
		t.Fatalf("%s shows no output", promptPage)
	}
	var current strings.Builder
	end := 0
	for _, at := range blocks {
		shown := page[at[2]:at[3]]
		real := runBlock(t, shown)
		if diff := cmp.Diff(real, shown); diff != "" && !*update {
			t.Errorf("%s shows output that is not current (go test ./test/docs -update corrects it): -real +shown:\n%s",
				promptPage, diff)
		}
		current.WriteString(page[end:at[2]] + real)
		end = at[3]
	}
	if *update {
		if err := os.WriteFile(path, []byte(current.String()+page[end:]), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestPromptPageHasEverySectionAndMessage(t *testing.T) {
	page := read(t, promptPage)
	for _, name := range prompt.SectionNames() {
		if row(page, name) == "" {
			t.Errorf("%s has no row for the section `%s`", promptPage, name)
		}
	}
	for i, name := range []string{
		prepare.MessageSystemPrompt, prepare.MessageRuntimeMetadata, prepare.MessageMemoryContext, prepare.MessageHistory,
		prepare.MessageContextPack, prepare.MessageSkillContext, prepare.MessageUser,
	} {
		if begin := fmt.Sprintf("\n| %d | `%s` |", i+1, name); !strings.Contains(page, begin) {
			t.Errorf("%s has no row %q", promptPage, begin)
		}
	}
}

// runBlock runs the commands of a block, which are the lines that begin with a dollar sign. It returns the commands
// with their output.
func runBlock(t *testing.T, block string) string {
	t.Helper()
	var seen strings.Builder
	code := 0
	for line := range strings.Lines(block) {
		command, ok := strings.CutPrefix(line, "$ ")
		if !ok {
			continue
		}
		seen.WriteString(line)
		command = strings.TrimSpace(command)
		if command == "echo $?" {
			seen.WriteString(strconv.Itoa(code) + "\n")
			continue
		}
		var printed string
		printed, code = runCommand(t, command)
		seen.WriteString(printed)
	}
	return seen.String()
}

var (
	// changed is the beginning of a command that edits a file for its input.
	changed = regexp.MustCompile(`^sed 's/([^/]+)/([^/]+)/' (\S+) \| `)
	// excerpt is the end of a command that shows the lines between two patterns.
	excerpt = regexp.MustCompile(` \| sed -n '/(.+)/,/(.+)/p'$`)
)

// runCommand runs one command line of capstan. It returns the output and the exit code.
func runCommand(t *testing.T, command string) (printed string, code int) {
	t.Helper()
	input := ""
	if m := changed.FindStringSubmatch(command); m != nil {
		data, err := os.ReadFile(m[3])
		if err != nil || !strings.Contains(string(data), m[1]) {
			t.Fatalf("%s: %q changes nothing: %v", promptPage, command, err)
		}
		input = strings.ReplaceAll(string(data), m[1], m[2])
	}
	part := excerpt.FindStringSubmatch(command)
	words := strings.Fields(excerpt.ReplaceAllString(changed.ReplaceAllString(command, ""), ""))
	if words[0] != "capstan" {
		t.Fatalf("%s: a test cannot run %q", promptPage, command)
	}
	var out bytes.Buffer
	code = cli.Execute(t.Context(), terminal.Environment{
		Program: "capstan", In: strings.NewReader(input), Out: &out, Err: &out, LookupEnv: os.LookupEnv, Now: time.Now,
	}, words[1:])
	if part == nil {
		return out.String(), code
	}
	return between(t, out.String(), part[1], part[2]), 0
}

// between returns the lines of a text from the first match of one pattern to the next match of another, like sed.
func between(t *testing.T, text, from, to string) string {
	t.Helper()
	first, last := regexp.MustCompile(from), regexp.MustCompile(to)
	var kept strings.Builder
	inside := false
	for line := range strings.Lines(text) {
		switch {
		case !inside && first.MatchString(line):
			inside = true
			kept.WriteString(line)
		case inside:
			kept.WriteString(line)
			inside = !last.MatchString(line)
		}
	}
	if kept.Len() == 0 {
		t.Fatalf("%s: no line from %q to %q in:\n%s", promptPage, from, to, text)
	}
	return kept.String()
}
