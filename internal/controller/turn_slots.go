package controller

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/executor"
	"github.com/capstan-dev/capstan/internal/metrics"
	"github.com/capstan-dev/capstan/internal/scheduler"
	"github.com/capstan-dev/capstan/internal/translate"
	"github.com/capstan-dev/capstan/internal/turnstatus"
	"github.com/capstan-dev/capstan/internal/writeerror"
)

// seedSlots confirms, once, the slots of the Turns that were bound before this process started.
func (r *TurnReconciler) seedSlots(ctx context.Context) error {
	r.seed.Lock()
	defer r.seed.Unlock()
	if r.seed.done {
		return nil
	}
	var turns v1alpha1.TurnList
	if err := r.Client.List(ctx, &turns, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("failed to list the bound turns: %w", err)
	}
	for i := range turns.Items {
		if t := &turns.Items[i]; t.BoundTo() != "" {
			r.slots.Confirm(requestOf(t), t.BoundTo())
		}
	}
	r.seed.done = true
	return nil
}

// updateModelsDown tells the scheduler, for each Agent that uses one of these ModelProviders, whether none of the
// Agent's models answers.
func (r *TurnReconciler) updateModelsDown(ctx context.Context, providers []types.NamespacedName) error {
	for _, p := range providers {
		var agents v1alpha1.AgentList
		uses := client.MatchingFields{indexAgentProvider: p.String()}
		if err := r.Client.List(ctx, &agents, uses, client.UnsafeDisableDeepCopy); err != nil {
			return fmt.Errorf("failed to list the agents of model provider %q: %w", p, err)
		}
		for i := range agents.Items {
			r.updateAgentModelsDown(&agents.Items[i])
		}
	}
	return nil
}

// updateAgentModelsDown tells the scheduler whether none of an Agent's models answers. The lock keeps an older result
// from replacing a newer one.
func (r *TurnReconciler) updateAgentModelsDown(a *v1alpha1.Agent) {
	r.modelsDownMu.Lock()
	defer r.modelsDownMu.Unlock()
	r.slots.SetModelsDown(client.ObjectKeyFromObject(a), r.Circuits.isDown(a))
}

// requestOf returns the request of a Turn for a slot, without the limit of its Agent. Only a new Turn may be refused
// because too many wait: a Turn with a reason has waited already. Even if it now waits for something else, such as its
// Agent, it may have been queued before. A Turn that was suspended before it ran counts as new, because its owner could
// otherwise have any number of Turns queued.
func requestOf(t *v1alpha1.Turn) scheduler.Request {
	return scheduler.Request{
		Turn: client.ObjectKeyFromObject(t), Agent: scheduler.Agent{Key: t.AgentKey()}, Since: t.CreationTimestamp.Time,
		Admitted: t.Epoch() > 0 || t.StateReason() != "" && t.StateReason() != v1alpha1.TurnReasonSuspended,
	}
}

// isQueued reports whether a Turn waits for a slot. A bound Turn has a slot; if it is Queued, it waits for a
// ModelProvider.
func isQueued(t *v1alpha1.Turn) bool {
	return t.BoundTo() == "" && t.StateReason() == v1alpha1.TurnReasonQueued
}

// assign requests a slot for a Turn and binds the Turn to the executor with the slot. It returns the remaining action:
// to leave the Turn to its executor, to let it wait for a slot, or to end it without an executor.
func (r *TurnReconciler) assign(ctx context.Context, v snapshot, d decision) (decision, error) {
	// From here on, an executor that appears wakes the Turn, even while the executors are being listed.
	r.slots.AwaitExecutor(client.ObjectKeyFromObject(v.turn))
	executors, err := r.Executors.aliveExecutors(ctx)
	if err != nil {
		return decision{action: hold}, fmt.Errorf("failed to list executors: %w", err)
	}
	var name string
	// Without the Agent, the executor does not know since when the default time limit applies.
	overdue := d.reason == v1alpha1.TurnReasonDeadlineExceeded && (v.turn.Status.StartTime == nil || v.agent == nil)
	if d.action == endFromJournal {
		name, d = r.endFromJournal(v, d, executors)
	} else {
		name, d = r.schedule(v, d, executors)
	}
	if name == "" {
		return d, nil
	}
	return r.bind(ctx, v, executorByName(executors, name), overdue)
}

// schedule returns the executor whose slot a Turn gets. If the Turn gets no slot, schedule returns another decision.
func (r *TurnReconciler) schedule(v snapshot, d decision, executors []scheduler.Executor) (name string, other decision) {
	wanted := requestOf(v.turn)
	wanted.Agent = agentInfo(v.agent)
	verdict := r.slots.Reserve(wanted, executors)
	other = decision{action: queue, reason: v1alpha1.TurnReasonQueued, message: verdict.Message, after: d.after}
	switch verdict.Cause {
	case scheduler.NoCause:
		return verdict.Executor, d
	case scheduler.QueueFull:
		return "", decision{action: end, reason: v1alpha1.TurnReasonQueueFull, message: verdict.Message}
	case scheduler.NoExecutor:
		if other.reason = v1alpha1.TurnReasonPending; isQueued(v.turn) {
			other.action = stay // the Turn stays Queued, for example while the only executor restarts
		}
	default:
	}
	return "", other
}

// endFromJournal returns an executor for a Turn that is about to end. That executor ends the Turn with everything that
// the journal holds, and charges its Session. If no executor is running, the Turn waits for one for up to
// executorGrace. After that, the controller ends the Turn with the facts in its status. It also does so if a Turn of a
// sub-agent has still not ended then: an executor would wait for that Turn, and hand this one back again and again.
func (r *TurnReconciler) endFromJournal(v snapshot, d decision, executors []scheduler.Executor) (name string, other decision) {
	if len(v.awaited.unfinished) > 0 && v.executorGrace() <= 0 {
		return "", decision{action: end, reason: d.reason, message: d.message}
	}
	if name := r.slots.ReserveOverLimit(requestOf(v.turn), executors); name != "" {
		return name, d
	}
	if left := v.executorGrace(); left > 0 { // an executor that appears wakes the Turn
		return "", decision{action: queue, reason: v1alpha1.TurnReasonPending, message: "no executor is running", after: left}
	}
	return "", decision{action: end, reason: d.reason, message: d.message}
}

// bind binds a Turn to the executor that has its slot, with one status write. overdue means that the executor must end
// the Turn: see turnstatus.Binding.
func (r *TurnReconciler) bind(ctx context.Context, v snapshot, to scheduler.Executor, overdue bool) (decision, error) {
	t, name := v.turn, to.Name
	first, waited := t.Epoch() == 0, waitForStart(t, v.now, v.server)
	turnstatus.Bind(t, turnstatus.Binding{
		Executor: name, Store: to.Store, SideEffects: translate.MayAffect(t, v.agent), Overdue: overdue,
	}, v.now)
	switch err := r.updateStatus(ctx, t); {
	case apierrors.IsConflict(err):
		return decision{action: nothing, after: staleInterval}, nil
	case apierrors.IsNotFound(err):
		return decision{action: nothing}, nil
	case writeerror.ChangedNothing(err):
		// The Turn is certainly not bound, so it must not keep a slot that others need.
		return decision{action: nothing}, fmt.Errorf("the API server refuses to bind the turn to executor %q: %w", name, err)
	case err != nil:
		// The write may have succeeded despite the error, so the Turn keeps its slot until the next reconciliation.
		return decision{action: stay}, fmt.Errorf("failed to bind the turn to executor %q: %w", name, err)
	}
	if first {
		metrics.Bound(t.Namespace, waited)
	}
	if name == r.Executors.Self {
		return decision{action: follow}, nil
	}
	// If the executor's Lease expires before the cache shows this binding, the Turn is not woken with the other Turns
	// of the executor. So reconcile the Turn again after the time at which the Lease would have expired.
	return decision{action: follow, after: executor.LeaseDuration}, nil
}

// agentInfo returns the facts about an Agent that the scheduler uses.
func agentInfo(a *v1alpha1.Agent) scheduler.Agent {
	info := scheduler.Agent{Key: client.ObjectKeyFromObject(a), Version: 1}
	if version, err := strconv.ParseInt(a.ResourceVersion, 10, 64); err == nil {
		info.Version = version
	}
	if limit := a.Spec.MaxParallelTurns; limit != nil {
		info.MaxParallelTurns = int(*limit)
	}
	return info
}

// executorByName returns the executor with a name, which must be in the list.
func executorByName(executors []scheduler.Executor, name string) scheduler.Executor {
	i := slices.IndexFunc(executors, func(e scheduler.Executor) bool { return e.Name == name })
	return executors[i]
}
