package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/capstan-dev/capstan/internal/runtime/memories"
	"github.com/capstan-dev/capstan/internal/runtime/ranking"
	"github.com/capstan-dev/capstan/internal/runtime/task"
	"github.com/capstan-dev/capstan/internal/store"
)

// upsertMemory stores a memory. If the same memory was learned earlier, the new memory replaces it. Only older versions
// of Capstan, which may use the database at the same time during an upgrade, use the column turn_expires_at.
const upsertMemory = `INSERT INTO capstan_memory AS m (id, owner, namespace, agent, scope, requester, session, session_uid, turn,
		turn_uid, text, words, confidence, model, learned_at, expires_at, turn_expires_at)
	VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, array_to_tsvector($12::text[]), $13, $14, $15, $16, 0)
	ON CONFLICT (id) DO UPDATE SET requester = excluded.requester, session = excluded.session, session_uid = excluded.session_uid,
		turn = excluded.turn, turn_uid = excluded.turn_uid, text = excluded.text, words = excluded.words,
		confidence = excluded.confidence, model = excluded.model, learned_at = excluded.learned_at,
		expires_at = excluded.expires_at
	WHERE excluded.learned_at >= m.learned_at`

// memoryLock is the first key of the advisory locks that keep takes. The second key is a hash of the owner.
const memoryLock = 0x6d65_6d6f

// keep stores memories, and then deletes the oldest memories of each owner that exceed the owner's limits. It skips the
// memories of a Session that was deleted, except for those that outlive the Session. A lock on the row of the Session's
// journal excludes a concurrent deletion. keep locks the owners in a fixed order, so that two transactions cannot
// deadlock.
func keep(ctx context.Context, tx pgx.Tx, l *task.Learned) error {
	sessions := map[string]store.SessionState{"": store.SessionLive}
	var kept []memories.Memory
	for _, m := range l.Memories {
		state, known := sessions[m.SessionUID]
		if !known {
			var deleted, expired bool
			err := tx.QueryRow(ctx, `SELECT retired_at IS NOT NULL OR forgotten, expired_until IS NOT NULL
				FROM capstan_turn WHERE turn_uid = $1 FOR SHARE`, m.SessionUID).Scan(&deleted, &expired)
			if err != nil && !errors.Is(err, pgx.ErrNoRows) {
				return err
			}
			state = store.SessionStateOf(deleted || err != nil, expired)
			sessions[m.SessionUID] = state
		}
		if state.Keeps(&m) {
			kept = append(kept, m)
		}
	}
	owners := store.OwnerKeys(kept)
	for _, owner := range owners {
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock($1, hashtext($2))`, memoryLock, owner); err != nil {
			return err
		}
	}
	for i := range kept {
		m := &kept[i]
		if _, err := tx.Exec(ctx, upsertMemory, m.ID, m.Owner().Key(), m.Namespace, m.Agent, string(m.Scope), text(m.Requester), m.Session,
			m.SessionUID, m.Turn, m.TurnUID, m.Text, notNull(ranking.Words(m.Text)), m.Confidence, text(m.Model), m.Learned.UnixMicro(),
			m.Expires.UnixMicro()); err != nil {
			return err
		}
	}
	for _, owner := range owners {
		if _, err := tx.Exec(ctx, `DELETE FROM capstan_memory WHERE id IN (SELECT id FROM (
				SELECT id, row_number() OVER newest AS n, sum(octet_length(text)) OVER newest AS bytes FROM capstan_memory WHERE owner = $1
				WINDOW newest AS (ORDER BY learned_at DESC, id COLLATE "C" DESC)) AS numbered WHERE n > $2 OR bytes > $3)`,
			owner, l.MaxItems, memories.MaxOwnerBytes); err != nil {
			return err
		}
	}
	return nil
}

// forget queues the statements that delete what was learned from deleted Turns and Sessions, except for memories that
// outlive them. Retire first ends the tasks of the Turns, and marks the journals as retired in the same transaction, so
// that nothing is learned afterwards.
func forget(batch *pgx.Batch, uids []string) {
	const expired = ` = ANY(ARRAY(SELECT turn_uid FROM capstan_turn WHERE turn_uid = ANY($1) AND expired_until IS NOT NULL))`
	batch.Queue(`UPDATE capstan_memory SET session_uid = '' WHERE scope = $2 AND session_uid <> '' AND session_uid`+expired, uids,
		string(memories.User))
	batch.Queue(`UPDATE capstan_memory SET turn_uid = '' WHERE turn_uid <> '' AND turn_uid`+expired, uids)
	batch.Queue(`DELETE FROM capstan_memory WHERE turn_uid = ANY($1) AND turn_uid <> ''`, uids)
	batch.Queue(`DELETE FROM capstan_memory WHERE session_uid = ANY($1) AND session_uid <> ''`, uids)
	batch.Queue(`DELETE FROM capstan_observation WHERE turn_uid = ANY($1)`, uids)
	batch.Queue(`DELETE FROM capstan_observation WHERE session_uid = ANY($1) AND session_uid <> ''`, uids)
}

const memoryColumns = `id, namespace, agent, scope, requester, session, session_uid, turn, turn_uid, text, confidence, model,
	learned_at, expires_at`

func scanMemory(row pgx.CollectableRow) (m memories.Memory, err error) {
	var scope string
	var learned, expires int64
	err = row.Scan(&m.ID, &m.Namespace, &m.Agent, &scope, &m.Requester, &m.Session, &m.SessionUID, &m.Turn, &m.TurnUID, &m.Text,
		&m.Confidence, &m.Model, &learned, &expires)
	m.Scope, m.Learned, m.Expires = memories.Scope(scope), time.UnixMicro(learned).UTC(), time.UnixMicro(expires).UTC()
	return m, err
}

// findMemories finds the memories of one owner. It needs no special index, because an owner keeps few memories.
const findMemories = `SELECT ` + memoryColumns + ` FROM capstan_memory WHERE owner = $1 AND expires_at > $2 AND id IN (
		(SELECT id FROM capstan_memory WHERE owner = $1 AND expires_at > $2 AND words @@ $3::tsquery
			ORDER BY learned_at DESC, id COLLATE "C" DESC LIMIT $4)
		UNION
		(SELECT id FROM capstan_memory WHERE owner = $1 AND expires_at > $2 ORDER BY learned_at DESC, id COLLATE "C" DESC LIMIT $5)
		UNION
		SELECT unnest($6::text[]))`

// FindMemories returns the memories of owners that may fit a text. It takes at most two minutes for each owner.
func (s *Store) FindMemories(
	ctx context.Context, owners []memories.Owner, search memories.Search, now time.Time,
) ([]memories.Memory, error) {
	query := ""
	if len(search.Words) > 0 { // words consist of letters, digits and marks, so the quotes suffice
		query = "'" + strings.Join(search.Words, "' | '") + "'"
	}
	var all []memories.Memory
	for _, o := range owners {
		nearest := &store.Nearest{To: search.Vector}
		if search.Vector.Given() {
			_, err := read(ctx, s, func(row pgx.CollectableRow) (none struct{}, err error) {
				var id string
				var vector pgtype.DriverBytes // valid until the next row
				err = row.Scan(&id, &vector)
				nearest.Add(id, vector)
				return none, err
			}, `SELECT id, vector FROM capstan_memory WHERE owner = $1 AND expires_at > $2 AND space = $3`,
				o.Key(), now.UnixMicro(), text(search.Vector.Space))
			if err != nil {
				return nil, err
			}
		}
		found, err := read(ctx, s, scanMemory, findMemories, o.Key(), now.UnixMicro(), query, memories.MaxItems, memories.MaxNewest,
			notNull(nearest.IDs()))
		if err != nil {
			return nil, err
		}
		nearest.SetSimilarities(found)
		all = append(all, found...)
	}
	return all, nil
}

// UnembeddedMemories returns the newest memories of owners that have no vector of a space. It takes at most a minute
// for each owner.
func (s *Store) UnembeddedMemories(
	ctx context.Context, owners []memories.Owner, space string, now time.Time, perOwner int,
) (all []memories.Memory, err error) {
	for _, o := range owners {
		found, err := read(ctx, s, scanMemory, `SELECT `+memoryColumns+` FROM capstan_memory WHERE owner = $1 AND expires_at > $2
			AND space <> $3 ORDER BY learned_at DESC, id COLLATE "C" DESC LIMIT $4`, o.Key(), now.UnixMicro(), text(space),
			max(perOwner, 0))
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}

// dropOtherLengths drops the vectors of a space and of the owners of memories that have another length. It skips locked
// memories, so that it never waits for one lock while it holds another.
const dropOtherLengths = `UPDATE capstan_memory SET space = '', vector = NULL WHERE id IN (
	SELECT id FROM capstan_memory WHERE space = $1 AND octet_length(vector) NOT IN (0, $2)
		AND owner IN (SELECT owner FROM capstan_memory WHERE id = ANY($3)) FOR UPDATE SKIP LOCKED)`

// EmbedMemories sets the vectors of memories. Each memory has its own transaction, so that no transaction waits for one
// lock while it holds another. Each transaction takes at most 10 s.
func (s *Store) EmbedMemories(ctx context.Context, all []memories.Embedded) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	for _, e := range all {
		err := s.retryOnce(ctx, appendTimeout, func(ctx context.Context) error {
			_, err := s.pool.Exec(ctx, `UPDATE capstan_memory SET space = $2, vector = $3 WHERE id = $1`, e.ID,
				text(e.Vector.Space), e.Vector.Bytes())
			return err
		})
		if err != nil {
			return err
		}
	}
	for _, last := range store.LastVectors(all) {
		err := s.retryOnce(ctx, appendTimeout, func(ctx context.Context) error {
			_, err := s.pool.Exec(ctx, dropOtherLengths, text(last.Space), last.Bytes, last.IDs)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// selected returns the conditions of a WHERE clause, and all arguments of the query: the given arguments, followed by
// the arguments of the conditions. The first condition is always true, so that the clause is never empty.
func selected(columns func(yield func(column, value string) bool), prefix string, given ...any) (where string, args []any) {
	where, args = "true", given
	for column, value := range columns {
		args = append(args, value)
		where += fmt.Sprintf(" AND %s%s = $%d", prefix, column, len(args))
	}
	return where, args
}

// ListMemories returns a page of memories. It takes at most a minute.
func (s *Store) ListMemories(ctx context.Context, q store.MemoryQuery) ([]memories.Memory, error) {
	where, args := selected(q.Conditions, "")
	if a := q.After; a.ID != "" {
		args = append(args, a.Learned.UnixMicro(), a.ID)
		where += fmt.Sprintf(` AND (learned_at, id COLLATE "C") < ($%d, $%d)`, len(args)-1, len(args))
	}
	limit := store.MaxMemories
	if q.Limit > 0 {
		limit = min(limit, q.Limit)
	}
	args = append(args, limit)
	return read(ctx, s, scanMemory, fmt.Sprintf(`SELECT `+memoryColumns+` FROM capstan_memory WHERE %s
		ORDER BY learned_at DESC, id COLLATE "C" DESC LIMIT $%d`, where, len(args)), args...)
}

// DeleteMemories deletes selected memories. If the selector has no ID, DeleteMemories first ends the tasks that would
// learn the memories again. Each task has its own transaction, so the caller must repeat DeleteMemories after an error.
// A step takes at most a minute.
func (s *Store) DeleteMemories(ctx context.Context, sel store.MemorySelector, at time.Time, limit int) (deleted int, err error) {
	if sel.ID == "" {
		if err := s.forgetSources(ctx, sel, at); err != nil {
			return 0, err
		}
	}
	where, args := selected(sel.Conditions, "", max(limit, 0))
	err = s.change(ctx, func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `DELETE FROM capstan_memory WHERE id IN (SELECT id FROM capstan_memory WHERE `+where+` LIMIT $1)`, args...)
		deleted = int(tag.RowsAffected())
		return err
	})
	if err != nil {
		return 0, err
	}
	return deleted, nil
}

// completeTasks copies the Session and the requester from the record of a Turn to its waiting task, if an executor of
// an older version has added the task without these fields.
const completeTasks = `UPDATE capstan_task AS k SET session = r.session, requester = r.requester FROM capstan_record AS r
	WHERE k.state < 2 AND k.kind = 'memory' AND k.session = '' AND k.requester = '' AND r.uid = left(k.uid, -length('/memory'))
		AND (r.session <> '' OR r.requester <> '')`

// forgetSources ends the tasks that would learn from selected Turns, and deletes the observations of these Turns. If
// the selector has a scope, the tasks continue to learn in other scopes, and the observations stay.
func (s *Store) forgetSources(ctx context.Context, sel store.MemorySelector, at time.Time) error {
	err := s.retryOnce(ctx, appendTimeout, func(ctx context.Context) error {
		_, err := s.pool.Exec(ctx, completeTasks)
		return err
	})
	if err != nil {
		return err
	}
	where, args := selected(sel.Source, "")
	keys, err := read(ctx, s, pgx.RowTo[string], `SELECT uid FROM capstan_task WHERE state < 2 AND kind = 'memory' AND `+where, args...)
	if err != nil {
		return err
	}
	for _, key := range keys {
		if sel.Scope == "" {
			err = s.endTask(ctx, task.HeldOf(key), at)
		} else {
			err = s.endScope(ctx, key, sel.Scope)
		}
		if err != nil {
			return err
		}
	}
	if sel.Scope != "" {
		return nil
	}
	return s.retryOnce(ctx, appendTimeout, func(ctx context.Context) error {
		_, err := s.pool.Exec(ctx, `DELETE FROM capstan_observation WHERE `+where, args...)
		return err
	})
}

// endScope makes a task learn nothing more in a scope. An attempt in progress loses its claim, and the next claim
// charges the open request of this attempt.
func (s *Store) endScope(ctx context.Context, key string, scope memories.Scope) error {
	return s.retryOnce(ctx, appendTimeout, func(ctx context.Context) error {
		return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
			var k task.Task
			var result []byte
			err := tx.QueryRow(ctx, `SELECT result FROM capstan_task WHERE uid = $1 AND state = 0 FOR UPDATE`, key).Scan(&result)
			if errors.Is(err, pgx.ErrNoRows) {
				return nil // the task has stored all memories that it learned
			}
			if err == nil {
				err = k.SetResult(result, false)
			}
			if err != nil {
				return fmt.Errorf("failed to read the result of the task %q: %w", key, err)
			}
			data, err := k.Partial.WithoutScope(scope).Marshal()
			if err != nil {
				return err
			}
			_, err = tx.Exec(ctx, `UPDATE capstan_task SET claim = claim + 1, result = $2 WHERE uid = $1`, key, data)
			return err
		})
	})
}

// SetExpired notes that an object is deleted because its time to live is over. A generic plan, which the server may use
// for a prepared statement, needs the condition that session_uid is not empty for the partial index of this column.
// SetExpired takes at most 10 s.
func (s *Store) SetExpired(ctx context.Context, uid string, until time.Time) error {
	note := pgtype.Timestamptz{Time: until, Valid: !until.IsZero()}
	return s.retryOnce(ctx, appendTimeout, func(ctx context.Context) error {
		_, err := s.pool.Exec(ctx, `UPDATE capstan_turn SET expired_until = $2
			WHERE turn_uid = $1 AND expired_until IS DISTINCT FROM $2 AND retired_at IS NULL AND NOT forgotten AND ($2 IS NULL
			OR EXISTS (SELECT 1 FROM capstan_memory WHERE turn_uid = $1)
			OR EXISTS (SELECT 1 FROM capstan_memory WHERE session_uid = $1 AND session_uid <> '')
			OR EXISTS (SELECT 1 FROM capstan_task WHERE state < 2 AND kind = 'memory'))`, uid, note)
		return err
	})
}

// PurgeMemories deletes expired memories. It takes at most a minute.
func (s *Store) PurgeMemories(ctx context.Context, now time.Time, limit int) (purged int, err error) {
	err = s.retryOnce(ctx, readTimeout, func(ctx context.Context) error {
		tag, err := s.pool.Exec(ctx, `DELETE FROM capstan_memory WHERE id IN (
			SELECT id FROM capstan_memory WHERE expires_at <= $1 ORDER BY expires_at LIMIT $2)`, now.UnixMicro(), max(limit, 0))
		purged = int(tag.RowsAffected())
		return err
	})
	if err != nil {
		return 0, err
	}
	return purged, nil
}

// Observe stores an observation of a Turn whose journal is neither retired nor forgotten. The locks on the rows of the
// journals exclude a concurrent deletion. It takes at most 10 s.
func (s *Store) Observe(ctx context.Context, o memories.Observation) error {
	details, err := o.Marshal()
	if err != nil {
		return err
	}
	return s.change(ctx, func(ctx context.Context, tx pgx.Tx) error {
		uids := []string{o.TurnUID}
		if o.SessionUID != "" {
			uids = append(uids, o.SessionUID)
		}
		rows, err := tx.Query(ctx, `SELECT turn_uid FROM capstan_turn WHERE turn_uid = ANY($1) AND retired_at IS NULL AND NOT forgotten
			ORDER BY turn_uid FOR SHARE`, uids)
		if err != nil {
			return err
		}
		live, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil || len(live) < len(uids) {
			return err
		}
		_, err = tx.Exec(ctx, `INSERT INTO capstan_observation (turn_uid, namespace, agent, turn, session, session_uid, requester, ended_at,
			details) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT DO NOTHING`,
			o.TurnUID, o.Namespace, o.Agent, o.Turn, o.Session, o.SessionUID, text(o.Requester), o.Time.UnixMicro(), details)
		return err
	})
}

// Observations returns the newest observations of an Agent. It takes at most a minute.
func (s *Store) Observations(ctx context.Context, namespace, agent string, limit int) ([]memories.Observation, error) {
	return read(ctx, s, func(row pgx.CollectableRow) (o memories.Observation, err error) {
		var ended int64
		var details []byte
		if err := row.Scan(&o.TurnUID, &o.Namespace, &o.Agent, &o.Turn, &o.Session, &o.SessionUID, &o.Requester, &ended,
			&details); err != nil {
			return o, err
		}
		if err := json.Unmarshal(details, &o.Details); err != nil {
			return o, fmt.Errorf("failed to read the observation of turn %q: %w", o.TurnUID, err)
		}
		o.Time = time.UnixMicro(ended).UTC()
		return o, nil
	}, `SELECT turn_uid, namespace, agent, turn, session, session_uid, requester, ended_at, details FROM capstan_observation
		WHERE namespace = $1 AND agent = $2 ORDER BY ended_at DESC, turn_uid COLLATE "C" DESC LIMIT $3`, namespace, agent, max(limit, 0))
}
