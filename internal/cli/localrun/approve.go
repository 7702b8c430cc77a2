package localrun

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/capstan-dev/capstan/internal/cli/decisions"
	"github.com/capstan-dev/capstan/internal/cli/exit"
	"github.com/capstan-dev/capstan/internal/cli/output"
	"github.com/capstan-dev/capstan/internal/cli/terminal"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/termsafe"
)

// ApprovalMode says who decides about calls that require approval.
type ApprovalMode string

const (
	// ApproveAsk asks at a terminal. Without a terminal, the Turn waits.
	ApproveAsk ApprovalMode = "ask"
	// ApproveAll approves all calls.
	ApproveAll ApprovalMode = "all"
	// ApproveNone denies all calls.
	ApproveNone ApprovalMode = "none"
)

// decidedBy stands for the approver: without a cluster, no name of a user is verified.
const decidedBy = "local user"

// sameStep is the maximum time between the expiries of the requests for approval of one step. They are made some
// milliseconds after each other, so they also expire some milliseconds after each other, unless the clock stands still.
const sameStep = time.Second

// errExpired is the error for a request that expired before a reply.
var errExpired = errors.New("the request for approval has expired")

// approvalKey identifies a request for an approval. A request is always about the same call.
type approvalKey struct {
	turnUID, request string
}

// reply is how a question about a call has ended.
type reply struct {
	// approved is the person's decision. expired is true if the request expired before there was one.
	approved, expired bool
}

func approvalKeyOf(w *localTurn, a loop.Approval) approvalKey {
	return approvalKey{string(w.turn.UID), a.Request}
}

// decide returns the decision about a call, or nil if no decision was made. With --approve=all or none, it returns nil
// once the request has expired. A person's reply always counts if it was given in time. If it was not, j.replies says
// so: the clock cannot show that the request has expired if it stands still because of --now. decide never asks a
// question, because the Turn's deadline is running.
func (j *localRun) decide(w *localTurn, a loop.Approval) *loop.Decision {
	d := a.Decided(false)
	d.By = decidedBy
	switch j.Approve {
	case ApproveAll, ApproveNone:
		if !j.Clock()().Before(a.Expires) {
			return nil
		}
		d.Approved, d.Reason = j.Approve == ApproveAll, "--approve="+string(j.Approve)
		return d
	case ApproveAsk:
	}
	r, ok := j.replies[approvalKeyOf(w, a)]
	if !ok {
		return nil
	}
	if d.Approved, d.Expired = r.approved, r.expired; r.expired {
		d.By = ""
	}
	return d
}

// resolve asks for a decision about a pending call. It reports whether the Turn must be run again: there is a reply,
// the request has expired (so the call is denied), or the run is being stopped (so the Turn ends). The Turn's deadline
// does not run during the question. open are all pending calls of the Turn, which expire together with this one.
func (j *localRun) resolve(w *localTurn, a loop.Approval, open []loop.Approval) (bool, error) {
	now := j.Clock()()
	switch {
	case !now.Before(a.Expires) || j.replies[approvalKeyOf(w, a)].expired:
		return true, nil
	case j.ask == nil:
		return false, nil
	}
	begun := time.Now() //nolint:forbidigo // because a duration is measured, not a time of day
	defer func() { j.asking += time.Since(begun) }()
	ctx, cancel := context.WithTimeoutCause(j.watched, a.Expires.Sub(now), errExpired)
	defer cancel()
	j.Env.Logf("%s", strings.TrimSuffix(j.card(w, a), "\n"))
	approved, err := j.ask.Yes(ctx, "approve?")
	switch {
	case errors.Is(err, terminal.ErrNoReply):
		j.Env.Logf("")
		j.ask = nil // the input has ended, so no later question would get a reply
		return false, nil
	case ctx.Err() != nil && err != nil:
		j.Env.Logf("")
		j.ask = nil // a late reply would be taken for the reply to the next question
		if errors.Is(context.Cause(ctx), errExpired) {
			j.expire(w, open, a.Expires)
		}
		return true, nil
	case err != nil:
		return false, exit.WithCode(exit.Failed, fmt.Errorf("failed to ask about %s: %w", termsafe.Line(a.CallID, output.LongestID), err))
	}
	j.replies[approvalKeyOf(w, a)] = reply{approved: approved}
	return true, nil
}

// expire records that the time for a reply to the open requests is over if they expire at this time, before it, or
// within sameStep after it.
func (j *localRun) expire(w *localTurn, open []loop.Approval, at time.Time) {
	for _, a := range open {
		key := approvalKeyOf(w, a)
		if _, replied := j.replies[key]; !replied && !a.Expires.After(at.Add(sameStep)) {
			j.replies[key] = reply{expired: true}
		}
	}
}

// card returns the text that a person sees before the decision about a call.
func (j *localRun) card(w *localTurn, a loop.Approval) string {
	elsewhere := "with --data-dir, capstan logs shows all lines"
	if j.DataDir != "" {
		elsewhere = fmt.Sprintf("run capstan logs %s/%s --data-dir %s to see all lines", w.turn.Namespace, w.turn.Name, j.DataDir)
	}
	return decisions.Card{
		Turn: w.turn.Namespace + "/" + w.turn.Name, Agent: w.AgentName(),
		Tool: a.Name, ToolServerUID: a.ToolServerUID, SchemaHash: a.SchemaHash, Step: a.Step, CallID: a.CallID, RequestID: a.Request,
		ArgumentsHash: a.ArgumentsHash, Requested: a.Requested, Expires: a.Expires,
	}.Text(a.Arguments, elsewhere, j.Clock()())
}

// undecidedError returns an error that names the pending calls and explains how to continue.
func (r *Options) undecidedError() error {
	message := "approval is required for " + strings.Join(r.undecided, ", ") + ": "
	if r.DataDir == "" {
		return errors.New(message + "run the command at a terminal, or with --approve=all or --approve=none; " +
			"with --data-dir, the Turn can continue later from this point")
	}
	return errors.New(message + "run the same command again at a terminal, or with --approve=all or --approve=none")
}

// elapsed returns how long a Turn has run, without the time in which a question was open.
func (j *localRun) elapsed(w *localTurn) time.Duration {
	return time.Since(w.begun) - (j.asking - w.asked)
}
