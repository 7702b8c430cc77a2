package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/turnrecord"
	"github.com/capstan-dev/capstan/internal/store"
)

// addRecord adds a record, unless its Turn already has a record. added is 1 or 0.
func (t *tx) addRecord(r *turnrecord.Record) (added int64, err error) {
	details, err := r.MarshalDetails()
	if err != nil {
		return 0, err
	}
	return t.exec(`INSERT INTO turn_record (uid, namespace, turn, agent, session, requester, reason, completed, details)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING`,
		r.UID, r.Namespace, r.Turn, r.Agent, r.Session, r.Requester, r.Reason, r.Completed.UnixMicro(), string(details))
}

// setTurnNumber sets the number in the record of a Turn, if there is one.
func (t *tx) setTurnNumber(n *journal.TurnNumber) error {
	var details string
	//nolint:noctx // because the transaction carries the context
	err := t.QueryRow(`SELECT details FROM turn_record WHERE uid = ?`, n.TurnUID).Scan(&details)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	if err != nil {
		return err
	}
	next, err := turnrecord.WithTurnNumber([]byte(details), n.Number)
	if err != nil {
		return err
	}
	_, err = t.exec(`UPDATE turn_record SET details = ? WHERE uid = ?`, string(next), n.TurnUID)
	return err
}

// AddRecords adds records in one transaction.
func (s *Store) AddRecords(ctx context.Context, records ...turnrecord.Record) (added int, err error) {
	if len(records) == 0 {
		return 0, nil
	}
	err = s.change(ctx, func(t *tx) error {
		added = 0
		for i := range records {
			n, err := t.addRecord(&records[i])
			if err != nil {
				return err
			}
			added += int(n)
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	return added, nil
}

// Unrecorded returns the UIDs without a record.
func (s *Store) Unrecorded(ctx context.Context, uids []string) ([]string, error) {
	list, err := json.Marshal(uids)
	if err != nil {
		return nil, err
	}
	missing, err := s.queryStrings(ctx, `SELECT value FROM json_each(?) WHERE NOT EXISTS (SELECT 1 FROM turn_record WHERE uid = value)`,
		string(list))
	return missing, s.failed(err)
}

// Records returns a page of records, newest first. An index has this order, so the query need not sort the records.
func (s *Store) Records(ctx context.Context, q store.RecordQuery) (page []turnrecord.Record, more bool, err error) {
	where, args := selected(q.Conditions, "")
	for _, limit := range []struct {
		at   time.Time
		text string
	}{{q.Since, " AND completed >= ?"}, {q.Until, " AND completed < ?"}} {
		if !limit.at.IsZero() {
			where += limit.text
			args = append(args, limit.at.UnixMicro())
		}
	}
	if q.Commented {
		where += ` AND instr(feedback, '"comment":"') > 0` // as in the index turn_record_commented
	}
	if a := q.After; a.UID != "" {
		where += " AND (completed, uid) < (?, ?)"
		args = append(args, a.Completed.UnixMicro(), a.UID)
	}
	//nolint:gosec // because the text has only names of columns
	rows, err := s.lists.QueryContext(ctx, `SELECT uid, namespace, turn, agent, session, requester, reason, completed, details, feedback,
		evaluations, expenses FROM turn_record WHERE `+where+` ORDER BY completed DESC, uid DESC LIMIT ?`, append(args, q.MaxPage())...)
	if err != nil {
		return nil, false, s.failed(err)
	}
	stored, full, err := storedRecords(rows)
	if err != nil {
		return nil, false, s.failed(err)
	}
	for i := range stored {
		if err := stored[i].unmarshal(); err != nil {
			return nil, false, err
		}
		page = append(page, stored[i].Record)
	}
	return page, full || len(page) == q.MaxPage(), nil
}

// storedRecord is a record with its columns of JSON.
type storedRecord struct {
	turnrecord.Record
	details, feedback, evaluations, expenses []byte
}

// storedRecords reads and closes rows up to PageRecordBytes, and reports whether there may be more. It does not
// interpret the JSON, because the write-ahead log cannot begin anew before the rows are closed.
func storedRecords(rows *sql.Rows) (all []storedRecord, full bool, err error) {
	defer rows.Close() //nolint:errcheck // because rows.Err below reports every error
	bytes := 0
	for rows.Next() {
		var r storedRecord
		var completed int64
		if err := rows.Scan(&r.UID, &r.Namespace, &r.Turn, &r.Agent, &r.Session, &r.Requester, &r.Reason, &completed, &r.details,
			&r.feedback, &r.evaluations, &r.expenses); err != nil {
			return nil, false, err
		}
		r.Completed = time.UnixMicro(completed).UTC()
		all = append(all, r)
		if bytes += len(r.details) + len(r.feedback) + len(r.evaluations) + len(r.expenses); bytes >= store.PageRecordBytes {
			return all, true, nil
		}
	}
	return all, false, rows.Err()
}

// unmarshal sets the fields that are stored as JSON.
func (r *storedRecord) unmarshal() error {
	if err := errors.Join(json.Unmarshal(r.details, &r.Details), json.Unmarshal(r.feedback, &r.Feedback),
		json.Unmarshal(r.evaluations, &r.Evaluations), json.Unmarshal(r.expenses, &r.Expenses)); err != nil {
		return fmt.Errorf("failed to read the record of turn %q: %w", r.UID, err)
	}
	return nil
}

// reserveDeletions makes other deletions of records wait until end is called.
func (s *Store) reserveDeletions(ctx context.Context) (end func(), err error) {
	select {
	case s.deletions <- struct{}{}:
		return func() { <-s.deletions }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// oldestRecords returns a query for the UIDs of the oldest records that match a condition. Its last argument is the
// number of records.
func oldestRecords(where string) string {
	return `SELECT uid FROM turn_record WHERE ` + where + ` ORDER BY completed, uid LIMIT ?`
}

// deleteRecords deletes up to limit records that match a condition, oldest first. If note is true, it notes the times
// of the records for DeletedUntil. The caller must have called reserveDeletions.
func (s *Store) deleteRecords(ctx context.Context, limit int, note bool, where string, args ...any) (deleted int, err error) {
	chosen := ` WHERE uid IN (` + oldestRecords(where) + `)`
	args = append(args, max(limit, 0))
	err = s.change(ctx, func(t *tx) error {
		if note {
			if _, err := t.exec(`INSERT INTO record_deleted SELECT namespace, max(completed) FROM turn_record`+chosen+
				` GROUP BY namespace ON CONFLICT (namespace) DO UPDATE SET until = max(until, excluded.until)`, args...); err != nil {
				return err
			}
		}
		n, err := t.exec(`DELETE FROM turn_record`+chosen, args...)
		deleted = int(n)
		return err
	})
	if err != nil {
		return 0, err
	}
	return deleted, nil
}

// PurgeRecords deletes old records in one transaction.
func (s *Store) PurgeRecords(ctx context.Context, before time.Time, limit int) (int, error) {
	end, err := s.reserveDeletions(ctx)
	if err != nil {
		return 0, err
	}
	defer end()
	return s.deleteRecords(ctx, limit, true, "completed < ?", before.UnixMicro())
}

// DeletedUntil reads the noted time of a namespace, or the latest noted time of all namespaces.
func (s *Store) DeletedUntil(ctx context.Context, namespace string) (time.Time, error) {
	var until sql.NullInt64
	err := s.db.QueryRowContext(ctx, `SELECT max(until) FROM record_deleted WHERE namespace = ?1 OR ?1 = ''`, namespace).Scan(&until)
	if err != nil || !until.Valid {
		return time.Time{}, s.failed(err)
	}
	return time.UnixMicro(until.Int64).UTC(), nil
}

// newestSurplus finds the newest record of a namespace that is not one of its newest records, whose number is the
// second argument. isSurplus is a condition for this record and the older ones of the namespace. An index has this
// order.
const (
	newestSurplus = `SELECT completed, uid FROM turn_record WHERE namespace = ? ORDER BY completed DESC, uid DESC LIMIT 1 OFFSET ?`
	isSurplus     = `namespace = ? AND (completed, uid) <= (?, ?)`
)

// TrimRecords deletes the oldest records of the namespace that has the most records, in one transaction. The surplus is
// found before, because the only writer should not search. No other call may delete records in between, because too
// few would then stay. After a full batch, the next call continues with the same namespace: to count all records for
// each batch would take longer than the deletion.
func (s *Store) TrimRecords(ctx context.Context, maxRecords, limit int) (int, error) {
	end, err := s.reserveDeletions(ctx)
	if err != nil {
		return 0, err
	}
	defer end()
	if namespace := s.trimmed; namespace != "" {
		s.trimmed = ""
		if n, err := s.trimRecordsOf(ctx, namespace, maxRecords, limit); n > 0 || err != nil {
			return n, err
		}
	}
	var namespace string
	var n int
	// This query and that of trimRecordsOf must not wait until lists have ended, because the caller's time could then
	// be over. They read only an index.
	err = s.db.QueryRowContext(ctx, `SELECT namespace, count(*) AS n FROM turn_record GROUP BY namespace ORDER BY n DESC LIMIT 1`).Scan(
		&namespace, &n)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return 0, nil
	case err != nil:
		return 0, s.failed(err)
	case n <= maxRecords:
		return 0, nil
	}
	return s.trimRecordsOf(ctx, namespace, maxRecords, limit)
}

// trimRecordsOf deletes the oldest surplus records of a namespace. The caller must have called reserveDeletions.
func (s *Store) trimRecordsOf(ctx context.Context, namespace string, maxRecords, limit int) (int, error) {
	var uid string
	var completed int64
	err := s.db.QueryRowContext(ctx, newestSurplus, namespace, max(maxRecords, 0)).Scan(&completed, &uid)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil
	}
	if err != nil {
		return 0, s.failed(err)
	}
	n, err := s.deleteRecords(ctx, limit, true, isSurplus, namespace, completed, uid)
	if n > 0 && n == limit {
		s.trimmed = namespace
	}
	return n, err
}

// DeleteRecords deletes selected records in one transaction.
func (s *Store) DeleteRecords(ctx context.Context, sel store.RecordSelector, limit int) (int, error) {
	end, err := s.reserveDeletions(ctx)
	if err != nil {
		return 0, err
	}
	defer end()
	where, args := selected(sel.Conditions, "")
	return s.deleteRecords(ctx, limit, false, where, args...)
}

// recordOfTurn finds the newest record of a Turn by its namespace, its name and, unless it is empty, its UID. An index
// has this order.
const recordOfTurn = `SELECT uid FROM turn_record WHERE namespace = ?1 AND turn = ?2 AND (?3 = '' OR uid = ?3)
	ORDER BY completed DESC, uid DESC LIMIT 1`

// AddFeedback adds feedback in one transaction. The record is found before, because the only writer should not search.
func (s *Store) AddFeedback(ctx context.Context, namespace, turn, uid string, f turnrecord.Feedback) error {
	found, err := s.queryStrings(ctx, recordOfTurn, namespace, turn, uid)
	switch {
	case err != nil:
		return s.failed(err)
	case len(found) == 0:
		return store.ErrNoRecord
	}
	recordUID := found[0]
	var refused error
	err = s.change(ctx, func(t *tx) error {
		refused = nil
		var text string
		//nolint:noctx // because the transaction carries the context
		err := t.QueryRow(`SELECT feedback FROM turn_record WHERE uid = ?`, recordUID).Scan(&text)
		if errors.Is(err, sql.ErrNoRows) {
			refused = store.ErrNoRecord
			return nil
		}
		if err != nil {
			return err
		}
		var all []turnrecord.Feedback
		if err := json.Unmarshal([]byte(text), &all); err != nil {
			return err
		}
		if f.Comment != "" {
			var retired int
			//nolint:noctx // because the transaction carries the context
			err := t.QueryRow(`SELECT count(*) FROM head WHERE uid = ? AND retired_at IS NOT NULL`, recordUID).Scan(&retired)
			if err != nil {
				return err
			}
			if retired > 0 {
				refused = store.ErrTurnDeleted
				return nil
			}
		}
		if all, refused = turnrecord.WithFeedback(all, f); refused != nil {
			return nil //nolint:nilerr // because refused feedback is not a failure of the transaction
		}
		data, err := json.Marshal(all)
		if err != nil {
			return err
		}
		_, err = t.exec(`UPDATE turn_record SET feedback = ? WHERE uid = ?`, string(data), recordUID)
		return err
	})
	return errors.Join(err, refused)
}

// dropComments deletes the comments on deleted Turns.
func (t *tx) dropComments(uids []string) error {
	for _, uid := range uids {
		var text string
		//nolint:noctx // because the transaction carries the context
		err := t.QueryRow(`SELECT feedback FROM turn_record WHERE uid = ?`, uid).Scan(&text)
		if errors.Is(err, sql.ErrNoRows) {
			continue
		}
		if err != nil {
			return err
		}
		var all []turnrecord.Feedback
		if err := json.Unmarshal([]byte(text), &all); err != nil {
			return fmt.Errorf("failed to read the feedback on %q: %w", uid, err)
		}
		kept, had := turnrecord.WithoutComments(all)
		if !had {
			continue
		}
		data, err := json.Marshal(kept)
		if err != nil {
			return err
		}
		if _, err := t.exec(`UPDATE turn_record SET feedback = ? WHERE uid = ?`, string(data), uid); err != nil {
			return err
		}
	}
	return nil
}

// Records returns a page of records, as Store.Records does.
func (r *Reader) Records(ctx context.Context, q store.RecordQuery) (page []turnrecord.Record, more bool, err error) {
	return r.store.Records(ctx, q)
}
