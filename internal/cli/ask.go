package cli

import (
	"bufio"
	"context"
	"errors"
	"io"
	"strings"

	"github.com/capstan-dev/capstan/internal/termsafe"
)

// errNoReply is the error for a question to which the input ended without a reply.
var errNoReply = errors.New("there was no reply")

// asker asks a person questions at a terminal, one at a time.
type asker struct {
	env Environment
	in  *bufio.Reader
}

// canAsk reports whether a person can read a question and reply: standard input and standard error are terminals.
func (e Environment) canAsk() bool { return e.InIsTerminal && e.ErrIsTerminal }

func newAsker(env Environment) *asker {
	return &asker{env: env, in: bufio.NewReader(env.In)}
}

// yes asks a question and reports whether the reply is yes. An empty reply means no. At the end of the input, yes
// returns errNoReply.
//
// If ctx ends first, yes returns its cause. The asker must not be used again then: the goroutine that reads the
// reply runs until a line arrives or the program ends.
func (a *asker) yes(ctx context.Context, question string) (bool, error) {
	type reply struct {
		line string
		err  error
	}
	replies := make(chan reply, 1)
	for {
		if _, err := io.WriteString(a.env.Err, termsafe.Safe(question)+" [y/N] "); err != nil {
			return false, err
		}
		go func() {
			line, err := a.in.ReadString('\n')
			replies <- reply{line, err}
		}()
		var got reply
		select {
		case got = <-replies:
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
		if got.err != nil {
			return false, errNoReply
		}
		switch strings.ToLower(strings.TrimSpace(got.line)) {
		case "y", "yes":
			return true, nil
		case "n", "no", "":
			return false, nil
		}
		a.env.tell("Please reply y or n.")
	}
}
