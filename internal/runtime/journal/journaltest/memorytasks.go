package journaltest

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/task"
	"github.com/capstan-dev/capstan/internal/runtime/turnrecord"
)

// memoryTask is a task of a Store.
type memoryTask struct {
	task.Task
	// due is the time from which the task can be claimed. begun is the time of the newest attempt that counts against
	// the limits, or zero. ended is the time at which the work ended.
	due, begun, ended time.Time
	// tokens is the number of tokens of all attempts, including the tokens that are reserved for the current attempt.
	tokens, reserved int64
	open             *turnrecord.Expense // the request without a recorded end, or nil
	isPublished      bool
}

func (m *Store) addTask(t task.Task) {
	if m.tasks == nil {
		m.tasks = map[string]*memoryTask{}
	}
	if m.tasks[t.Key()] == nil {
		m.tasks[t.Key()] = &memoryTask{Task: t, due: t.Created}
	}
}

// endTasks ends the work on the tasks of a deleted Turn.
func (m *Store) endTasks(uid string, at time.Time) (err error) {
	for _, kind := range task.Kinds {
		err = errors.Join(err, m.endTask(uid, kind, at))
	}
	return err
}

// endTask ends the work on a task, and charges its open request.
func (m *Store) endTask(uid string, kind task.Kind, at time.Time) error {
	t := m.tasks[task.Key(uid, kind)]
	if t == nil {
		return nil
	}
	err := m.charge(t, &task.Charge{})
	if !t.isPublished {
		t.isPublished, t.ended, t.Turn, t.Result, t.Partial = true, at, "", nil, nil
		t.Session, t.Requester = "", ""
		m.dropUnbegun(t)
	}
	return err
}

// charge applies a charge to the requests of a task.
func (m *Store) charge(t *memoryTask, c *task.Charge) error {
	record, recorded := m.records[t.UID]
	next, change, err := c.Apply(task.Account{Open: t.open, Expenses: record.Expenses})
	if err != nil {
		return err
	}
	if err := m.apply(task.Holder(t.UID, t.Kind), change); err != nil {
		return err
	}
	if t.open = next.Open; recorded {
		record.Expenses = next.Expenses
		m.records[t.UID] = record
	}
	return nil
}

// dropUnbegun deletes an ended task that never began, because it does not count against any limit.
func (m *Store) dropUnbegun(t *memoryTask) {
	if t.begun.IsZero() {
		delete(m.tasks, t.Key())
	}
}

// ClaimTask claims a task.
func (m *Store) ClaimTask(ctx context.Context, s task.Search) (*task.Task, error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	due := slices.DeleteFunc(slices.Collect(maps.Values(m.tasks)), func(t *memoryTask) bool {
		due := !t.due.After(s.Now) || t.due.After(s.Until) && t.Claim == 0 || t.due.After(s.Latest())
		return t.isPublished || !due || slices.Contains(s.Except, t.Namespace)
	})
	if len(due) == 0 {
		return nil, nil //nolint:nilnil // because no task is due
	}
	round := func(t *memoryTask) int {
		if t.Namespace > s.After {
			return 0
		}
		return 1
	}
	t := slices.MinFunc(due, func(a, b *memoryTask) int {
		return cmp.Or(cmp.Compare(round(a), round(b)), strings.Compare(a.Namespace, b.Namespace), a.due.Compare(b.due),
			strings.Compare(a.Key(), b.Key()))
	})
	if t.reserved > 0 {
		t.reserved = 0
		if err := m.charge(t, &task.Charge{}); err != nil {
			return nil, err
		}
	}
	t.Claim++
	t.due = s.Until
	claimed := t.Task
	return &claimed, nil
}

// withClaim calls do for a task if its claim is valid and selects returns true for it. Otherwise it returns
// task.ErrLost. selects may be nil.
func (m *Store) withClaim(ctx context.Context, h task.Held, selects func(*memoryTask) bool, do func(*memoryTask) error) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.tasks[h.Key()]
	if t == nil || t.Claim != h.Claim || t.isPublished || selects != nil && !selects(t) {
		return task.ErrLost
	}
	return do(t)
}

func isWaiting(t *memoryTask) bool { return t.Result == nil }

func isDone(t *memoryTask) bool { return t.Result != nil }

// RenewTask extends a claim.
func (m *Store) RenewTask(ctx context.Context, h task.Held, until time.Time) error {
	return m.withClaim(ctx, h, nil, func(t *memoryTask) error {
		t.due = until
		return nil
	})
}

// BeginTask counts an attempt.
func (m *Store) BeginTask(ctx context.Context, h task.Held, s task.Start) error {
	return m.withClaim(ctx, h, isWaiting, func(t *memoryTask) error {
		var begun, tokens int64
		for _, o := range m.tasks {
			if o.Kind != t.Kind || o.Namespace != t.Namespace || o.Agent != t.Agent || !o.begun.After(s.Now.Add(-task.Day)) ||
				o.begun.After(s.Until()) {
				continue
			}
			if tokens += o.tokens; o != t && o.begun.After(s.Now.Add(-task.Hour)) {
				begun++
			}
		}
		if err := s.Check(begun, tokens); err != nil {
			return err
		}
		t.Attempts++
		t.begun, t.reserved = s.Now, s.Tokens
		t.tokens += s.Tokens
		return nil
	})
}

// setResult stores the result of a task, or a partial result if done is false. It stores the memories of the result,
// and adds the evaluations to the record of the Turn.
func (m *Store) setResult(t *memoryTask, r *task.Result, done bool) error {
	data, err := r.Marshal()
	if err != nil {
		return err
	}
	if r.Learned != nil {
		m.keep(r.Learned)
	}
	if record, ok := m.records[t.UID]; ok && len(r.Evaluations) > 0 {
		record.Evaluations = r.Recorded()
		m.records[t.UID] = record
	}
	return t.SetResult(data, done)
}

// ChargeTask ends a request, begins the next request, and stores a partial result.
func (m *Store) ChargeTask(ctx context.Context, h task.Held, c task.Charge) error {
	return m.withClaim(ctx, h, isWaiting, func(t *memoryTask) error {
		if err := m.charge(t, &c); err != nil || c.Found == nil {
			return err
		}
		return m.setResult(t, c.Found, false)
	})
}

// endAttempt ends the attempt of a task, which has used the given number of tokens. An open request is charged with its
// estimate.
func (m *Store) endAttempt(t *memoryTask, used int64) error {
	t.tokens, t.reserved = t.tokens-t.reserved+used, 0
	return m.charge(t, &task.Charge{})
}

// PostponeTask gives a claim back.
func (m *Store) PostponeTask(ctx context.Context, h task.Held, d task.Delay) error {
	return m.withClaim(ctx, h, nil, func(t *memoryTask) error {
		t.Claim++
		t.due = d.Until
		if t.reserved > 0 && !d.CutOff {
			t.Attempts--
		}
		if t.reserved > 0 && t.tokens == t.reserved && d.Used == 0 {
			t.begun = time.Time{}
		}
		return m.endAttempt(t, d.Used)
	})
}

// FinishTask stores a result.
func (m *Store) FinishTask(ctx context.Context, h task.Held, r task.Result, used int64) error {
	return m.withClaim(ctx, h, isWaiting, func(t *memoryTask) error {
		if err := m.setResult(t, &r, true); err != nil {
			return err
		}
		if r.Skipped != "" && t.reserved > 0 && t.tokens == t.reserved && used == 0 {
			t.begun = time.Time{}
		}
		return m.endAttempt(t, used)
	})
}

// PublishTask ends the work on a task.
func (m *Store) PublishTask(ctx context.Context, h task.Held, at time.Time) error {
	return m.withClaim(ctx, h, isDone, func(t *memoryTask) error {
		t.Claim++
		t.isPublished, t.ended, t.Result = true, at, nil
		m.dropUnbegun(t)
		return nil
	})
}

// TaskUse returns the number of waiting tasks of each namespace.
func (m *Store) TaskUse(ctx context.Context) ([]task.Use, error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	all := map[string]task.Use{}
	for _, t := range m.tasks {
		if t.isPublished {
			continue
		}
		u := all[t.Namespace]
		if u.Namespace = t.Namespace; u.Waiting == 0 || t.Created.Before(u.Oldest) {
			u.Oldest = t.Created
		}
		u.Waiting++
		all[t.Namespace] = u
	}
	return slices.Collect(maps.Values(all)), nil
}

// PurgeTasks deletes old tasks.
func (m *Store) PurgeTasks(ctx context.Context, before time.Time, limit int) (purged int, err error) {
	if err := ctx.Err(); err != nil {
		return 0, context.Cause(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for key, t := range m.tasks {
		if purged < limit && t.isPublished && t.ended.Before(before) {
			delete(m.tasks, key)
			purged++
		}
	}
	return purged, nil
}
