package executor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/approvals"
	"github.com/capstan-dev/capstan/internal/metrics"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/translate"
	"github.com/capstan-dev/capstan/internal/turnstatus"
)

// park unbinds a Turn that waits for approvals, for the Turns of sub-agents, or for a Budget, in one write. The Turn
// then occupies no slot. An Event asks for the approvals that were not requested before.
func (r *run) park(ctx context.Context, waits *loop.Parked) {
	e := r.executor
	before := r.turn.Status.PendingApprovals
	written := r.await(ctx, func(t *v1alpha1.Turn, known turnstatus.Run, now time.Time) { turnstatus.Park(t, known, waits, now) })
	if written == nil {
		return
	}
	metrics.Parked(written)
	if asked := newApprovalTools(before, written.Status.PendingApprovals); len(asked) > 0 {
		e.Events.Eventf(written, nil, corev1.EventTypeNormal, v1alpha1.EventAwaitingApproval, "Approve", "%s",
			fmt.Sprintf("approval required for %s: %s", strings.Join(asked, ", "), translate.HowToDecide(written)))
	}
}

// newApprovalTools returns the tools of the calls that have become pending, each tool once.
func newApprovalTools(before, after []v1alpha1.PendingApproval) []string {
	var names []string
	for _, p := range after {
		known := slices.ContainsFunc(before, func(b v1alpha1.PendingApproval) bool {
			return b.RequestID == p.RequestID
		})
		if name := "tool " + p.Name; !known && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// parkedAgain reports whether a run has parked its Turn without any progress, as can happen if the clocks of the
// controller and of this process differ.
func (r *run) parkedAgain(waits *loop.Parked) bool {
	if r.progress.last() != nil || r.epoch == 1 {
		return false
	}
	for _, a := range waits.Approvals {
		if a.Requested.After(r.begun) {
			return false
		}
	}
	return true
}

// fieldApprovalTurn is the selectable field of a ToolApproval that names its Turn.
const fieldApprovalTurn = "spec.turnRef.name"

// decide returns the decision about a call that requires approval, or nil if none has been made. People can decide only
// about calls that the status listed when this run was bound; for all others decide returns loop.ErrNotListed. A
// suspension, for example, removes calls from the status that may already have a decision. If this is not the first
// binding, the Turn may have been bound again because of a decision that the cache does not show yet. Then decide also
// reads from the API server.
func (r *run) decide(ctx context.Context, a loop.Approval) (*loop.Decision, error) {
	e, t := r.executor, r.turn
	if !translate.ListsApproval(t, a) {
		return nil, loop.ErrNotListed
	}
	var known v1alpha1.ToolApprovalList
	if err := e.Client.List(ctx, &known, client.InNamespace(t.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, listDecisionsError(err)
	}
	d, err := r.decision(ctx, translate.ApprovalsFor(known.Items, t, a), a)
	if d != nil || err != nil || r.epoch == 1 {
		return d, err
	}
	return r.decideLive(ctx, a)
}

// decision returns the decision about a call. It uses only ToolApprovals whose author was verified and may decide. The
// controller reports why it rejects the others.
func (r *run) decision(ctx context.Context, about []v1alpha1.ToolApproval, a loop.Approval) (*loop.Decision, error) {
	e := r.executor
	checks := approvals.Checks{Author: e.Approvals, Requester: e.Requesters}
	counted, _, err := approvals.Counted(ctx, checks, e.Reader, r.agent, r.turn, about)
	if err != nil {
		return nil, &retryError{err}
	}
	return translate.Decision(counted, r.turn, a), nil
}

// decideLive reads the decisions about the Turn from the API server.
func (r *run) decideLive(ctx context.Context, a loop.Approval) (*loop.Decision, error) {
	e, t := r.executor, r.turn
	var about []v1alpha1.ToolApproval
	var page v1alpha1.ToolApprovalList
	add := func() error {
		for _, d := range translate.ApprovalsFor(page.Items, t, a) {
			d.ManagedFields, d.Labels, d.Annotations, d.OwnerReferences, d.Finalizers = nil, nil, nil, nil, nil
			about = append(about, d)
		}
		return nil
	}
	err := e.eachLivePage(ctx, t.Namespace, &page, add, client.MatchingFields{fieldApprovalTurn: t.Name})
	if apierrors.IsBadRequest(err) { // an older CRD does not have the selectable field: read all
		about = nil
		err = e.eachLivePage(ctx, t.Namespace, &page, add)
	}
	if err != nil {
		return nil, listDecisionsError(err)
	}
	return r.decision(ctx, about, a)
}

// listDecisionsError returns the error of a failed list of decisions, after which the run tries again.
func listDecisionsError(err error) error {
	return &retryError{fmt.Errorf("failed to list the decisions about calls: %w", err)}
}
