//go:build unix

package cli_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/capstan-dev/capstan/internal/cli"
	"github.com/capstan-dev/capstan/internal/cli/exit"
	"github.com/capstan-dev/capstan/internal/cli/terminal"
)

// TestReadOnlyDataDir reads the journal of a Turn that was interrupted from a directory that cannot be written.
func TestReadOnlyDataDir(t *testing.T) {
	const variable = "CAPSTAN_TEST_READ_ONLY"
	if os.Getenv(variable) != "" { // the program that reads
		if nobody := 65534; os.Geteuid() == 0 { // permissions do not bind root
			if err := errors.Join(syscall.Setgroups(nil), syscall.Setgid(nobody), syscall.Setuid(nobody)); err != nil {
				t.Fatal(err)
			}
		}
		os.Exit(cli.Execute(t.Context(), terminal.Environment{
			In: strings.NewReader(""), Out: os.Stdout, Err: os.Stderr, LookupEnv: os.LookupEnv, Now: time.Now,
		}, os.Args[3:]))
	}
	_, url := fake(t, "rules: [{fault: {hang: AfterHeaders}}]")
	dir, data := complete().written(t, url), t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	call{onError: func(text string) {
		if strings.Contains(text, "Asking small") {
			cancel()
		}
	}}.run(ctx, "run", "-f", dir, "--data-dir", data).mustEnd(t, exit.Interrupted)
	all, err := filepath.Glob(filepath.Join(data, "*"))
	for _, file := range all {
		err = errors.Join(err, os.Chmod(file, 0o444))
	}
	if err := errors.Join(err, os.Chmod(filepath.Dir(data), 0o755), os.Chmod(data, 0o555)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Chmod(data, 0o700); err != nil {
			t.Error(err)
		}
	})
	for _, tc := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"logs", "first"}, exit.OK, "Turn default/first"},
		{[]string{"export", "turn", "first"}, exit.OK, "model.requested"},
		{[]string{"decisions"}, exit.OK, ""},
		{[]string{"memory", "list"}, exit.OK, ""},
		{[]string{"logs", "-f", "first"}, exit.Failed, "new entries cannot be followed: leave out -f"},
	} {
		args := append([]string{"-test.run=^TestReadOnlyDataDir$", "--"}, tc.args...)
		program := exec.CommandContext(t.Context(), os.Args[0], append(args, "--data-dir", data)...)
		program.Env = append(os.Environ(), variable+"=1")
		out, _ := program.CombinedOutput() // the exit code has the error
		output{code: program.ProcessState.ExitCode(), out: string(out)}.mustEnd(t, tc.code)
		mustSay(t, string(out), tc.says)
	}
}
