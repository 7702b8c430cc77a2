package store

import (
	"context"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/task"
)

// Tasks keeps the work that follows the end of Turns. An append with the end of a Turn adds its task: see
// journal.Entry. A retired Turn has no work any more, but its task still counts for the limits of the Agent.
//
// All times are to the microsecond. A call with a claim that does not count any more returns task.ErrLost.
type Tasks interface {
	// ClaimTask claims a task until a time, and returns it. A task can be claimed if its Turn is not published and no
	// claim or delay of it lasts beyond now. The tasks are those of the first namespace after the given one, in an
	// order that the store defines and that begins again after the last one; of these, the one that waits for the
	// longest time. So namespaces take turns. ClaimTask returns nil if there is no such task. If the attempt of an
	// earlier claim has not ended, its process is gone: the attempt counts with all that it has reserved, and its
	// request under way is charged with its estimate. PostponeTask and FinishTask charge such a request, too.
	ClaimTask(ctx context.Context, s task.Search) (*task.Task, error)

	// RenewTask makes a claim last until a time.
	RenewTask(ctx context.Context, h task.Held, until time.Time) error

	// BeginTask counts another attempt, and reserves tokens. It returns a *task.Refusal, and changes nothing, if limits
	// do not allow it.
	BeginTask(ctx context.Context, h task.Held, s task.Start) error

	// ChargeTask ends a request of a task whose work has begun, and begins the next one. It charges the budgets, and
	// adds the expense to the record of the Turn. In the same transaction it stores the partial result, which later
	// claims return until FinishTask replaces it, keeps the memories in it, and sets its evaluations in the record of
	// the Turn. It returns a *budget.Refusal, and changes nothing, if budgets do not allow the next request.
	ChargeTask(ctx context.Context, h task.Held, c task.Charge) error

	// PostponeTask gives a claim back, so that nobody claims the task before a time. An attempt that has begun counts
	// for Task.Attempts only if it was cut off, and for the limits of the Agent only if it has used tokens.
	PostponeTask(ctx context.Context, h task.Held, d task.Delay) error

	// FinishTask stores the result of a task and adds it to the record of the Turn. The claim stays. used is the number
	// of tokens that the attempt has used, or zero if it has not begun. A task that was skipped, and has used nothing
	// in any attempt, does not count for the limits of the Agent.
	FinishTask(ctx context.Context, h task.Held, r task.Result, used int64) error

	// PublishTask ends the work on a task that is finished, and drops its result. A task that has never begun is
	// deleted.
	PublishTask(ctx context.Context, h task.Held, at time.Time) error

	// TaskUse returns the namespaces that have tasks whose work has not ended, in any order.
	TaskUse(ctx context.Context) ([]task.Use, error)

	// PurgeTasks deletes up to limit tasks whose work ended before a time. It returns the number of deleted tasks, even
	// with an error; fewer than limit means that there are no more.
	PurgeTasks(ctx context.Context, before time.Time, limit int) (purged int, err error)
}
