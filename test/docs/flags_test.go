package docs_test

import (
	"io"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/capstan-dev/capstan/internal/cli"
	"github.com/capstan-dev/capstan/internal/cli/terminal"
	"github.com/capstan-dev/capstan/internal/manager"
)

func TestEveryFlagOfTheManagerIsOnItsPage(t *testing.T) {
	const path = "docs/operations.md"
	page := read(t, path)
	var o manager.Options
	flags := pflag.NewFlagSet("manager", pflag.ContinueOnError)
	o.AddFlags(flags)
	flags.VisitAll(func(f *pflag.Flag) {
		line := row(page, "--"+f.Name)
		variable := manager.EnvPrefix + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		if !strings.Contains(line, "| `"+variable+"` |") {
			t.Errorf("%s must have a row for `--%s` with its environment variable `%s`, has: %q", path, f.Name, variable, line)
		}
		// The page describes empty defaults in words.
		if d := f.DefValue; d != "" && d != "[]" && !strings.Contains(line, "| `"+d+"` |") {
			t.Errorf("%s: the row of `--%s` must give its default `%s`: %q", path, f.Name, d, line)
		}
		if !strings.Contains(page, f.Usage) {
			t.Errorf("%s: the output of --help is not current: it lacks %q", path, f.Usage)
		}
	})
}

func TestTheHelpOfTheCommandLineIsOnItsPage(t *testing.T) {
	const path = "docs/cli.md"
	page := read(t, path)
	for _, cmd := range commandLine().Commands() {
		switch cmd.Name() {
		case "help":
		case "render", "run", "logs", "approve", "cancel":
			// The page omits the trailing spaces of the help.
			for line := range strings.Lines(help(t, cmd)) {
				if line = strings.TrimRight(line, " \n"); line != "" && !strings.Contains(page, line) {
					t.Errorf("%s: the output of capstan %s --help is not current: it lacks %q", path, cmd.Name(), line)
				}
			}
		default:
			if row(page, "capstan "+cmd.Name()) == "" {
				t.Errorf("%s has no row for `capstan %s`", path, cmd.Name())
			}
		}
	}
}

func commandLine() *cobra.Command {
	return cli.Command(terminal.Environment{In: strings.NewReader(""), Out: io.Discard, Err: io.Discard})
}

func help(t *testing.T, cmd *cobra.Command) string {
	t.Helper()
	var text strings.Builder
	cmd.SetOut(&text)
	cmd.InitDefaultHelpFlag()
	if err := cmd.Help(); err != nil {
		t.Fatal(err)
	}
	return text.String()
}

var metricName = regexp.MustCompile(`"((?:capstan|gen_ai_client)_[a-z_]+)"`)

func TestEveryMetricIsOnItsPage(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(root, "internal", "metrics", "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	page, names := read(t, "docs/operations.md"), 0
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		for _, name := range metricName.FindAllStringSubmatch(read(t, "internal/metrics/"+filepath.Base(file)), -1) {
			names++
			if !regexp.MustCompile("(?m)^\\| [^|]*`" + name[1] + "`[^|]* \\|").MatchString(page) {
				t.Errorf("docs/operations.md has no row for the metric `%s`", name[1])
			}
		}
	}
	if names < 30 {
		t.Fatalf("found %d metrics in internal/metrics, want at least 30: have they moved?", names)
	}
}
