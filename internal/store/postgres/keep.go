package postgres

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// retireAtOnce is the maximum number of journals that one statement retires.
	retireAtOnce = 1000
	// entriesAtOnce is the maximum number of entries that one statement deletes from a large journal.
	entriesAtOnce = 1000
	// artifactsAtOnce is the maximum number of artifacts that one statement deletes from a large journal.
	artifactsAtOnce = 200
)

// lockHeads locks the heads of journals in a fixed order, so that two transactions with the same journals cannot
// deadlock.
const lockHeads = `SELECT FROM capstan_turn WHERE turn_uid = ANY($1) ORDER BY turn_uid FOR UPDATE`

// Retire marks journals as retired at the given time. It handles groups of up to 1000 journals, in transactions of at
// most 10 s each. The last transaction of a group marks its journals. If the process is killed earlier, the journals
// are not marked, and a later Retire completes the work.
func (s *Store) Retire(ctx context.Context, at time.Time, uids ...string) error {
	for chunk := range slices.Chunk(uids, retireAtOnce) {
		if err := s.closeHolds(ctx, chunk); err != nil {
			return err
		}
		if err := s.endTasks(ctx, chunk, at); err != nil {
			return err
		}
		// This is one transaction. The first statement waits for transactions that are storing memories of a Session.
		// Later transactions find that the journal is retired, and store no memories.
		err := s.retryOnce(ctx, appendTimeout, func(ctx context.Context) error {
			return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
				batch := &pgx.Batch{}
				batch.Queue(lockHeads, chunk)
				batch.Queue(`UPDATE capstan_turn SET retired_at = $2,
					expired_until = CASE WHEN forgotten OR expired_until >= $2 THEN expired_until END
					WHERE turn_uid = ANY($1) AND retired_at IS NULL`, chunk, at)
				forget(batch, chunk)
				if err := tx.SendBatch(ctx, batch).Close(); err != nil {
					return err
				}
				return dropComments(ctx, tx, chunk)
			})
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Forget deletes what was learned from deleted Turns and Sessions. It handles groups of up to 1000 UIDs, each in a
// transaction of at most 10 s.
func (s *Store) Forget(ctx context.Context, at time.Time, uids ...string) error {
	for chunk := range slices.Chunk(uids, retireAtOnce) {
		err := s.retryOnce(ctx, appendTimeout, func(ctx context.Context) error {
			batch := &pgx.Batch{} // this is one transaction
			batch.Queue(lockHeads, chunk)
			batch.Queue(`UPDATE capstan_turn SET forgotten = true,
				expired_until = CASE WHEN retired_at IS NOT NULL OR expired_until >= $2 THEN expired_until END
				WHERE turn_uid = ANY($1) AND NOT forgotten`, chunk, at)
			forget(batch, chunk)
			return s.pool.SendBatch(ctx, batch).Close()
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Revive undoes Retire and Forget for journals that have their first entry, which Purge deletes first. It handles
// groups of up to 1000 UIDs.
func (s *Store) Revive(ctx context.Context, uids ...string) error {
	for chunk := range slices.Chunk(uids, retireAtOnce) {
		err := s.retryOnce(ctx, appendTimeout, func(ctx context.Context) error {
			// This is one transaction. The first statement waits for a purge in progress, so that the second one sees
			// what the purge has deleted.
			batch := &pgx.Batch{}
			batch.Queue(lockHeads, chunk)
			batch.Queue(`UPDATE capstan_turn AS t SET retired_at = NULL, forgotten = false
				WHERE turn_uid = ANY($1) AND retired_at IS NOT NULL
					AND EXISTS (SELECT FROM capstan_journal AS j WHERE j.turn_uid = t.turn_uid AND j.seq = 1)`, chunk)
			return s.pool.SendBatch(ctx, batch).Close()
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// head identifies a journal to purge, with its last sequence number.
type head struct {
	uid     string
	seq     int64
	retired time.Time
}

// Purge deletes up to limit journals of the store's namespaces that were retired at or before the given time, oldest
// first. It deletes several small journals in one transaction, and a large one in parts. A step takes at most a minute.
//
// The tables may have many retired journals of other installations. So a call continues where the previous one ended,
// unless that one found fewer journals than its limit.
func (s *Store) Purge(ctx context.Context, before time.Time, limit int) (purged int, err error) {
	var from head
	if last := s.purged.Swap(nil); last != nil {
		from = *last
	}
	heads, err := read(ctx, s, func(row pgx.CollectableRow) (h head, err error) {
		return h, row.Scan(&h.uid, &h.seq, &h.retired)
	}, `SELECT turn_uid, seq, retired_at FROM capstan_turn
		WHERE retired_at <= $1 AND (retired_at, turn_uid) > ($4, $5)
			AND (cardinality($3::text[]) = 0 OR namespace = '' OR namespace = ANY($3))
		ORDER BY retired_at, turn_uid LIMIT $2`, before, max(limit, 0), s.namespaces, from.retired, from.uid)
	if err != nil {
		return 0, err
	}
	for purged < len(heads) {
		n, err := s.purge(ctx, heads[purged:])
		if err != nil {
			return purged, err
		}
		purged += n
	}
	if n := len(heads); n > 0 && n == limit {
		s.purged.Store(&heads[n-1])
	}
	return purged, nil
}

// purge deletes the first journal and as many of the next ones as fit into one transaction. It returns their
// number.
func (s *Store) purge(ctx context.Context, heads []head) (int, error) {
	uids, entries := []string{heads[0].uid}, heads[0].seq
	if err := s.trim(ctx, heads[0]); err != nil {
		return 0, err
	}
	for _, h := range heads[1:] {
		if entries += h.seq; entries > entriesAtOnce {
			break
		}
		uids = append(uids, h.uid)
	}
	// This is one transaction. The first statement waits for an append in progress and blocks later appends, so that
	// the other statements see all entries. It locks the rows in a fixed order, so that two purges cannot deadlock. It
	// leaves journals that were revived in the meantime; these still have heads when the other statements begin.
	err := s.retryOnce(ctx, readTimeout, func(ctx context.Context) error {
		batch := &pgx.Batch{}
		batch.Queue(`WITH gone AS (SELECT turn_uid FROM capstan_turn WHERE turn_uid = ANY($1) AND retired_at IS NOT NULL
				ORDER BY turn_uid FOR UPDATE)
			DELETE FROM capstan_turn USING gone WHERE capstan_turn.turn_uid = gone.turn_uid`, uids)
		const headless = ` WHERE turn_uid = ANY(ARRAY(SELECT uid FROM unnest($1::text[]) AS uid
			WHERE NOT EXISTS (SELECT FROM capstan_turn AS t WHERE t.turn_uid = uid)))`
		batch.Queue(`DELETE FROM capstan_journal`+headless, uids)
		batch.Queue(`DELETE FROM capstan_artifact`+headless, uids)
		return s.pool.SendBatch(ctx, batch).Close()
	})
	return len(uids), err
}

// ofRetired begins a statement that deletes rows of a journal: those of no journal if it was revived in the meantime.
// It locks the head, so that the journal is not revived before the statement has ended.
const ofRetired = `WITH head AS (SELECT turn_uid FROM capstan_turn WHERE turn_uid = $1 AND retired_at IS NOT NULL FOR UPDATE) `

// trim deletes the artifacts and most entries of a large journal. It keeps the head, so that a later purge finds the
// rest.
func (s *Store) trim(ctx context.Context, h head) error {
	for upTo := int64(entriesAtOnce); upTo < h.seq; upTo += entriesAtOnce {
		err := s.retryOnce(ctx, readTimeout, func(ctx context.Context) error {
			_, err := s.pool.Exec(ctx, ofRetired+`DELETE FROM capstan_journal AS j USING head
				WHERE j.turn_uid = head.turn_uid AND j.seq <= $2`, h.uid, upTo)
			return err
		})
		if err != nil {
			return err
		}
	}
	for more := h.seq > entriesAtOnce; more; {
		err := s.retryOnce(ctx, readTimeout, func(ctx context.Context) error {
			tag, err := s.pool.Exec(ctx, ofRetired+`DELETE FROM capstan_artifact AS a USING head
				WHERE a.turn_uid = head.turn_uid AND a.sha256 IN (
					SELECT sha256 FROM capstan_artifact WHERE turn_uid = $1 ORDER BY sha256 LIMIT $2)`, h.uid, artifactsAtOnce)
			more = tag.RowsAffected() == artifactsAtOnce
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}
