package store

import (
	"context"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/task"
)

// Tasks keeps the work that follows the end of Turns. The append that ends a Turn adds its tasks: see journal.Entry.
// Retire ends the tasks of a Turn. A task that has ended still counts against the limits of the Agent if it had begun.
//
// All times are to the microsecond. A call with a claim that is no longer valid returns task.ErrLost.
type Tasks interface {
	// ClaimTask claims a task until a time, and returns it, or nil if no task can be claimed. A task can be claimed if
	// its work has not ended and no claim or delay of the task lasts beyond now. A claim or a delay that lasts beyond
	// Search.Latest does not count. A new task can be claimed from the time of its creation on. If a clock was ahead
	// then, so that this time is after Search.Until, the task can be claimed immediately.
	//
	// Namespaces take turns: ClaimTask uses the first namespace after the given one that has such a task, and after the
	// last namespace starts again with the first. The store defines the order of namespaces. Of the tasks of this
	// namespace, ClaimTask claims the one that has waited longest.
	//
	// If an earlier claim expired before its attempt ended, ClaimTask assumes that the process of the attempt has
	// exited. The attempt then counts with all tokens that it has reserved, and the estimate of its open request is
	// charged. PostponeTask and FinishTask also charge an open request.
	ClaimTask(ctx context.Context, s task.Search) (*task.Task, error)

	// RenewTask extends a claim until a time.
	RenewTask(ctx context.Context, h task.Held, until time.Time) error

	// BeginTask counts another attempt, and reserves tokens. If the limits do not allow the attempt, BeginTask returns
	// a *task.Refusal and changes nothing.
	BeginTask(ctx context.Context, h task.Held, s task.Start) error

	// ChargeTask ends a request of a task whose work has begun, and begins the next request. It charges the budgets,
	// and adds the expense to the record of the Turn. If the charge has a partial result, the same transaction stores
	// it, stores the memories in it, and sets its evaluations in the record of the Turn. Later claims return the
	// partial result until FinishTask replaces it. If the budgets do not allow the next request, ChargeTask returns a
	// *budget.Refusal and changes nothing.
	ChargeTask(ctx context.Context, h task.Held, c task.Charge) error

	// PostponeTask ends a claim, and no process can claim the task before a time. An attempt that has begun counts in
	// Task.Attempts only if it was cut off, and against the limits of the Agent only if it has used tokens.
	PostponeTask(ctx context.Context, h task.Held, d task.Delay) error

	// FinishTask stores the result of a task: its memories, and its evaluations in the record of the Turn. The claim
	// remains valid. used is the number of tokens that the attempt has used, or zero if it has not begun. A task that
	// was skipped, and has used no tokens in any attempt, does not count against the limits of the Agent.
	FinishTask(ctx context.Context, h task.Held, r task.Result, used int64) error

	// PublishTask ends the work on a finished task, and deletes its result. It deletes the whole task if its work has
	// never begun.
	PublishTask(ctx context.Context, h task.Held, at time.Time) error

	// TaskUse returns the namespaces that have tasks whose work has not ended, in any order.
	TaskUse(ctx context.Context) ([]task.Use, error)

	// PurgeTasks deletes up to limit tasks whose work ended before a time. It returns the number of deleted tasks, even
	// with an error; fewer than limit means that there are no more.
	PurgeTasks(ctx context.Context, before time.Time, limit int) (purged int, err error)
}
