package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/termsafe"
)

// approvalMode is the value of --approve.
type approvalMode string

const (
	// approveAsk asks at a terminal. Without a terminal, the Turn waits.
	approveAsk approvalMode = "ask"
	// approveAll approves all calls, and approveNone denies them.
	approveAll  approvalMode = "all"
	approveNone approvalMode = "none"
)

// approvalModes lists the values of --approve, for messages and completion.
var approvalModes = []string{string(approveAsk), string(approveAll), string(approveNone)}

// String returns the mode.
func (m *approvalMode) String() string { return string(*m) }

// Type returns the values for help texts.
func (*approvalMode) Type() string { return strings.Join(approvalModes, "|") }

// Set parses a value of the command line.
func (m *approvalMode) Set(value string) error {
	if !slices.Contains(approvalModes, value) {
		return errors.New("must be ask, all or none")
	}
	*m = approvalMode(value)
	return nil
}

// decidedBy is the name of the approver, because without a cluster people have no names.
const decidedBy = "local user"

// errExpired is the cause of a question that expired without a reply.
var errExpired = errors.New("the request for approval has expired")

// waitingCall identifies a request for an approval. The call that the request shows never changes.
type waitingCall struct {
	turnUID, request string
}

func waitingOf(w *localTurn, a loop.Approval) waitingCall {
	return waitingCall{string(w.turn.UID), a.Request}
}

// decide returns the decision about a call, or nil if there is none or if the request has expired. It never asks a
// question, because the Turn's time is running.
func (j *localRun) decide(w *localTurn, a loop.Approval) *loop.Decision {
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

// resolve asks for a decision about a pending call. It reports whether the Turn can continue: there is a reply, the
// request has expired, or the run is being stopped. The Turn's time does not run during the question.
func (j *localRun) resolve(w *localTurn, a loop.Approval) (bool, error) {
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
		j.ask = nil // and no later question would get a reply
		return false, nil
	case ctx.Err() != nil && err != nil:
		j.env.tell("")
		j.ask = nil // a late reply would count for the next question
		return true, nil
	case err != nil:
		return false, fail(ExitFailed, fmt.Errorf("failed to ask about %s: %w", termsafe.Line(a.CallID, longestID), err))
	}
	j.decided[waitingOf(w, a)] = approved
	return true, nil
}

// card returns the text that a person sees before the decision about a call.
func (j *localRun) card(w *localTurn, a loop.Approval) string {
	elsewhere := "with --data-dir, capstan logs shows all"
	if j.dataDir != "" {
		elsewhere = fmt.Sprintf("run capstan logs %s/%s --data-dir %s to see all", w.turn.Namespace, w.turn.Name, j.dataDir)
	}
	rows := []row{{"turn", w.turn.Namespace + "/" + w.turn.Name}, {"agent", w.agent.Name}}
	return callCard(rows, card{
		tool: a.Name, toolServerUID: a.ToolServerUID, schemaHash: a.SchemaHash, step: a.Step, callID: a.CallID, requestID: a.Request,
		hash: a.ArgumentsHash, requested: a.Requested, expires: a.Expires,
	}, a.Arguments, elsewhere, j.clock()())
}

// waits returns an error that names the pending calls and says what to do.
func (r *runCommand) waits() error {
	message := "approval is required for " + strings.Join(r.undecided, ", ") + ": "
	if r.dataDir == "" {
		return errors.New(message + "run the command at a terminal, or with --approve=all or --approve=none; " +
			"with --data-dir, the Turn could continue from here")
	}
	return errors.New(message + "run the same command again at a terminal, or with --approve=all or --approve=none")
}

// elapsed returns how long a Turn has run, without the time of questions.
func (j *localRun) elapsed(w *localTurn) time.Duration {
	return time.Since(w.begun) - (j.asking - w.asked)
}
