package cli

import (
	"bufio"
	"context"
	"errors"
	"io"
	"strings"

	"github.com/capstan-dev/capstan/internal/screen"
)

// errNoReply is the error for a person who is gone.
var errNoReply = errors.New("there was no reply")

// asker asks a person who sits at a terminal. One question is asked at a time.
type asker struct {
	env Environment
	in  *bufio.Reader
}

// canAsk reports whether a person reads what is asked, and can reply.
func (e Environment) canAsk() bool { return e.InIsTerminal && e.ErrIsTerminal }

func newAsker(env Environment) *asker {
	return &asker{env: env, in: bufio.NewReader(env.In)}
}

// yes asks a question, and reports whether the reply is yes; an empty one is no. It returns errNoReply at the end of the input,
// and the cause of a ctx that ends first: nothing can be asked after that, since the reading of the reply goes on until there is
// one or the program ends.
func (a *asker) yes(ctx context.Context, question string) (bool, error) {
	type reply struct {
		line string
		err  error
	}
	replies := make(chan reply, 1)
	for {
		if _, err := io.WriteString(a.env.Err, screen.Safe(question)+" [y/N] "); err != nil {
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
