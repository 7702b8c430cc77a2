//go:build unix

package cli_test

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/capstan-dev/capstan/internal/cli"
	"github.com/capstan-dev/capstan/internal/cli/exit"
	"github.com/capstan-dev/capstan/internal/cli/terminal"
)

// fullDisk is the environment variable with what the program of TestFullDisk does when the journal cannot be written:
// nothing, "Ctrl-C" or "space".
const fullDisk = "CAPSTAN_TEST_FULL_DISK"

// TestFullDisk runs a Turn whose answer does not fit on the disk any more. The limit of the size of files takes the
// place of a full disk, because it needs no permission: the write of the reply fails, too.
func TestFullDisk(t *testing.T) {
	if then, ok := os.LookupEnv(fullDisk); ok {
		runOnFullDisk(t, then)
	}
	t.Parallel()
	random := make([]byte, 600<<10)
	_, _ = rand.Read(random)                            // never fails
	answer := base64.StdEncoding.EncodeToString(random) // no compression makes it fit
	for name, tc := range map[string]struct {
		reason string
		// then is the value of fullDisk.
		then string
		// temporary is true if the run keeps no journal.
		temporary bool
		code      int
		// asked is the number of requests of this run and of the next one.
		asked [2]int
		says  []string
	}{
		"nobody watches": {
			"the run ends, and its answer is not lost", "", false, exit.Failed,
			[2]int{1, 2},
			[]string{
				"Waiting until the journal in DIR can be written; Ctrl-C stops the run", "check the volume and its limits",
				"capstan: Turn default/first: the journal in DIR could not record this answer",
				"capstan logs does not show it", "may ask the model again",
			},
		},
		"nobody watches, no journal": {
			"the journal would be deleted anyway", "", true, exit.OK,
			[2]int{1, 2},
			[]string{"Waiting until the journal in ", "could not record this answer"},
		},
		"a person stops the run": {
			"the answer is not lost", "Ctrl-C", false, exit.Interrupted,
			[2]int{1, 2},
			[]string{"Ctrl-C stops the run", "the journal in DIR could not record this answer", "may ask the model again"},
		},
		"a person stops the run, no journal": {
			"the answer is not lost", "Ctrl-C", true, exit.Interrupted,
			[2]int{1, 2},
			[]string{"Ctrl-C stops the run", "could not record this answer"},
		},
		"a person makes space": {
			"the run continues as if nothing had happened", "space", false, exit.OK,
			[2]int{1, 1},
			[]string{"Waiting until the journal in DIR can be written; Ctrl-C stops the run"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			model, url := fake(t, "rules: [{reply: {text: '"+answer+"', chunkChars: 65536}}]")
			dir, data := complete().written(t, url), filepath.Join(t.TempDir(), "data")
			args := []string{"run", "-f", dir, "--now", noon}
			if !tc.temporary {
				args = append(args, "--data-dir", data)
			}
			program := exec.CommandContext(t.Context(), os.Args[0], append([]string{"-test.run=^TestFullDisk$", "--"}, args...)...)
			temporary := t.TempDir()
			program.Env = append(os.Environ(), fullDisk+"="+tc.then, "TMPDIR="+temporary)
			var got output
			var out, errOut strings.Builder
			program.Stdout, program.Stderr = &out, &errOut
			_ = program.Run() // the exit code has the error
			got = output{program.ProcessState.ExitCode(), out.String(), errOut.String()}
			if got.code != tc.code {
				t.Errorf("exit code %d, want %d: %s; standard error:\n%s", got.code, tc.code, tc.reason, got.err)
			}
			if strings.TrimSpace(got.out) != strings.TrimSpace(answer) {
				t.Errorf("standard output has %d bytes, want the answer with %d: %s", len(got.out), len(answer), tc.reason)
			}
			for _, want := range tc.says {
				mustSay(t, got.err, strings.ReplaceAll(want, "DIR", data))
			}
			if strings.Contains(got.err, "manager") {
				t.Errorf("the advice is for the manager:\n%s", got.err)
			}
			if left, err := os.ReadDir(temporary); err != nil || len(left) > 0 {
				t.Errorf("want no temporary journal, have %v, %v", left, err)
			}
			if n := len(model.Requests()); n != tc.asked[0] {
				t.Errorf("%d requests, want %d", n, tc.asked[0])
			}
			next := capstan(t, args...).mustEnd(t, exit.OK)
			if n := len(model.Requests()); n != tc.asked[1] || strings.TrimSpace(next.out) != strings.TrimSpace(answer) {
				t.Errorf("%d requests after the next run, want %d and the answer", n, tc.asked[1])
			}
		})
	}
}

// runOnFullDisk runs the command line in the arguments of this process, as if the disk was nearly full.
func runOnFullDisk(t *testing.T, then string) {
	var before syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &before); err != nil {
		t.Fatal(err)
	}
	signal.Ignore(syscall.SIGXFSZ)
	limit := func(to uint64) {
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: to, Max: before.Max}); err != nil {
			t.Fatal(err)
		}
	}
	limit(768 << 10)
	ctx, cancel := context.WithCancel(t.Context())
	onError := func(text string) {
		switch waits := strings.Contains(text, "Waiting until the journal"); {
		case waits && then == "Ctrl-C":
			cancel()
		case waits && then == "space":
			limit(before.Cur)
		}
	}
	code := cli.Execute(ctx, terminal.Environment{
		In: strings.NewReader(""), Out: os.Stdout, Err: notifying{os.Stderr, onError}, ErrIsTerminal: then != "",
		LookupEnv: os.LookupEnv, Now: time.Now,
	}, os.Args[3:])
	cancel()
	os.Exit(code)
}
