package executor

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/translate"
	"github.com/capstan-dev/capstan/internal/turnstatus"
	"github.com/capstan-dev/capstan/internal/writeerror"
)

// endInterrupted ends a Turn whose journal cannot be used, with the data of its status. It returns the errors of
// account.
func (r *run) endInterrupted(ctx context.Context, message string) error {
	return r.account(ctx, &cutOffError{turnstatus.Cut{Stop: turn.StopInterrupted, Message: message}})
}

// account completes the end of a Turn whose journal is lost or cannot be used: it adds the usage of the sub-agents'
// Turns to cut, charges the Session, and returns cut. While a Turn of a sub-agent has not ended, it returns a
// *loop.Parked instead, and if the attempt must be repeated, a *retryError.
func (r *run) account(ctx context.Context, cut *cutOffError) error {
	var err error
	if cut.SubAgents, err = r.collectUsage(ctx); err != nil {
		return err
	}
	place, err := r.chargeKnown(ctx, cut)
	if err != nil {
		return err
	}
	r.executor.persistTotals(ctx, r.turn, place, r.executor.Now())
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return cut
}

// collectUsage returns the usages of the sub-agents' Turns, from their status. It cancels each Turn that has not ended,
// because its answer is no longer needed, and then returns a *loop.Parked.
func (r *run) collectUsage(ctx context.Context) ([]*tool.Spent, error) {
	var page v1alpha1.TurnList
	label := client.MatchingLabels{translate.ParentLabel: translate.ParentLabelOf(r.turn.Name)}
	var spent []*tool.Spent
	waits := &loop.Parked{}
	err := r.executor.eachLivePage(ctx, r.turn.Namespace, &page, func() error {
		for i := range page.Items {
			child := &page.Items[i]
			owner, owned := translate.Parent(child)
			switch {
			case !owned || owner.UID != r.turn.UID:
			case child.IsFinished():
				spent = append(spent, translate.SubAgentUsage(child))
			default:
				if err := r.cancelChild(ctx, child); err != nil {
					return err
				}
				waits.Turns = append(waits.Turns, child.Name)
			}
		}
		return nil
	}, label)
	if _, again := errors.AsType[*retryError](err); err != nil && !again {
		err = &retryError{fmt.Errorf("failed to list the turns of sub-agents: %w", err)}
	}
	if err != nil {
		return nil, err
	}
	if len(waits.Turns) > 0 {
		return nil, waits
	}
	return spent, nil
}

// cancelChild cancels the Turn of a sub-agent.
func (r *run) cancelChild(ctx context.Context, child *v1alpha1.Turn) error {
	if child.IsCancelled() {
		return nil
	}
	err := r.executor.Client.Patch(ctx, child, client.RawPatch(types.MergePatchType, translate.CancelPatch(child.UID)))
	if writeerror.IsRejected(err) {
		r.log().Error(err, "Failed to cancel the turn of a sub-agent, because the API server rejects it", "child", child.Name)
		return nil // a repetition would be rejected, too; the caller waits for the end of the child's time
	}
	if client.IgnoreNotFound(err) != nil && !translate.IsOtherObject(err) {
		return &retryError{fmt.Errorf("failed to cancel turn %q of a sub-agent: %w", child.Name, err)}
	}
	return nil
}

// chargeKnown adds a Turn that ends without a result of the engine to the history of its Session, with the usage in the
// Turn's status. It returns the place of the Turn in that history, or nil if there is nothing to charge.
func (r *run) chargeKnown(ctx context.Context, cut *cutOffError) (*turn.SessionPosition, error) {
	e := r.executor
	s, err := e.session(ctx, r.turn)
	if err != nil || s == nil {
		return nil, err
	}
	t := r.turn.DeepCopy()
	turnstatus.CutOff(t, r.progress.last(), cut.Cut, e.Now())
	place, err := chargeStatus(ctx, e.Engine, r.log(), s, t)
	if err != nil {
		return nil, &retryError{err}
	}
	return place, nil
}

// chargeStatus adds a Turn to the history of its Session, with the usage in the Turn's status, unless the history has
// it. It returns the place of the Turn in that history, or nil in each of these cases:
//
//   - The Turn is not known to have asked a model.
//   - The Turn began before the Session was created, so its own Session is gone.
//   - The history of the Session cannot be read.
func chargeStatus(
	ctx context.Context, engine *turn.Engine, log logr.Logger, s *v1alpha1.Session, t *v1alpha1.Turn,
) (*turn.SessionPosition, error) {
	steps := t.Status.Steps // nil in a status that someone has edited
	used := steps != nil && steps.ModelRequests > 0 || t.Status.Usage != nil || t.Status.SubAgentUsage != nil
	if start := t.Status.StartTime; !used || start != nil && s.CreationTimestamp.After(start.Time) {
		return nil, nil //nolint:nilnil // because "nothing" is an answer, not an error
	}
	known := turn.Session{UID: string(s.UID), Name: s.Name, Known: translate.KnownTotals(s)}
	place, err := engine.ChargeKnown(ctx, known, translate.SessionTurn(t), translate.HasCounted(s, t))
	if errors.Is(err, journal.ErrDamaged) || errors.Is(err, journal.ErrNewer) {
		log.Error(err, "Failed to charge a turn to its session, whose history cannot be read", "session", s.Name)
		return nil, nil //nolint:nilnil // because "nothing" is an answer, not an error
	}
	return place, err
}
