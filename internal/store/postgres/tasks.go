package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/capstan-dev/capstan/internal/runtime/budget"
	"github.com/capstan-dev/capstan/internal/runtime/task"
)

// endTasks ends the work on the tasks of deleted Turns, and charges their open requests.
func (s *Store) endTasks(ctx context.Context, uids []string, at time.Time) error {
	keys, err := read(ctx, s, pgx.RowTo[string], `SELECT uid FROM capstan_task WHERE uid = ANY($1) AND (state < 2 OR open <> 'null')`,
		task.Keys(uids...))
	if err != nil {
		return err
	}
	for _, key := range keys {
		if err := s.endTask(ctx, task.HeldOf(key), at); err != nil {
			return err
		}
	}
	return s.closeHolds(ctx, task.Holders(uids...)) // the reservations that an older version has made
}

// endTask ends the work on a task and charges its open request in one transaction, so that a task that has ended never
// has a reservation, even if the process is killed. Each task has its own transaction, because a transaction that locks
// the accounts of several tasks could deadlock with an append.
func (s *Store) endTask(ctx context.Context, h task.Held, at time.Time) error {
	err := s.retryOnce(ctx, appendTimeout, func(ctx context.Context) error {
		return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `UPDATE capstan_task SET state = 2, ended_at = $2, turn = '', session = '', requester = '',
				result = '' WHERE uid = $1 AND state < 2`, h.Key(), at.UnixMicro()); err != nil {
				return err
			}
			if err := charge(ctx, tx, h, &task.Charge{}); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, dropUnbegun, h.Key())
			return err
		})
	})
	if err != nil {
		return fmt.Errorf("failed to end the task %q: %w", h.Key(), err)
	}
	return nil
}

// charge applies a charge to the requests of a task. It locks the row of the task.
func charge(ctx context.Context, tx pgx.Tx, h task.Held, c *task.Charge) error {
	var account task.Account
	err := tx.QueryRow(ctx, `SELECT open FROM capstan_task WHERE uid = $1 FOR UPDATE`, h.Key()).Scan(fromJSON{&account.Open})
	if err == nil && account.Open != nil {
		err = tx.QueryRow(ctx, `SELECT expenses FROM capstan_record WHERE uid = $1 FOR UPDATE`, h.UID).Scan(fromJSON{&account.Expenses})
	}
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return fmt.Errorf("failed to read the requests of the task %q: %w", h.Key(), err)
	}
	next, change, err := c.Apply(account)
	if err != nil {
		return err
	}
	if err := budget.Apply(&ledger{ctx, tx}, h.Holder(), change); err != nil {
		return err
	}
	if account.Open != nil {
		if err := setJSON(ctx, tx, `UPDATE capstan_record SET expenses = $2 WHERE uid = $1`, h.UID, next.Expenses); err != nil {
			return err
		}
	}
	if account.Open == nil && next.Open == nil {
		return nil
	}
	return setJSON(ctx, tx, `UPDATE capstan_task SET open = $2 WHERE uid = $1`, h.Key(), next.Open)
}

// fromJSON is a target for a column with JSON. The field into points to the value that receives the decoded JSON.
type fromJSON struct{ into any }

// ScanBytes reads the column.
func (j fromJSON) ScanBytes(data []byte) error { return json.Unmarshal(data, j.into) }

// setJSON executes a statement that sets a column to a value in JSON.
func setJSON(ctx context.Context, tx pgx.Tx, query, key string, value any) error {
	data, err := json.Marshal(value)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, query, key, data)
	return err
}

// dropUnbegun deletes a task whose work ended before it began, because such a task does not count against any limit.
const dropUnbegun = `DELETE FROM capstan_task WHERE uid = $1 AND state = 2 AND begun_at = 0`

// claimTask claims the next task. Of two concurrent claims, the later one takes another task.
var claimTask = `UPDATE capstan_task SET claim = claim + 1, due_at = $3 WHERE uid = (
		SELECT uid FROM capstan_task WHERE state < 2 AND (due_at <= $1 OR due_at > $3 AND claim = 0 OR due_at > $6)
			AND namespace > $2 AND namespace <> ALL($4)
			AND ` + fmt.Sprintf(ofNamespaces, 5) + `
		ORDER BY namespace, due_at, uid LIMIT 1 FOR UPDATE SKIP LOCKED)
	RETURNING uid, kind, namespace, turn, agent, session, requester, created_at, claim, attempts, state, result, reserved`

// ClaimTask claims a task of the store's namespaces. It takes at most 20 s. If the connection is lost, ClaimTask
// returns an error, but a task may be claimed until search.Until.
func (s *Store) ClaimTask(ctx context.Context, search task.Search) (claimed *task.Task, err error) {
	for _, after := range []string{search.After, ""} {
		err := s.change(ctx, func(ctx context.Context, tx pgx.Tx) error {
			var k task.Task
			var created, reserved int64
			var state int
			var kind string
			var result []byte
			except := append([]string{}, search.Except...) // nil would be NULL
			row := tx.QueryRow(ctx, claimTask, search.Now.UnixMicro(), after, search.Until.UnixMicro(), except, s.namespaces,
				search.Latest().UnixMicro())
			err := row.Scan(&k.UID, &kind, &k.Namespace, &k.Turn, &k.Agent, &k.Session, &k.Requester, &created, &k.Claim, &k.Attempts,
				&state, &result, &reserved)
			if errors.Is(err, pgx.ErrNoRows) {
				return nil
			}
			if err == nil {
				err = k.SetResult(result, state == 1)
			}
			if err != nil {
				return fmt.Errorf("failed to claim a task: %w", err)
			}
			k.UID, k.Kind, k.Created = task.HeldOf(k.UID).UID, task.Kind(kind), time.UnixMicro(created).UTC()
			if reserved > 0 {
				if _, err := tx.Exec(ctx, `UPDATE capstan_task SET reserved = 0 WHERE uid = $1`, k.Key()); err != nil {
					return err
				}
				if err := charge(ctx, tx, k.Held(), &task.Charge{}); err != nil {
					return err
				}
			}
			claimed = &k
			return nil
		})
		if err != nil {
			return nil, err // also if the transaction has claimed a task but was not committed
		}
		if claimed != nil {
			return claimed, nil
		}
	}
	return nil, nil //nolint:nilnil // because no task is due
}

// held executes a statement for a claimed task, and then the function next in the same transaction. next may be nil. If
// the statement changes no row, the claim is no longer valid: held returns task.ErrLost and changes nothing.
func (s *Store) held(ctx context.Context, next func(ctx context.Context, tx pgx.Tx) error, query string, args ...any) error {
	return s.change(ctx, func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, query, args...)
		switch {
		case err != nil:
			return err
		case tag.RowsAffected() == 0:
			return task.ErrLost
		case next == nil:
			return nil
		}
		return next(ctx, tx)
	})
}

// change executes a transaction, and repeats it only if it has certainly changed nothing. It takes at most 10 s.
func (s *Store) change(ctx context.Context, do func(ctx context.Context, tx pgx.Tx) error) error {
	var refusal error
	err := s.call(ctx, appendTimeout, func(ctx context.Context) error {
		transaction := func() error { return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error { return do(ctx, tx) }) }
		err := transaction()
		if s.mayRepeat(ctx, err) {
			err = transaction()
		}
		_, overLimit := errors.AsType[*task.Refusal](err)
		_, overBudget := errors.AsType[*budget.Refusal](err)
		if overLimit || overBudget || errors.Is(err, task.ErrLost) {
			refusal, err = err, nil // the server has not failed
		}
		return err
	})
	if err != nil {
		return err
	}
	return refusal
}

// RenewTask extends a claim. It takes at most 10 s.
func (s *Store) RenewTask(ctx context.Context, h task.Held, until time.Time) error {
	return s.held(ctx, nil, `UPDATE capstan_task SET due_at = $3 WHERE uid = $1 AND claim = $2 AND state < 2`,
		h.Key(), h.Claim, until.UnixMicro())
}

// taskLock is the first key of the advisory locks that BeginTask takes. The second key is a hash of the Agent.
const taskLock = 0x6361_7074

// BeginTask counts an attempt and reserves its tokens. Calls for the same Agent wait for each other. It takes at most
// 10 s.
func (s *Store) BeginTask(ctx context.Context, h task.Held, b task.Start) error {
	return s.change(ctx, func(ctx context.Context, tx pgx.Tx) error {
		var namespace, agent string
		err := tx.QueryRow(ctx, `SELECT namespace, agent FROM capstan_task WHERE uid = $1 AND claim = $2 AND state = 0 FOR UPDATE`,
			h.Key(), h.Claim).Scan(&namespace, &agent)
		if errors.Is(err, pgx.ErrNoRows) {
			return task.ErrLost
		}
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock($1, hashtext($2))`, taskLock, namespace+"/"+agent); err != nil {
			return err
		}
		var begun, tokens int64
		if err := tx.QueryRow(ctx, `SELECT count(*) FILTER (WHERE begun_at > $3 AND uid <> $5), coalesce(sum(tokens), 0)::bigint
			FROM capstan_task WHERE namespace = $1 AND agent = $2 AND begun_at > $4 AND begun_at <= $7 AND kind = $6`,
			namespace, agent, b.Now.Add(-task.Hour).UnixMicro(), b.Since().UnixMicro(), h.Key(), string(h.Kind), b.Until().UnixMicro(),
		).Scan(&begun, &tokens); err != nil {
			return err
		}
		if err := b.Check(begun, tokens); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `UPDATE capstan_task SET attempts = attempts + 1, begun_at = $2, tokens = tokens + $3, reserved = $3
			WHERE uid = $1`, h.Key(), b.Now.UnixMicro(), b.Tokens)
		return err
	})
}

// ChargeTask ends a request, begins the next request, and stores the partial result. It takes its locks in the same
// order as FinishTask, so that both cannot deadlock. It takes at most 10 s.
func (s *Store) ChargeTask(ctx context.Context, h task.Held, c task.Charge) error {
	var found []byte // nil leaves the partial result unchanged
	if c.Found != nil {
		var err error
		if found, err = c.Found.Marshal(); err != nil {
			return err
		}
	}
	return s.held(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if c.Found != nil {
			if err := keepFound(ctx, tx, h, c.Found); err != nil {
				return err
			}
		}
		return charge(ctx, tx, h, &c)
	}, `UPDATE capstan_task SET result = coalesce($3::bytea, result) WHERE uid = $1 AND claim = $2 AND state = 0`,
		h.Key(), h.Claim, found)
}

// keepFound stores the memories of a result, and sets its evaluations in the record of the Turn.
func keepFound(ctx context.Context, tx pgx.Tx, h task.Held, r *task.Result) error {
	if r.Learned != nil {
		if err := keep(ctx, tx, r.Learned); err != nil {
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
	_, err = tx.Exec(ctx, `UPDATE capstan_record SET evaluations = $2 WHERE uid = $1`, h.UID, recorded)
	return err
}

// PostponeTask ends a claim and delays the task. It takes at most 10 s.
func (s *Store) PostponeTask(ctx context.Context, h task.Held, d task.Delay) error {
	return s.held(ctx, func(ctx context.Context, tx pgx.Tx) error {
		return charge(ctx, tx, h, &task.Charge{})
	}, `UPDATE capstan_task SET claim = claim + 1, due_at = $3,
		attempts = attempts - CASE WHEN reserved > 0 AND NOT $5::boolean THEN 1 ELSE 0 END,
		begun_at = CASE WHEN reserved > 0 AND tokens = reserved AND $4::bigint = 0 THEN 0 ELSE begun_at END,
		tokens = tokens - reserved + $4::bigint, reserved = 0
		WHERE uid = $1 AND claim = $2 AND state < 2`, h.Key(), h.Claim, d.Until.UnixMicro(), d.Used, d.CutOff)
}

// FinishTask stores a result. It takes at most 10 s.
func (s *Store) FinishTask(ctx context.Context, h task.Held, r task.Result, used int64) error {
	result, err := r.Marshal()
	if err != nil {
		return err
	}
	return s.held(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if err := keepFound(ctx, tx, h, &r); err != nil {
			return err
		}
		return charge(ctx, tx, h, &task.Charge{})
	}, `UPDATE capstan_task SET state = 1, result = $3,
		begun_at = CASE WHEN $5 AND reserved > 0 AND tokens = reserved AND $4::bigint = 0 THEN 0 ELSE begun_at END,
		tokens = tokens - reserved + $4::bigint, reserved = 0
		WHERE uid = $1 AND claim = $2 AND state = 0`, h.Key(), h.Claim, result, used, r.Skipped != "")
}

// PublishTask ends the work on a task. It takes at most 10 s.
func (s *Store) PublishTask(ctx context.Context, h task.Held, at time.Time) error {
	return s.held(ctx, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, dropUnbegun, h.Key())
		return err
	}, `UPDATE capstan_task SET claim = claim + 1, state = 2, ended_at = $3, session = '', requester = '', result = ''
		WHERE uid = $1 AND claim = $2 AND state = 1`, h.Key(), h.Claim, at.UnixMicro())
}

// TaskUse returns those of the store's namespaces that have tasks whose work has not ended. It takes at most a minute.
func (s *Store) TaskUse(ctx context.Context) ([]task.Use, error) {
	return read(ctx, s, func(row pgx.CollectableRow) (u task.Use, err error) {
		var oldest int64
		err = row.Scan(&u.Namespace, &u.Waiting, &oldest)
		u.Oldest = time.UnixMicro(oldest).UTC()
		return u, err
	}, `SELECT namespace, count(*), min(created_at) FROM capstan_task WHERE state < 2 AND `+
		fmt.Sprintf(ofNamespaces, 1)+` GROUP BY namespace`, s.namespaces)
}

// PurgeTasks deletes tasks whose work ended before a time. It takes at most a minute.
func (s *Store) PurgeTasks(ctx context.Context, before time.Time, limit int) (purged int, err error) {
	err = s.retryOnce(ctx, readTimeout, func(ctx context.Context) error {
		tag, err := s.pool.Exec(ctx, `DELETE FROM capstan_task WHERE uid IN (
			SELECT uid FROM capstan_task WHERE state = 2 AND ended_at < $1 ORDER BY ended_at LIMIT $2)`, before.UnixMicro(), max(limit, 0))
		purged = int(tag.RowsAffected())
		return err
	})
	if err != nil {
		return 0, err
	}
	return purged, nil
}
