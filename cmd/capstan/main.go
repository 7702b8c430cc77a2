// Command capstan runs Capstan's engine from a terminal.
package main

import (
	"context"
	"os"
	"path/filepath"
	"time"
	_ "time/tzdata" // Windows has no time zone files that Go can read

	"golang.org/x/term"

	"github.com/capstan-dev/capstan/internal/cli"
	"github.com/capstan-dev/capstan/internal/cli/terminal"
)

// version is set by the build.
var version = "dev"

func main() {
	env := terminal.Environment{
		Program:       filepath.Base(os.Args[0]),
		Version:       version,
		In:            os.Stdin,
		Out:           os.Stdout,
		Err:           os.Stderr,
		InIsTerminal:  term.IsTerminal(int(os.Stdin.Fd())),
		OutIsTerminal: term.IsTerminal(int(os.Stdout.Fd())),
		ErrIsTerminal: term.IsTerminal(int(os.Stderr.Fd())),
		Width:         width,
		LookupEnv:     os.LookupEnv,
		Now:           time.Now,
	}
	out, errOut := terminal.EnableEscapes(os.Stdout), terminal.EnableEscapes(os.Stderr)
	env.NoEscapes = !out || !errOut
	if env.InIsTerminal {
		env.DiscardInput = terminal.InputDiscarder(os.Stdin)
	}
	os.Exit(cli.Execute(context.Background(), env, os.Args[1:]))
}

// width returns the number of columns of the terminal of standard error, or 0 if it is not known.
func width() int {
	columns, _, err := term.GetSize(int(os.Stderr.Fd()))
	if err != nil {
		return 0
	}
	return columns
}
