package postgres

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	// retireAtOnce bounds the journals that one statement retires.
	retireAtOnce = 1000
	// entriesAtOnce bounds the entries that one statement deletes, and artifactsAtOnce the artifacts.
	entriesAtOnce   = 1000
	artifactsAtOnce = 200
)

// Retire marks journals as retired at a time. A statement for each 1000 takes at most 10 s.
func (s *Store) Retire(ctx context.Context, at time.Time, uids ...string) error {
	for some := range slices.Chunk(uids, retireAtOnce) {
		err := s.again(ctx, appendTimeout, func(ctx context.Context) error {
			_, err := s.pool.Exec(ctx, `UPDATE capstan_turn SET retired_at = $2 WHERE turn_uid = ANY($1) AND retired_at IS NULL`, some, at)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// head is a journal that is to be purged, with its last place.
type head struct {
	uid string
	seq int64
}

// Purge deletes at most so many journals that were retired at or before a time, oldest first: small ones several in a
// transaction, a large one piece by piece. A step takes at most a minute.
func (s *Store) Purge(ctx context.Context, before time.Time, most int) (purged int, err error) {
	heads, err := read(ctx, s, func(row pgx.CollectableRow) (h head, err error) {
		return h, row.Scan(&h.uid, &h.seq)
	}, `SELECT turn_uid, seq FROM capstan_turn WHERE retired_at <= $1 ORDER BY retired_at, turn_uid LIMIT $2`, before, max(most, 0))
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
	return purged, nil
}

// purge deletes the first of some journals and as many behind it as suit one transaction, and returns how many.
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
	// One transaction. The first statement waits for an append under way and keeps later ones out, so that the others see all
	// there is. It takes the rows in an order, so that two purges do not wait for each other.
	err := s.again(ctx, readTimeout, func(ctx context.Context) error {
		batch := &pgx.Batch{}
		batch.Queue(`WITH gone AS (SELECT turn_uid FROM capstan_turn WHERE turn_uid = ANY($1) ORDER BY turn_uid FOR UPDATE)
			DELETE FROM capstan_turn USING gone WHERE capstan_turn.turn_uid = gone.turn_uid`, uids)
		batch.Queue(`DELETE FROM capstan_journal WHERE turn_uid = ANY($1)`, uids)
		batch.Queue(`DELETE FROM capstan_artifact WHERE turn_uid = ANY($1)`, uids)
		return s.pool.SendBatch(ctx, batch).Close()
	})
	return len(uids), err
}

// trim deletes the bulk of a large journal, as it is now. Its head stays, so that the rest of it is found again.
func (s *Store) trim(ctx context.Context, h head) error {
	for upTo := int64(entriesAtOnce); upTo < h.seq; upTo += entriesAtOnce {
		err := s.again(ctx, readTimeout, func(ctx context.Context) error {
			_, err := s.pool.Exec(ctx, `DELETE FROM capstan_journal WHERE turn_uid = $1 AND seq <= $2`, h.uid, upTo)
			return err
		})
		if err != nil {
			return err
		}
	}
	for more := h.seq > entriesAtOnce; more; {
		err := s.again(ctx, readTimeout, func(ctx context.Context) error {
			tag, err := s.pool.Exec(ctx, `DELETE FROM capstan_artifact WHERE turn_uid = $1 AND sha256 IN (
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
