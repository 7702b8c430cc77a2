package postgres

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/task"
	"github.com/capstan-dev/capstan/internal/runtime/turnrecord"
	"github.com/capstan-dev/capstan/internal/store"
)

// recordColumns are the columns that a record fills when it is added.
const recordColumns = `uid, namespace, turn, agent, session, requester, reason, completed, details`

// text returns a text for a column of the type text, which cannot hold U+0000. A Turn can have such a requester if it
// was created with an older definition of Turns, without the policy for requesters.
func text(s string) string { return strings.ReplaceAll(s, "\u0000", "\ufffd") }

// recordArgs returns the values of recordColumns.
func recordArgs(r *turnrecord.Record) ([]any, error) {
	details, err := r.MarshalDetails()
	if err != nil {
		return nil, err
	}
	return []any{r.UID, r.Namespace, r.Turn, r.Agent, r.Session, text(r.Requester), r.Reason, r.Completed, details}, nil
}

// alsoDoing extends the statement of an append by another statement, under a name of its own. The other statement
// should select from head, so that it has an effect only if the entries are written.
func alsoDoing(query, name, statement string) string {
	const next = ", kept AS (" // the beginning of the insert: see insert
	return strings.Replace(query, next, ", "+name+" AS ("+statement+")"+next, 1)
}

// withRecord extends the statement of an append. If one of the entries ends the Turn and has its record, the statement
// also writes the record, so the record is written if and only if the entries are written.
func withRecord(query string, args []any, entries []journal.Entry) (string, []any, error) {
	for _, e := range entries {
		if e.TurnRecord == nil {
			continue
		}
		values, err := recordArgs(e.TurnRecord)
		if err != nil {
			return "", nil, err
		}
		places := make([]string, len(values))
		for i := range values {
			places[i] = fmt.Sprintf("$%d", len(args)+i+1)
		}
		places[7], places[8] = places[7]+"::timestamptz", places[8]+"::bytea"
		query = alsoDoing(query, "recorded", "INSERT INTO capstan_record ("+recordColumns+") SELECT "+strings.Join(places, ", ")+
			" FROM head ON CONFLICT DO NOTHING")
		return query, append(args, values...), nil
	}
	return query, args, nil
}

// withTurnNumber extends the statement of an append. If one of the entries sets the number in the record of a Turn that
// has a record, the statement also changes the record. No other call changes the details of a record, so they may be
// read before, from a server that takes writes.
func (s *Store) withTurnNumber(ctx context.Context, query string, args []any, entries []journal.Entry) (string, []any, error) {
	for _, e := range entries {
		n := e.TurnNumber
		if n == nil {
			continue
		}
		var details []byte
		err := s.pool.QueryRow(ctx, onPrimary+`SELECT details FROM capstan_record WHERE uid = $1`, n.TurnUID).Scan(&details)
		if errors.Is(err, pgx.ErrNoRows) {
			return query, args, nil
		}
		if err != nil {
			return "", nil, err
		}
		if details, err = turnrecord.WithTurnNumber(details, n.Number); err != nil {
			return "", nil, err
		}
		query = alsoDoing(query, "numbered", fmt.Sprintf(
			`UPDATE capstan_record SET details = $%d::bytea FROM head WHERE uid = $%d`, len(args)+1, len(args)+2))
		return query, append(args, details, n.TurnUID), nil
	}
	return query, args, nil
}

// withTasks extends the statement of an append, so that it also adds the tasks in the entries, if there are any.
func withTasks(query string, args []any, entries []journal.Entry) (string, []any) {
	var keys, kinds, turns []string
	var first *task.Task
	for _, e := range entries {
		for i := range e.Tasks {
			k := &e.Tasks[i]
			first = cmp.Or(first, k)
			keys, kinds, turns = append(keys, k.Key()), append(kinds, string(k.Kind)), append(turns, k.Turn)
		}
	}
	if first == nil {
		return query, args
	}
	n := len(args)
	query = alsoDoing(query, "followed", fmt.Sprintf(`INSERT INTO capstan_task (uid, kind, turn, namespace, agent, session, requester,
			created_at, due_at)
		SELECT k.*, $%d::text, $%d::text, $%d::text, $%d::text, $%d::bigint, $%d::bigint
		FROM head, unnest($%d::text[], $%d::text[], $%d::text[]) AS k
		ON CONFLICT DO NOTHING`, n+4, n+5, n+6, n+7, n+8, n+8, n+1, n+2, n+3))
	return query, append(args, keys, kinds, turns, first.Namespace, first.Agent, first.Session, text(first.Requester),
		first.Created.UnixMicro())
}

// AddRecords adds records in one transaction.
func (s *Store) AddRecords(ctx context.Context, records ...turnrecord.Record) (added int, err error) {
	batch := func() (*pgx.Batch, error) {
		b := &pgx.Batch{}
		for i := range records {
			values, err := recordArgs(&records[i])
			if err != nil {
				return nil, err
			}
			b.Queue(`INSERT INTO capstan_record (`+recordColumns+`) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT DO NOTHING`,
				values...)
		}
		return b, nil
	}
	if len(records) == 0 {
		return 0, nil
	}
	err = s.retryOnce(ctx, appendTimeout, func(ctx context.Context) error {
		b, err := batch()
		if err != nil {
			return err
		}
		added = 0
		results := s.pool.SendBatch(ctx, b)
		for range records {
			tag, err := results.Exec()
			if err != nil {
				return errors.Join(err, results.Close())
			}
			added += int(tag.RowsAffected())
		}
		return results.Close()
	})
	if err != nil {
		return 0, err
	}
	return added, nil
}

// Unrecorded returns the UIDs without a record. It takes at most a minute.
func (s *Store) Unrecorded(ctx context.Context, uids []string) ([]string, error) {
	return read(ctx, s, pgx.RowTo[string], `SELECT u FROM unnest($1::text[]) AS u
		WHERE NOT EXISTS (SELECT FROM capstan_record WHERE uid = u)`, uids)
}

// where collects the conditions of a WHERE clause with their arguments.
type where struct {
	text string
	args []any
}

// add adds a condition, in which each %d stands for the number of one argument.
func (w *where) add(condition string, args ...any) {
	numbers := make([]any, len(args))
	for i := range args {
		numbers[i] = len(w.args) + i + 1
	}
	w.text += " AND " + fmt.Sprintf(condition, numbers...)
	w.args = append(w.args, args...)
}

// whereSelected returns the conditions of a selector.
func whereSelected(s store.RecordSelector) *where {
	w := &where{text: "true"}
	for column, value := range s.Conditions {
		w.add(column+" = $%d", value)
	}
	return w
}

// newestFirst is the order of records in pages.
const newestFirst = `ORDER BY completed DESC, uid COLLATE "C" DESC`

// pageOfRecords selects records until the page has enough records or bytes, as page selects entries. %[1]s are the
// conditions; the numbers of the other arguments follow.
const pageOfRecords = `SELECT ` + recordColumns + `, feedback, evaluations, expenses, total FROM (
    SELECT *, sum(size) OVER (` + newestFirst + `) AS total FROM (
        SELECT *, octet_length(details) + octet_length(feedback) + octet_length(evaluations) + octet_length(expenses) AS size
        FROM capstan_record WHERE %[1]s ` + newestFirst + ` LIMIT $%[2]d
    ) AS selected
) AS p WHERE total - size < $%[3]d ` + newestFirst

// Records returns a page of records. It takes at most a minute.
func (s *Store) Records(ctx context.Context, q store.RecordQuery) (page []turnrecord.Record, more bool, err error) {
	w := whereSelected(q.RecordSelector)
	if !q.Since.IsZero() {
		w.add("completed >= $%d", q.Since)
	}
	if !q.Until.IsZero() {
		w.add("completed < $%d", q.Until)
	}
	if q.Commented {
		w.add(`position('"comment":"'::bytea IN feedback) > 0`) // as in the index capstan_record_commented
	}
	if q.After.UID != "" {
		w.add(`(completed, uid COLLATE "C") < ($%d, $%d)`, q.After.Completed, q.After.UID)
	}
	var total int64 // the size of the page up to its last record
	page, err = read(ctx, s, func(row pgx.CollectableRow) (r turnrecord.Record, err error) {
		var details, feedback, evaluations, expenses []byte
		if err := row.Scan(&r.UID, &r.Namespace, &r.Turn, &r.Agent, &r.Session, &r.Requester, &r.Reason, &r.Completed, &details,
			&feedback, &evaluations, &expenses, &total); err != nil {
			return r, err
		}
		r.Completed = r.Completed.UTC()
		if err := errors.Join(json.Unmarshal(details, &r.Details), json.Unmarshal(feedback, &r.Feedback),
			json.Unmarshal(evaluations, &r.Evaluations), json.Unmarshal(expenses, &r.Expenses)); err != nil {
			return r, fmt.Errorf("failed to read the record of turn %q: %w", r.UID, err)
		}
		return r, nil
	}, fmt.Sprintf(pageOfRecords, w.text, len(w.args)+1, len(w.args)+2), append(w.args, q.MaxPage(), store.PageRecordBytes)...)
	return page, len(page) == q.MaxPage() || len(page) > 0 && total >= store.PageRecordBytes, err
}

// deleteRecords deletes up to limit records that match conditions, oldest first. If note is true, it notes the times of
// the records for DeletedUntil.
func (s *Store) deleteRecords(ctx context.Context, limit int, note bool, w *where) (deleted int, err error) {
	text := `WITH gone AS (DELETE FROM capstan_record WHERE uid IN (SELECT uid FROM capstan_record WHERE ` + w.text +
		fmt.Sprintf(` ORDER BY completed, uid COLLATE "C" LIMIT %d) RETURNING namespace, completed)`, max(limit, 0))
	if note {
		text += `, noted AS (INSERT INTO capstan_record_deleted AS d SELECT namespace, max(completed) FROM gone GROUP BY namespace
			ON CONFLICT (namespace) DO UPDATE SET until = greatest(d.until, excluded.until))`
	}
	err = s.retryOnce(ctx, readTimeout, func(ctx context.Context) error {
		return s.pool.QueryRow(ctx, text+` SELECT count(*)::bigint FROM gone`, w.args...).Scan(&deleted)
	})
	if err != nil {
		return 0, err
	}
	return deleted, nil
}

// ofNamespaces is a condition for the rows of the store's namespaces, which are the argument number %d.
const ofNamespaces = `(cardinality($%[1]d::text[]) = 0 OR namespace = ANY($%[1]d))`

// PurgeRecords deletes old records of the store's namespaces. It takes at most a minute.
func (s *Store) PurgeRecords(ctx context.Context, before time.Time, limit int) (int, error) {
	w := &where{text: "true"}
	w.add("completed < $%d", before)
	w.add(ofNamespaces, s.namespaces)
	return s.deleteRecords(ctx, limit, true, w)
}

// DeletedUntil reads the noted time of a namespace, or the latest noted time of all namespaces. It takes at most a
// minute.
func (s *Store) DeletedUntil(ctx context.Context, namespace string) (time.Time, error) {
	latest, err := read(ctx, s, pgx.RowTo[time.Time],
		`SELECT until FROM capstan_record_deleted WHERE namespace = $1 OR $1 = '' ORDER BY until DESC LIMIT 1`, namespace)
	if err != nil || len(latest) == 0 {
		return time.Time{}, err
	}
	return latest[0].UTC(), nil
}

// surplus is a condition for the records of a namespace, except for its newest records, whose number is the second
// argument. The condition names the newest surplus record, so that the server reads the index only from the oldest
// record on, and not all surplus records.
const surplus = `namespace = $%[1]d AND (completed, uid COLLATE "C") <= (
	SELECT completed, uid COLLATE "C" FROM capstan_record WHERE namespace = $%[1]d ` + newestFirst + ` LIMIT 1 OFFSET $%[2]d)`

// TrimRecords deletes the oldest records of the namespace that has the most records of the store's namespaces. After a
// full batch, the next call continues with the same namespace: to count all records for each batch would take longer
// than the deletion. TrimRecords takes at most three minutes.
func (s *Store) TrimRecords(ctx context.Context, maxRecords, limit int) (int, error) {
	if namespace := s.trimmed.Swap(nil); namespace != nil {
		if n, err := s.trimRecordsOf(ctx, *namespace, maxRecords, limit); n > 0 || err != nil {
			return n, err
		}
	}
	type row struct {
		Namespace string
		Records   int
	}
	found, err := read(ctx, s, pgx.RowToStructByPos[row],
		`SELECT namespace, count(*)::bigint FROM capstan_record WHERE `+fmt.Sprintf(ofNamespaces, 1)+`
			GROUP BY namespace ORDER BY 2 DESC LIMIT 1`, s.namespaces)
	if err != nil || len(found) == 0 || found[0].Records <= maxRecords {
		return 0, err
	}
	return s.trimRecordsOf(ctx, found[0].Namespace, maxRecords, limit)
}

// trimRecordsOf deletes the oldest surplus records of a namespace. The statement itself excludes the newest maxRecords
// records, so that it keeps them even if it is repeated because its response was lost.
func (s *Store) trimRecordsOf(ctx context.Context, namespace string, maxRecords, limit int) (int, error) {
	w := &where{text: "true"}
	w.add(surplus, namespace, max(maxRecords, 0))
	n, err := s.deleteRecords(ctx, limit, true, w)
	if n > 0 && n == limit {
		s.trimmed.Store(&namespace)
	}
	return n, err
}

// DeleteRecords deletes selected records. It takes at most a minute.
func (s *Store) DeleteRecords(ctx context.Context, sel store.RecordSelector, limit int) (int, error) {
	return s.deleteRecords(ctx, limit, false, whereSelected(sel))
}

// AddFeedback adds feedback in one transaction, which locks the record. It takes at most 10 s.
func (s *Store) AddFeedback(ctx context.Context, namespace, turn, uid string, f turnrecord.Feedback) error {
	return s.retryOnce(ctx, appendTimeout, func(ctx context.Context) error {
		return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
			var recordUID string
			var text []byte
			err := tx.QueryRow(ctx, `SELECT uid, feedback FROM capstan_record WHERE namespace = $1 AND turn = $2 AND ($3 = '' OR uid = $3)
				ORDER BY completed DESC, uid COLLATE "C" DESC LIMIT 1 FOR UPDATE`, namespace, turn, uid).Scan(&recordUID, &text)
			if errors.Is(err, pgx.ErrNoRows) {
				return store.ErrNoRecord
			}
			if err != nil {
				return err
			}
			var all []turnrecord.Feedback
			if err := json.Unmarshal(text, &all); err != nil {
				return err
			}
			if f.Comment != "" { // a concurrent Retire waits for the lock of the record, and then deletes the comment
				var retired bool
				err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM capstan_turn WHERE turn_uid = $1 AND retired_at IS NOT NULL)`,
					recordUID).
					Scan(&retired)
				if err != nil {
					return err
				}
				if retired {
					return store.ErrTurnDeleted
				}
			}
			if all, err = turnrecord.WithFeedback(all, f); err != nil {
				return err
			}
			data, err := json.Marshal(all)
			if err != nil {
				return err
			}
			_, err = tx.Exec(ctx, `UPDATE capstan_record SET feedback = $2 WHERE uid = $1`, recordUID, data)
			return err
		})
	})
}

// dropComments deletes the comments on deleted Turns. It locks their records until the end of the transaction, so that
// no comment is added before the journals are marked as retired.
func dropComments(ctx context.Context, tx pgx.Tx, uids []string) error {
	rows, err := tx.Query(ctx, `SELECT uid, feedback FROM capstan_record WHERE uid = ANY($1) ORDER BY uid FOR UPDATE`, uids)
	if err != nil {
		return err
	}
	type feedback struct {
		UID  string
		Data []byte
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[feedback])
	if err != nil {
		return err
	}
	var changed []string
	var data [][]byte
	for _, f := range found {
		var all []turnrecord.Feedback
		if err := json.Unmarshal(f.Data, &all); err != nil {
			return fmt.Errorf("failed to read the feedback on %q: %w", f.UID, err)
		}
		kept, had := turnrecord.WithoutComments(all)
		if !had {
			continue
		}
		text, err := json.Marshal(kept)
		if err != nil {
			return err
		}
		changed, data = append(changed, f.UID), append(data, text)
	}
	// One statement for all records: with one round trip for each, the transaction could take too long each time.
	_, err = tx.Exec(ctx, `UPDATE capstan_record AS r SET feedback = n.feedback
		FROM unnest($1::text[], $2::bytea[]) AS n (uid, feedback) WHERE r.uid = n.uid`, notNull(changed), notNull(data))
	return err
}
