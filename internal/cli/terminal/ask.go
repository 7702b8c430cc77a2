package terminal

import (
	"bufio"
	"context"
	"errors"
	"io"
	"strings"

	"github.com/capstan-dev/capstan/internal/termsafe"
)

// ErrNoReply is the error if the input ends before the reply to a question.
var ErrNoReply = errors.New("there was no reply")

// Asker asks a person questions at a terminal, one at a time.
type Asker struct {
	env Environment
	in  *bufio.Reader
}

// CanAsk reports whether a person can read a question and reply: standard input and standard error are terminals.
func (e Environment) CanAsk() bool { return e.InIsTerminal && e.ErrIsTerminal }

// NewAsker returns an Asker that asks on Err and reads the replies from In.
func NewAsker(env Environment) *Asker {
	return &Asker{env: env, in: bufio.NewReader(env.In)}
}

// Yes asks a question and reports whether the reply is yes. An empty reply means no. At the end of the input, Yes
// returns ErrNoReply. A line that was typed before the question at a terminal is no reply to it: the person has not
// seen the question.
//
// If ctx ends first, Yes returns its cause, and the Asker must not be used again: the goroutine that reads the reply
// runs until a line arrives or the program ends.
func (a *Asker) Yes(ctx context.Context, question string) (bool, error) {
	type reply struct {
		line string
		err  error
	}
	replies := make(chan reply, 1)
	a.discard()
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
			return false, ErrNoReply
		}
		switch strings.ToLower(strings.TrimSpace(got.line)) {
		case "y", "yes":
			return true, nil
		case "n", "no", "":
			return false, nil
		}
		a.env.Logf("Please reply y or n.")
	}
}

// discard drops what was typed so far.
func (a *Asker) discard() {
	if a.env.DiscardInput == nil {
		return
	}
	a.env.DiscardInput()
	_, _ = a.in.Discard(a.in.Buffered()) // never fails, because these bytes are in the buffer
}
