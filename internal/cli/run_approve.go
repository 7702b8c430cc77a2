package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/screen"
)

// approvalMode is the value of --approve.
type approvalMode string

const (
	// approveAsk asks at a terminal, and without one leaves the Turn waiting.
	approveAsk approvalMode = "ask"
	// approveAll approves all calls, and approveNone denies them.
	approveAll  approvalMode = "all"
	approveNone approvalMode = "none"
)

// approvalModes are the values of --approve, for messages and completion.
var approvalModes = []string{string(approveAsk), string(approveAll), string(approveNone)}

// String returns the mode.
func (m *approvalMode) String() string { return string(*m) }

// Type names the values in help texts.
func (*approvalMode) Type() string { return strings.Join(approvalModes, "|") }

// Set takes a value of the command line.
func (m *approvalMode) Set(value string) error {
	if !slices.Contains(approvalModes, value) {
		return errors.New("must be ask, all or none")
	}
	*m = approvalMode(value)
	return nil
}

// decidedBy is who decides where no cluster knows people by name.
const decidedBy = "local user"

// errExpired is the cause of a question that nobody has answered in time.
var errExpired = errors.New("the time for a decision is over")

// waitingCall names a request for approval of a Turn: what it shows never changes.
type waitingCall struct {
	turnUID, request string
}

func waitingOf(w *work, a loop.Approval) waitingCall {
	return waitingCall{string(w.turn.UID), a.Request}
}

// decide returns what was decided about a call in time, nil if nothing was. It never asks: the time of the Turn runs meanwhile.
func (j *job) decide(w *work, a loop.Approval) *loop.Decision {
	d := a.Decided(false)
	d.By = decidedBy
	switch j.approve {
	case approveAll, approveNone:
		if !j.clock()().Before(a.Expires) {
			return nil
		}
		d.Approved, d.Reason = j.approve == approveAll, "--approve="+string(j.approve)
		return d
	case approveAsk:
	}
	approved, ok := j.decided[waitingOf(w, a)]
	if !ok {
		return nil
	}
	d.Approved = approved
	return d
}

// resolve asks about a call that waits, and reports whether the Turn can go on: there is a reply, the time for one is over, or
// the run is to end. The time of no Turn runs while it is asked.
func (j *job) resolve(w *work, a loop.Approval) (bool, error) {
	now := j.clock()()
	switch {
	case !now.Before(a.Expires):
		return true, nil
	case j.ask == nil:
		return false, nil
	}
	begun := time.Now() //nolint:forbidigo // because a duration is measured, not a time of day
	defer func() { j.asking += time.Since(begun) }()
	ctx, cancel := context.WithTimeoutCause(j.watched, a.Expires.Sub(now), errExpired)
	defer cancel()
	j.env.tell("%s", strings.TrimSuffix(j.card(w, a), "\n"))
	approved, err := j.ask.yes(ctx, "approve?")
	switch {
	case errors.Is(err, errNoReply):
		j.env.tell("")
		j.ask = nil // and nobody is there for the next one
		return false, nil
	case ctx.Err() != nil && err != nil:
		j.env.tell("")
		j.ask = nil // the reply may still come, and would be taken for one to the next question
		return true, nil
	case err != nil:
		return false, fail(ExitFailed, fmt.Errorf("failed to ask about %s: %w", screen.Line(a.CallID, longestID), err))
	}
	j.decided[waitingOf(w, a)] = approved
	return true, nil
}

// card shows a call that waits.
func (j *job) card(w *work, a loop.Approval) string {
	elsewhere := "--data-dir keeps the journal, of which capstan logs shows all"
	if j.dataDir != "" {
		elsewhere = fmt.Sprintf("capstan logs %s/%s --data-dir %s shows all", w.turn.Namespace, w.turn.Name, j.dataDir)
	}
	rows := []row{{"turn", w.turn.Namespace + "/" + w.turn.Name}, {"agent", w.agent.Name}}
	return callCard(rows, card{
		tool: a.Name, toolServerUID: a.ToolServerUID, schemaHash: a.SchemaHash, step: a.Step, callID: a.CallID, requestID: a.Request,
		hash: a.ArgumentsHash, requested: a.Requested, expires: a.Expires,
	}, a.Arguments, elsewhere, j.clock()())
}

// waits says what a Turn waits for that has not ended, and what to do.
func (r *runner) waits() error {
	message := "a decision is needed about " + strings.Join(r.undecided, ", ") + ": "
	if r.dataDir == "" {
		return errors.New(message + "run it at a terminal, which asks, or with --approve=all or --approve=none; with --data-dir it could go on from here")
	}
	return errors.New(message + "run the same command again at a terminal, which asks, or with --approve=all or --approve=none")
}

// elapsed is how long a Turn has had, but for the time in which people were asked.
func (j *job) elapsed(w *work) time.Duration {
	return time.Since(w.begun) - (j.asking - w.asked)
}
