package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/budget"
	"github.com/capstan-dev/capstan/internal/runtime/task"
)

// States of tasks. A task whose work is not done yet has the state 0.
const (
	done      = 1 // the result is stored, and is not published yet
	published = 2 // the work has ended
)

// addTask adds a task, unless its Turn already has a task of this kind.
func (t *tx) addTask(k *task.Task) error {
	_, err := t.exec(`INSERT INTO task (uid, kind, namespace, turn, agent, session, requester, created_at, due_at)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING`, k.Key(), string(k.Kind), k.Namespace, k.Turn, k.Agent, k.Session,
		k.Requester, k.Created.UnixMicro(), k.Created.UnixMicro())
	return err
}

// endTasks ends the work on the tasks of deleted Turns, and charges their open requests.
func (t *tx) endTasks(uids []string, at time.Time) error {
	for _, uid := range uids {
		for _, kind := range task.Kinds {
			if err := t.endTask(task.Held{UID: uid, Kind: kind}, at); err != nil {
				return err
			}
		}
	}
	return nil
}

// endTask ends the work on a task, and charges its open request.
func (t *tx) endTask(h task.Held, at time.Time) error {
	if err := t.charge(h, &task.Charge{}); err != nil {
		return err
	}
	if _, err := t.exec(`UPDATE task SET state = 2, ended_at = ?, turn = '', session = '', requester = '', result = ''
		WHERE uid = ? AND state < 2`, at.UnixMicro(), h.Key()); err != nil {
		return fmt.Errorf("failed to end the task %q: %w", h.Key(), err)
	}
	return t.dropUnbegun(h.Key())
}

// charge applies a charge to the requests of a task. If it returns a *budget.Refusal, it has changed nothing.
func (t *tx) charge(h task.Held, c *task.Charge) error {
	var account task.Account
	var open, expenses string
	//nolint:noctx // because the transaction carries the context
	err := t.QueryRow(`SELECT coalesce((SELECT open FROM task WHERE uid = ?), 'null'),
		coalesce((SELECT expenses FROM turn_record WHERE uid = ?), 'null')`, h.Key(), h.UID).Scan(&open, &expenses)
	if err == nil {
		err = errors.Join(json.Unmarshal([]byte(open), &account.Open), json.Unmarshal([]byte(expenses), &account.Expenses))
	}
	if err != nil {
		return fmt.Errorf("failed to read the requests of the task %q: %w", h.Key(), err)
	}
	next, change, err := c.Apply(account)
	if err != nil {
		return err
	}
	if err := budget.Apply(ledger{t}, h.Holder(), change); err != nil {
		return err
	}
	if account.Open != nil {
		if err := t.setJSON(`UPDATE turn_record SET expenses = ? WHERE uid = ?`, next.Expenses, h.UID); err != nil {
			return err
		}
	}
	if account.Open == nil && next.Open == nil {
		return nil
	}
	return t.setJSON(`UPDATE task SET open = ? WHERE uid = ?`, next.Open, h.Key())
}

// setJSON executes a statement that sets a column of the row with a key to a value in JSON.
func (t *tx) setJSON(query string, value any, key string) error {
	data, err := json.Marshal(value)
	if err != nil {
		return err
	}
	_, err = t.exec(query, string(data), key)
	return err
}

// dropUnbegun deletes a task whose work ended before it began, because such a task does not count against any limit.
func (t *tx) dropUnbegun(key string) error {
	_, err := t.exec(`DELETE FROM task WHERE uid = ? AND state = 2 AND begun_at = 0`, key)
	return err
}

// dueTask finds the next task that can be claimed of the namespaces after a given namespace, except for the excluded
// namespaces.
const dueTask = `SELECT uid FROM task WHERE state < 2 AND (due_at <= ? OR due_at > ? AND claim = 0 OR due_at > ?) AND namespace > ?
	AND namespace NOT IN (SELECT value FROM json_each(?)) ORDER BY namespace, due_at, uid LIMIT 1`

// ClaimTask claims a task.
func (s *Store) ClaimTask(ctx context.Context, search task.Search) (*task.Task, error) {
	except, err := json.Marshal(append([]string{}, search.Except...))
	if err != nil {
		return nil, err
	}
	for _, after := range []string{search.After, ""} {
		dueArgs := []any{
			search.Now.UnixMicro(), search.Until.UnixMicro(), search.Latest().UnixMicro(), after, string(except),
		}
		// A transaction of the writer costs a flush to disk, so first check whether a task is due.
		due, err := s.queryStrings(ctx, dueTask, dueArgs...)
		if err != nil {
			return nil, s.failed(err)
		}
		if len(due) == 0 {
			continue
		}
		if t, err := s.claim(ctx, search.Until, dueArgs); t != nil || err != nil {
			return t, err
		}
	}
	return nil, nil //nolint:nilnil // because no task is due
}

// claim claims the next due task until a time, if a task is still due. dueArgs are the arguments of dueTask.
func (s *Store) claim(ctx context.Context, until time.Time, dueArgs []any) (claimed *task.Task, err error) {
	err = s.change(ctx, func(t *tx) error {
		var k task.Task
		var created, reserved int64
		var state int
		var kind, result string
		//nolint:noctx // because the transaction carries the context
		row := t.QueryRow(`UPDATE task SET claim = claim + 1, due_at = ? WHERE uid = (`+dueTask+`)
			RETURNING uid, kind, namespace, turn, agent, session, requester, created_at, claim, attempts, state, result, reserved`,
			append([]any{until.UnixMicro()}, dueArgs...)...)
		err := row.Scan(&k.UID, &kind, &k.Namespace, &k.Turn, &k.Agent, &k.Session, &k.Requester, &created, &k.Claim, &k.Attempts, &state,
			&result, &reserved)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		if err == nil {
			err = k.SetResult([]byte(result), state == done)
		}
		if err != nil {
			return fmt.Errorf("failed to claim a task: %w", err)
		}
		k.UID, k.Kind, k.Created = task.HeldOf(k.UID).UID, task.Kind(kind), time.UnixMicro(created).UTC()
		claimed = &k
		if reserved == 0 {
			return nil
		}
		if _, err := t.exec(`UPDATE task SET reserved = 0 WHERE uid = ?`, k.Key()); err != nil {
			return err
		}
		return t.charge(k.Held(), &task.Charge{})
	})
	if err != nil {
		return nil, err
	}
	return claimed, nil
}

// held executes a statement for a claimed task whose state is less than stateLimit, and then the function next in the
// same transaction. next may be nil. held returns task.ErrLost if the claim is no longer valid.
func (s *Store) held(ctx context.Context, h task.Held, stateLimit int, next func(t *tx) error, query string, args ...any) error {
	lost := false
	err := s.change(ctx, func(t *tx) error {
		n, err := t.exec(query+` WHERE uid = ? AND claim = ? AND state < ?`, append(args, h.Key(), h.Claim, stateLimit)...)
		if lost = err == nil && n == 0; err != nil || lost || next == nil {
			return err
		}
		return next(t)
	})
	if err == nil && lost {
		return task.ErrLost
	}
	return err
}

// RenewTask extends a claim.
func (s *Store) RenewTask(ctx context.Context, h task.Held, until time.Time) error {
	return s.held(ctx, h, published, nil, `UPDATE task SET due_at = ?`, until.UnixMicro())
}

// BeginTask counts an attempt and reserves its tokens.
func (s *Store) BeginTask(ctx context.Context, h task.Held, b task.Start) error {
	var refused error
	err := s.change(ctx, func(t *tx) error {
		refused = nil
		var namespace, agent string
		//nolint:noctx // because the transaction carries the context
		row := t.QueryRow(`SELECT namespace, agent FROM task WHERE uid = ? AND claim = ? AND state = 0`, h.Key(), h.Claim)
		err := row.Scan(&namespace, &agent)
		if errors.Is(err, sql.ErrNoRows) {
			refused = task.ErrLost
			return nil
		}
		if err != nil {
			return err
		}
		var begun, tokens int64
		//nolint:noctx // because the transaction carries the context
		if err := t.QueryRow(`SELECT count(*) FILTER (WHERE begun_at > ? AND uid <> ?), coalesce(sum(tokens), 0) FROM task
			WHERE namespace = ? AND agent = ? AND kind = ? AND begun_at > ? AND begun_at <= ?`,
			b.Now.Add(-task.Hour).UnixMicro(), h.Key(), namespace, agent, string(h.Kind), b.Since().UnixMicro(), b.Until().UnixMicro(),
		).Scan(&begun, &tokens); err != nil {
			return err
		}
		if refused = b.Check(begun, tokens); refused != nil {
			return nil //nolint:nilerr // because a refused attempt is not a failure of the transaction
		}
		_, err = t.exec(`UPDATE task SET attempts = attempts + 1, begun_at = ?, tokens = tokens + ?, reserved = ? WHERE uid = ?`,
			b.Now.UnixMicro(), b.Tokens, b.Tokens, h.Key())
		return err
	})
	if err != nil {
		return err
	}
	return refused
}

// ChargeTask ends a request, begins the next request, and stores the partial result.
func (s *Store) ChargeTask(ctx context.Context, h task.Held, c task.Charge) error {
	var found []byte
	if c.Found != nil {
		var err error
		if found, err = c.Found.Marshal(); err != nil {
			return err
		}
	}
	var refused error
	err := s.held(ctx, h, done, func(t *tx) error {
		refused = nil
		err := t.charge(h, &c)
		if refusal, ok := errors.AsType[*budget.Refusal](err); ok {
			refused = refusal // nothing was written
			return nil
		}
		if err != nil || c.Found == nil {
			return err
		}
		if err := t.keepFound(h, c.Found); err != nil {
			return err
		}
		_, err = t.exec(`UPDATE task SET result = ? WHERE uid = ?`, string(found), h.Key())
		return err
	}, `UPDATE task SET claim = claim`)
	return errors.Join(err, refused)
}

// keepFound stores the memories of a result, and sets its evaluations in the record of the Turn.
func (t *tx) keepFound(h task.Held, r *task.Result) error {
	if r.Learned != nil {
		if err := t.keep(r.Learned); err != nil {
			return err
		}
	}
	if len(r.Evaluations) == 0 {
		return nil
	}
	recorded, err := json.Marshal(r.Recorded())
	if err != nil {
		return err
	}
	_, err = t.exec(`UPDATE turn_record SET evaluations = ? WHERE uid = ?`, string(recorded), h.UID)
	return err
}

// PostponeTask ends a claim and delays the task.
func (s *Store) PostponeTask(ctx context.Context, h task.Held, d task.Delay) error {
	return s.held(ctx, h, published, func(t *tx) error { return t.charge(h, &task.Charge{}) },
		`UPDATE task SET claim = claim + 1, due_at = ?, attempts = attempts - iif(reserved > 0 AND NOT ?, 1, 0),
		begun_at = iif(reserved > 0 AND tokens = reserved AND ? = 0, 0, begun_at), tokens = tokens - reserved + ?, reserved = 0`,
		d.Until.UnixMicro(), d.CutOff, d.Used, d.Used)
}

// FinishTask stores a result.
func (s *Store) FinishTask(ctx context.Context, h task.Held, r task.Result, used int64) error {
	result, err := r.Marshal()
	if err != nil {
		return err
	}
	return s.held(ctx, h, done, func(t *tx) error {
		if err := t.keepFound(h, &r); err != nil {
			return err
		}
		return t.charge(h, &task.Charge{})
	}, `UPDATE task SET state = 1, result = ?, begun_at = iif(? AND reserved > 0 AND tokens = reserved AND ? = 0, 0, begun_at),
		tokens = tokens - reserved + ?, reserved = 0`, string(result), r.Skipped != "", used, used)
}

// PublishTask ends the work on a task.
func (s *Store) PublishTask(ctx context.Context, h task.Held, at time.Time) error {
	lost := false
	err := s.change(ctx, func(t *tx) error {
		n, err := t.exec(`UPDATE task SET claim = claim + 1, state = 2, ended_at = ?, session = '', requester = '', result = ''
			WHERE uid = ? AND claim = ? AND state = 1`, at.UnixMicro(), h.Key(), h.Claim)
		if lost = err == nil && n == 0; err != nil || lost {
			return err
		}
		return t.dropUnbegun(h.Key())
	})
	if err == nil && lost {
		return task.ErrLost
	}
	return err
}

// TaskUse returns the namespaces that have tasks whose work has not ended.
func (s *Store) TaskUse(ctx context.Context) (all []task.Use, err error) {
	rows, err := s.db.QueryContext(ctx, `SELECT namespace, count(*), min(created_at) FROM task WHERE state < 2 GROUP BY namespace`)
	if err != nil {
		return nil, s.failed(err)
	}
	defer rows.Close() //nolint:errcheck // because rows.Err below reports every error
	for rows.Next() {
		var u task.Use
		var oldest int64
		if err := rows.Scan(&u.Namespace, &u.Waiting, &oldest); err != nil {
			return nil, s.failed(err)
		}
		u.Oldest = time.UnixMicro(oldest).UTC()
		all = append(all, u)
	}
	return all, s.failed(rows.Err())
}

// PurgeTasks deletes tasks whose work ended before a time, in one transaction.
func (s *Store) PurgeTasks(ctx context.Context, before time.Time, limit int) (purged int, err error) {
	err = s.change(ctx, func(t *tx) error {
		n, err := t.exec(`DELETE FROM task WHERE uid IN (SELECT uid FROM task WHERE state = 2 AND ended_at < ? ORDER BY ended_at LIMIT ?)`,
			before.UnixMicro(), max(limit, 0))
		purged = int(n)
		return err
	})
	if err != nil {
		return 0, err
	}
	return purged, nil
}
