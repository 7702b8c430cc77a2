package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/memories"
	"github.com/capstan-dev/capstan/internal/runtime/ranking"
	"github.com/capstan-dev/capstan/internal/runtime/task"
	"github.com/capstan-dev/capstan/internal/store"
)

// keep stores memories, and then deletes the oldest memories of each owner that exceed the owner's limits. It skips the
// memories of a Session that was deleted, except for those that outlive the Session. Only older versions of Capstan use
// the column turn_expires_at.
func (t *tx) keep(l *task.Learned) error {
	sessions := map[string]store.SessionState{"": store.SessionLive}
	var kept []memories.Memory
	for _, m := range l.Memories {
		state, known := sessions[m.SessionUID]
		if !known {
			var err error
			if state, err = t.sessionState(m.SessionUID); err != nil {
				return err
			}
			sessions[m.SessionUID] = state
		}
		if !state.Keeps(&m) {
			continue
		}
		if _, err := t.exec(`INSERT INTO memory (id, owner, namespace, agent, scope, requester, session, session_uid, turn, turn_uid,
				text, words, confidence, model, learned_at, expires_at, turn_expires_at)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0)
			ON CONFLICT (id) DO UPDATE SET requester = excluded.requester, session = excluded.session, session_uid = excluded.session_uid,
				turn = excluded.turn, turn_uid = excluded.turn_uid, text = excluded.text, words = excluded.words,
				confidence = excluded.confidence, model = excluded.model, learned_at = excluded.learned_at,
				expires_at = excluded.expires_at
			WHERE excluded.learned_at >= memory.learned_at`,
			m.ID, m.Owner().Key(), m.Namespace, m.Agent, string(m.Scope), m.Requester, m.Session, m.SessionUID, m.Turn, m.TurnUID,
			m.Text, strings.Join(ranking.Words(m.Text), " "), m.Confidence, m.Model, m.Learned.UnixMicro(),
			m.Expires.UnixMicro()); err != nil {
			return fmt.Errorf("failed to store a memory: %w", err)
		}
		kept = append(kept, m)
	}
	for _, owner := range store.OwnerKeys(kept) {
		if _, err := t.exec(`DELETE FROM memory WHERE number IN (SELECT number FROM (
				SELECT number, row_number() OVER newest AS n, sum(octet_length(text)) OVER newest AS bytes FROM memory WHERE owner = ?
				WINDOW newest AS (ORDER BY learned_at DESC, id DESC)) WHERE n > ? OR bytes > ?)`,
			owner, l.MaxItems, memories.MaxOwnerBytes); err != nil {
			return fmt.Errorf("failed to delete the oldest memories: %w", err)
		}
	}
	return nil
}

// Keep stores memories that were learned without a task.
func (s *Store) Keep(ctx context.Context, l *task.Learned) error {
	return s.change(ctx, func(t *tx) error { return t.keep(l) })
}

// sessionState returns the state of a Session by its UID.
func (t *tx) sessionState(uid string) (store.SessionState, error) {
	var deleted, expired bool
	//nolint:noctx // because the transaction carries the context
	err := t.QueryRow(`SELECT retired_at IS NOT NULL OR forgotten, expired_until <> 0 FROM head WHERE uid = ?`, uid).
		Scan(&deleted, &expired)
	if errors.Is(err, sql.ErrNoRows) {
		return store.SessionDeleted, nil
	}
	if err != nil {
		return store.SessionDeleted, fmt.Errorf("failed to find the session of a memory: %w", err)
	}
	return store.SessionStateOf(deleted, expired), nil
}

// forget deletes what was learned from deleted Turns and Sessions, except for memories that outlive them.
func (t *tx) forget(uids []string) error {
	const isExpired = ` AND EXISTS (SELECT 1 FROM head WHERE uid = ?1 AND expired_until <> 0)`
	for _, uid := range uids {
		if _, err := t.exec(`UPDATE memory SET session_uid = '' WHERE session_uid = ?1 AND session_uid <> '' AND scope = ?2`+isExpired,
			uid, string(memories.User)); err != nil {
			return fmt.Errorf("failed to keep the memories about users from %q: %w", uid, err)
		}
		for _, query := range []string{
			`UPDATE memory SET turn_uid = '' WHERE turn_uid = ?1` + isExpired,
			`DELETE FROM memory WHERE turn_uid = ? AND turn_uid <> ''`,
			`DELETE FROM memory WHERE session_uid = ? AND session_uid <> ''`,
			`DELETE FROM observation WHERE turn_uid = ?`,
			`DELETE FROM observation WHERE session_uid = ? AND session_uid <> ''`,
		} {
			if _, err := t.exec(query, uid); err != nil {
				return fmt.Errorf("failed to delete what was learned from %q: %w", uid, err)
			}
		}
	}
	return nil
}

const memoryColumns = `m.id, m.namespace, m.agent, m.scope, m.requester, m.session, m.session_uid, m.turn, m.turn_uid, m.text,
	m.confidence, m.model, m.learned_at, m.expires_at`

// memories executes a query for memories with a connection of a pool.
func (s *Store) memories(ctx context.Context, pool *sql.DB, query string, args ...any) (all []memories.Memory, err error) {
	rows, err := pool.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, s.failed(err)
	}
	defer rows.Close() //nolint:errcheck // because rows.Err below reports every error
	for rows.Next() {
		m, err := scanMemory(rows)
		if err != nil {
			return nil, s.failed(err)
		}
		all = append(all, m)
	}
	return all, s.failed(rows.Err())
}

func scanMemory(rows *sql.Rows) (m memories.Memory, err error) {
	var scope string
	var learned, expires int64
	err = rows.Scan(&m.ID, &m.Namespace, &m.Agent, &scope, &m.Requester, &m.Session, &m.SessionUID, &m.Turn, &m.TurnUID, &m.Text,
		&m.Confidence, &m.Model, &learned, &expires)
	m.Scope, m.Learned, m.Expires = memories.Scope(scope), time.UnixMicro(learned).UTC(), time.UnixMicro(expires).UTC()
	return m, err
}

// FindMemories returns the memories of owners that may fit a text.
func (s *Store) FindMemories(
	ctx context.Context, owners []memories.Owner, search memories.Search, now time.Time,
) ([]memories.Memory, error) {
	var all []memories.Memory
	for _, o := range owners {
		found, err := s.find(ctx, o.Key(), search, now.UnixMicro())
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}

// find returns the memories of one owner that may fit a text.
func (s *Store) find(ctx context.Context, owner string, search memories.Search, now int64) ([]memories.Memory, error) {
	var all []memories.Memory
	seen := map[string]bool{}
	add := func(query string, args ...any) error {
		found, err := s.memories(ctx, s.db, `SELECT `+memoryColumns+` FROM `+query, args...)
		for _, m := range found {
			if !seen[m.ID] {
				seen[m.ID] = true
				all = append(all, m)
			}
		}
		return err
	}
	if len(search.Words) > 0 {
		// Words consist of letters, digits and marks, so the quotes suffice.
		match := fmt.Sprintf(`owner : "%s" AND words : ("%s")`, owner, strings.Join(search.Words, `" OR "`))
		if err := add(`memory_index AS i JOIN memory AS m ON m.number = i.rowid
			WHERE memory_index MATCH ? AND m.owner = ? AND m.expires_at > ? ORDER BY m.learned_at DESC, m.id DESC LIMIT ?`,
			match, owner, now, memories.MaxItems); err != nil {
			return nil, err
		}
	}
	if err := add(`memory AS m WHERE m.owner = ? AND m.expires_at > ? ORDER BY m.learned_at DESC, m.id DESC LIMIT ?`,
		owner, now, memories.MaxNewest); err != nil {
		return nil, err
	}
	if !search.Vector.Given() {
		return all, nil
	}
	nearest, err := s.nearest(ctx, owner, search.Vector, now)
	if err != nil {
		return nil, err
	}
	for _, id := range nearest.IDs() {
		if seen[id] {
			continue
		}
		if err := add(`memory AS m WHERE m.id = ? AND m.owner = ?`, id, owner); err != nil {
			return nil, err
		}
	}
	nearest.SetSimilarities(all)
	return all, nil
}

// nearest compares the vectors of all memories of an owner with a target vector.
func (s *Store) nearest(ctx context.Context, owner string, target ranking.Vector, now int64) (*store.Nearest, error) {
	rows, err := s.db.QueryContext(ctx, `SELECT id, vector FROM memory WHERE owner = ? AND expires_at > ? AND space = ?`,
		owner, now, target.Space)
	if err != nil {
		return nil, s.failed(err)
	}
	defer rows.Close() //nolint:errcheck // because rows.Err below reports every error
	n := &store.Nearest{To: target}
	for rows.Next() {
		var id string
		var vector sql.RawBytes
		if err := rows.Scan(&id, &vector); err != nil {
			return nil, s.failed(err)
		}
		n.Add(id, vector)
	}
	return n, s.failed(rows.Err())
}

// UnembeddedMemories returns the newest memories of owners that have no vector of a space.
func (s *Store) UnembeddedMemories(
	ctx context.Context, owners []memories.Owner, space string, now time.Time, perOwner int,
) (all []memories.Memory, err error) {
	for _, o := range owners {
		found, err := s.memories(ctx, s.db, `SELECT `+memoryColumns+` FROM memory AS m
			WHERE m.owner = ? AND m.expires_at > ? AND m.space <> ? ORDER BY m.learned_at DESC, m.id DESC LIMIT ?`,
			o.Key(), now.UnixMicro(), space, max(perOwner, 0))
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return all, nil
}

// EmbedMemories sets the vectors of memories in one transaction.
func (s *Store) EmbedMemories(ctx context.Context, all []memories.Embedded) error {
	return s.change(ctx, func(t *tx) error {
		for _, e := range all {
			_, err := t.exec(`UPDATE memory SET space = ?, vector = ? WHERE id = ?`, e.Vector.Space, e.Vector.Bytes(), e.ID)
			if err != nil {
				return fmt.Errorf("failed to store the vector of a memory: %w", err)
			}
		}
		for _, last := range store.LastVectors(all) {
			ids, err := json.Marshal(last.IDs)
			if err != nil {
				return err
			}
			if _, err := t.exec(`UPDATE memory SET space = '', vector = NULL WHERE space = ? AND octet_length(vector) NOT IN (0, ?)
				AND owner IN (SELECT owner FROM memory WHERE id IN (SELECT value FROM json_each(?)))`,
				last.Space, last.Bytes, string(ids)); err != nil {
				return fmt.Errorf("failed to drop vectors of another length: %w", err)
			}
		}
		return nil
	})
}

// selected returns the conditions of a WHERE clause with their arguments. The first condition is always true, so that
// the clause is never empty.
func selected(columns func(yield func(column, value string) bool), prefix string) (where string, args []any) {
	where = "true"
	for column, value := range columns {
		where += " AND " + prefix + column + " = ?"
		args = append(args, value)
	}
	return where, args
}

// ListMemories returns a page of memories.
func (s *Store) ListMemories(ctx context.Context, q store.MemoryQuery) ([]memories.Memory, error) {
	where, args := selected(q.Conditions, "m.")
	if a := q.After; a.ID != "" {
		where += " AND (m.learned_at, m.id) < (?, ?)"
		args = append(args, a.Learned.UnixMicro(), a.ID)
	}
	limit := store.MaxMemories
	if q.Limit > 0 {
		limit = min(limit, q.Limit)
	}
	return s.memories(ctx, s.lists, `SELECT `+memoryColumns+` FROM memory AS m WHERE `+where+`
		ORDER BY m.learned_at DESC, m.id DESC LIMIT ?`, append(args, limit)...)
}

// DeleteMemories deletes selected memories in one transaction.
func (s *Store) DeleteMemories(ctx context.Context, sel store.MemorySelector, at time.Time, limit int) (deleted int, err error) {
	err = s.change(ctx, func(t *tx) error {
		if sel.ID == "" {
			if err := t.forgetSources(sel, at); err != nil {
				return err
			}
		}
		where, args := selected(sel.Conditions, "")
		n, err := t.exec(`DELETE FROM memory WHERE number IN (SELECT number FROM memory WHERE `+where+` LIMIT ?)`,
			append(args, max(limit, 0))...)
		deleted = int(n)
		return err
	})
	if err != nil {
		return 0, err
	}
	return deleted, nil
}

// forgetSources ends the tasks that would learn from selected Turns, and deletes the observations of these Turns. If
// the selector has a scope, the tasks continue to learn in other scopes, and the observations stay.
func (t *tx) forgetSources(sel store.MemorySelector, at time.Time) error {
	where, args := selected(sel.Source, "")
	query := `SELECT uid FROM task WHERE state < 2 AND kind = 'memory' AND ` + where
	rows, err := t.Query(query, args...) //nolint:noctx // because the transaction carries the context
	if err != nil {
		return fmt.Errorf("failed to find the tasks of selected turns: %w", err)
	}
	keys, err := collect(rows)
	if err != nil {
		return err
	}
	for _, key := range keys {
		if sel.Scope == "" {
			err = t.endTask(task.HeldOf(key), at)
		} else {
			err = t.endScope(key, sel.Scope)
		}
		if err != nil {
			return err
		}
	}
	if sel.Scope != "" {
		return nil
	}
	_, err = t.exec(`DELETE FROM observation WHERE `+where, args...)
	return err
}

// endScope makes a task learn nothing more in a scope. An attempt in progress loses its claim, and the next claim
// charges the open request of this attempt.
func (t *tx) endScope(key string, scope memories.Scope) error {
	var k task.Task
	var result string
	//nolint:noctx // because the transaction carries the context
	err := t.QueryRow(`SELECT result FROM task WHERE uid = ? AND state = 0`, key).Scan(&result)
	if errors.Is(err, sql.ErrNoRows) {
		return nil // the task has stored all memories that it learned
	}
	if err == nil {
		err = k.SetResult([]byte(result), false)
	}
	if err != nil {
		return fmt.Errorf("failed to read the result of the task %q: %w", key, err)
	}
	data, err := k.Partial.WithoutScope(scope).Marshal()
	if err != nil {
		return err
	}
	_, err = t.exec(`UPDATE task SET claim = claim + 1, result = ? WHERE uid = ?`, string(data), key)
	return err
}

// collect reads rows with one text column, and closes the rows.
func collect(rows *sql.Rows) (all []string, err error) {
	defer rows.Close() //nolint:errcheck // because rows.Err below reports every error
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			return nil, err
		}
		all = append(all, text)
	}
	return all, rows.Err()
}

// expiryMatters finds an object by its UID if its note of SetExpired must change. SQLite uses the partial index of
// session_uid only with the condition that it is not empty.
const expiryMatters = `SELECT uid FROM head WHERE uid = ?1 AND expired_until <> ?2 AND (?2 = 0
	OR EXISTS (SELECT 1 FROM memory WHERE turn_uid = ?1)
	OR EXISTS (SELECT 1 FROM memory WHERE session_uid = ?1 AND session_uid <> '')
	OR EXISTS (SELECT 1 FROM task WHERE state < 2 AND kind = 'memory'))`

// SetExpired notes that an object is deleted because its time to live is over. A transaction of the writer costs a
// flush to disk, and most Turns have no memories, so SetExpired first checks whether the note matters.
func (s *Store) SetExpired(ctx context.Context, uid string, until time.Time) error {
	var micros int64
	if !until.IsZero() {
		micros = until.UnixMicro()
	}
	found, err := s.queryStrings(ctx, expiryMatters, uid, micros)
	if err != nil {
		return s.failed(err)
	}
	if len(found) == 0 {
		return nil
	}
	return s.change(ctx, func(t *tx) error {
		_, err := t.exec(`UPDATE head SET expired_until = ?2 WHERE uid = ?1 AND retired_at IS NULL AND NOT forgotten`, uid, micros)
		return err
	})
}

// PurgeMemories deletes expired memories in one transaction.
func (s *Store) PurgeMemories(ctx context.Context, now time.Time, limit int) (purged int, err error) {
	err = s.change(ctx, func(t *tx) error {
		n, err := t.exec(`DELETE FROM memory WHERE number IN (SELECT number FROM memory WHERE expires_at <= ? ORDER BY expires_at LIMIT ?)`,
			now.UnixMicro(), max(limit, 0))
		purged = int(n)
		return err
	})
	if err != nil {
		return 0, err
	}
	return purged, nil
}

// Observe stores an observation of a Turn whose journal is neither retired nor forgotten.
func (s *Store) Observe(ctx context.Context, o memories.Observation) error {
	details, err := o.Marshal()
	if err != nil {
		return err
	}
	return s.change(ctx, func(t *tx) error {
		_, err := t.exec(`INSERT INTO observation (turn_uid, namespace, agent, turn, session, session_uid, requester, ended_at, details)
			SELECT ?, ?, ?, ?, ?, ?, ?, ?, ?
			WHERE EXISTS (SELECT 1 FROM head WHERE uid = ? AND retired_at IS NULL AND NOT forgotten)
			AND (? = '' OR EXISTS (SELECT 1 FROM head WHERE uid = ? AND retired_at IS NULL AND NOT forgotten)) ON CONFLICT DO NOTHING`,
			o.TurnUID, o.Namespace, o.Agent, o.Turn, o.Session, o.SessionUID, o.Requester, o.Time.UnixMicro(), string(details),
			o.TurnUID, o.SessionUID, o.SessionUID)
		return err
	})
}

// Observations returns the newest observations of an Agent.
func (s *Store) Observations(ctx context.Context, namespace, agent string, limit int) (all []memories.Observation, err error) {
	rows, err := s.db.QueryContext(ctx, `SELECT turn_uid, namespace, agent, turn, session, session_uid, requester, ended_at, details
		FROM observation WHERE namespace = ? AND agent = ? ORDER BY ended_at DESC, turn_uid DESC LIMIT ?`, namespace, agent, max(limit, 0))
	if err != nil {
		return nil, s.failed(err)
	}
	defer rows.Close() //nolint:errcheck // because rows.Err below reports every error
	for rows.Next() {
		var o memories.Observation
		var ended int64
		var details []byte
		if err := rows.Scan(&o.TurnUID, &o.Namespace, &o.Agent, &o.Turn, &o.Session, &o.SessionUID, &o.Requester, &ended,
			&details); err != nil {
			return nil, s.failed(err)
		}
		if err := json.Unmarshal(details, &o.Details); err != nil {
			return nil, fmt.Errorf("failed to read the observation of turn %q: %w", o.TurnUID, err)
		}
		o.Time = time.UnixMicro(ended).UTC()
		all = append(all, o)
	}
	return all, s.failed(rows.Err())
}

// ListMemories returns a page of memories, as Store.ListMemories does.
func (r *Reader) ListMemories(ctx context.Context, q store.MemoryQuery) ([]memories.Memory, error) {
	return r.store.ListMemories(ctx, q)
}
