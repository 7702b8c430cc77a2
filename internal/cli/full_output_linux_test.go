package cli_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/capstan-dev/capstan/internal/cli"
	"github.com/capstan-dev/capstan/internal/cli/exit"
	"github.com/capstan-dev/capstan/internal/cli/terminal"
)

// TestResultsOnFullDisk writes results that were paid for to a full disk. They must not be lost.
func TestResultsOnFullDisk(t *testing.T) {
	t.Parallel()
	_, url := fake(t, evalRules)
	f := evalFiles(t)
	f["turn.yaml"] = turnYAML
	dir := f.written(t, url)
	answer := capstan(t, "run", "-f", dir, "-q").mustEnd(t, exit.OK).out
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"answer": {[]string{"run", "-f", dir, "--turn", "first", "-q"}, answer},
		"Turn":   {[]string{"run", "-f", dir, "--turn", "first", "-q", "-o", "json"}, `"type": "Succeeded"`},
		"report": {[]string{"eval", "-q", "-m", dir, "-f", "-", "-o", "junit"}, "<testsuite"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = out.Close() }()
			var errOut strings.Builder
			code := cli.Execute(t.Context(), terminal.Environment{
				In: strings.NewReader(strings.Replace(passing, "manifests: [manifests]\n", "", 1)), Out: out, Err: &errOut,
				LookupEnv: os.LookupEnv, Now: time.Now,
			}, tc.args)
			if code != exit.Failed {
				t.Errorf("exit code %d, want %d", code, exit.Failed)
			}
			mustSay(t, errOut.String(), "Standard output cannot be written, so the result follows here:\n", tc.want,
				"capstan: failed to write to standard output: write /dev/full: no space left on device")
		})
	}
}

// TestTemporaryJournalWithoutSpace runs a Turn whose temporary journal cannot be created.
func TestTemporaryJournalWithoutSpace(t *testing.T) {
	t.Setenv("TMPDIR", filepath.Join(t.TempDir(), "missing"))
	got := capstan(t, "run", "-f", complete().written(t, nowhere)).mustEnd(t, exit.Failed)
	mustSay(t, got.err, syscall.ENOENT.Error(), "this journal is temporary: set TMPDIR to another directory")
}
