// Package terminal holds what the command line uses from its process: streams, clock and environment variables. It
// also asks questions at a terminal and shows the current activity there.
package terminal

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"time"

	"github.com/capstan-dev/capstan/internal/cli/exit"
	"github.com/capstan-dev/capstan/internal/termsafe"
)

// Environment holds all that the command line uses from its process.
type Environment struct {
	// Program is the name by which the program was called. kubectl-capstan appears as kubectl capstan in help
	// texts.
	Program string
	// Version is the version of the program.
	Version string
	// In is read for the path "-" and for replies to questions. Out receives results, Err everything else.
	In       io.Reader
	Out, Err io.Writer
	// InIsTerminal, OutIsTerminal and ErrIsTerminal report whether In, Out and Err are terminals.
	InIsTerminal, OutIsTerminal, ErrIsTerminal bool
	// NoEscapes is true if the terminal of Out or Err shows escape sequences as text.
	NoEscapes bool
	// DiscardInput drops what was typed at the terminal of In and is not read yet. It is nil if In is not a terminal.
	DiscardInput func()
	// Width returns the number of columns of the terminal of Err, or 0 if it is not known. It may be nil.
	Width func() int
	// LookupEnv returns the value of an environment variable, as os.LookupEnv does. It must not be nil.
	LookupEnv func(name string) (value string, ok bool)
	// Now returns the current time. It must not be nil.
	Now func() time.Time
}

// Logf writes a line to Err. It ignores write errors, because there is no other place to report them. If Err is no
// terminal, a CI server may read it, so the line gives no commands.
func (e Environment) Logf(format string, args ...any) {
	text := termsafe.Safe(fmt.Sprintf(format, args...))
	if !e.ErrIsTerminal {
		text = termsafe.Inert(text)
	}
	_, _ = io.WriteString(e.Err, text+"\n")
}

// Print writes a result to Out.
func (e Environment) Print(text string) error {
	if _, err := io.WriteString(e.Out, text); err != nil {
		return exit.WithCode(exit.Failed, fmt.Errorf("failed to write to standard output: %w", err))
	}
	return nil
}

// PrintPaid is like Print, for a result that was paid for. If Out cannot be written, for example because the disk is
// full, PrintPaid writes the result to Err. It does not if the reader of a pipe has gone, as in capstan run | head.
func (e Environment) PrintPaid(text string) error {
	err := e.Print(text)
	if err != nil && !errors.Is(err, syscall.EPIPE) {
		e.Logf("Standard output cannot be written, so the result follows here:\n%s", strings.TrimSuffix(text, "\n"))
	}
	return err
}

// IsDumb reports whether the terminal has no colours and cannot erase a line.
func (e *Environment) IsDumb() bool {
	kind, _ := e.LookupEnv("TERM")
	return kind == "dumb" || e.NoEscapes
}

// ForScreen removes characters that control a terminal from a text if Out is a terminal. Line feeds and tabs stay.
func (e Environment) ForScreen(text string) string {
	if !e.OutIsTerminal {
		return text
	}
	return termsafe.Strip(text)
}
