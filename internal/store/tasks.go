package store

import (
	"context"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/budget"
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
	// reservations in budgets are charged as unknown.
	ClaimTask(ctx context.Context, s task.Search) (*task.Task, error)

	// RenewTask makes a claim last until a time.
	RenewTask(ctx context.Context, h task.Held, until time.Time) error

	// BeginTask counts another attempt, and reserves tokens and budgets. It returns a *task.Refusal or a
	// *budget.Refusal, and changes nothing, if limits do not allow it. Reservations of an earlier attempt are charged.
	BeginTask(ctx context.Context, h task.Held, s task.Start) error

	// PostponeTask gives a claim back, so that nobody claims the task before a time. The attempt that has begun, if
	// any, does not count. used is what it has used.
	PostponeTask(ctx context.Context, h task.Held, until time.Time, used budget.Amount) error

	// FinishTask stores the result of a task and adds it to the record of the Turn. The claim stays. used is what the
	// attempt has used, or zero if it has not begun.
	FinishTask(ctx context.Context, h task.Held, r task.Result, used budget.Amount) error

	// PublishTask ends the work on a task that is finished, and drops its result. A task that has never begun is
	// deleted.
	PublishTask(ctx context.Context, h task.Held, at time.Time) error

	// TaskUse returns the namespaces that have tasks whose work has not ended, in any order.
	TaskUse(ctx context.Context) ([]task.Use, error)

	// PurgeTasks deletes up to limit tasks whose work ended before a time. It returns the number of deleted tasks, even
	// with an error; fewer than limit means that there are no more.
	PurgeTasks(ctx context.Context, before time.Time, limit int) (purged int, err error)
}
