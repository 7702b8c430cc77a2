package sqlite

import (
	"context"
	"slices"
	"time"
)

const (
	// retireAtOnce is the maximum number of journals that one transaction retires.
	retireAtOnce = 500
	// purgePages limits the number of pages that one transaction deletes, because appends wait for the transaction.
	purgePages = 512
	// pageBytes is the approximate size of a page.
	pageBytes = 4096
)

// Retire marks journals as retired at the given time, in transactions of at most 500 journals.
func (s *Store) Retire(ctx context.Context, at time.Time, uids ...string) error {
	for chunk := range slices.Chunk(uids, retireAtOnce) {
		err := s.change(ctx, func(t *tx) error {
			for _, uid := range chunk {
				n, err := t.exec(`UPDATE head SET retired_at = ?1,
					expired_until = CASE WHEN forgotten OR expired_until >= ?1 THEN expired_until ELSE 0 END
					WHERE uid = ?2 AND retired_at IS NULL`, at.UnixMicro(), uid)
				if err != nil {
					return err
				}
				t.added.Retired += n
			}
			err := t.closeHolds(chunk)
			if err == nil {
				err = t.endTasks(chunk, at)
			}
			if err == nil {
				err = t.forget(chunk)
			}
			if err == nil {
				err = t.dropComments(chunk)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Forget deletes what was learned from deleted Turns and Sessions.
func (s *Store) Forget(ctx context.Context, at time.Time, uids ...string) error {
	for chunk := range slices.Chunk(uids, retireAtOnce) {
		err := s.change(ctx, func(t *tx) error {
			for _, uid := range chunk {
				if _, err := t.exec(`UPDATE head SET forgotten = 1,
					expired_until = CASE WHEN retired_at IS NOT NULL OR expired_until >= ?1 THEN expired_until ELSE 0 END
					WHERE uid = ?2 AND forgotten = 0`, at.UnixMicro(), uid); err != nil {
					return err
				}
			}
			return t.forget(chunk)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Revive undoes Retire and Forget for journals that have their first entry, which Purge deletes first.
func (s *Store) Revive(ctx context.Context, uids ...string) error {
	for chunk := range slices.Chunk(uids, retireAtOnce) {
		err := s.change(ctx, func(t *tx) error {
			for _, uid := range chunk {
				n, err := t.exec(`UPDATE head SET retired_at = NULL, forgotten = 0 WHERE uid = ? AND retired_at IS NOT NULL
					AND EXISTS (SELECT 1 FROM journal WHERE journal.uid = head.uid AND seq = 1)`, uid)
				if err != nil {
					return err
				}
				t.added.Retired -= n
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Purge deletes up to limit journals that were retired at or before the given time, oldest first, in many small
// transactions. The file does not shrink; later entries reuse the space.
func (s *Store) Purge(ctx context.Context, before time.Time, limit int) (purged int, err error) {
	uids, err := s.queryStrings(ctx, `SELECT uid FROM head WHERE retired_at <= ? ORDER BY retired_at, uid LIMIT ?`,
		before.UnixMicro(), max(limit, 0))
	if err != nil {
		return 0, s.failed(err)
	}
	for purged < len(uids) {
		var n int
		err := s.change(ctx, func(t *tx) (err error) {
			n, err = t.purge(uids[purged:])
			return err
		})
		if err != nil {
			return purged, err
		}
		purged += n
	}
	return purged, nil
}

// purge deletes at most about purgePages pages of journals, and returns for how many journals nothing is left to do. It
// deletes the head of a journal last, so that a later purge finds the rest.
func (t *tx) purge(uids []string) (purged int, err error) {
	pagesLeft := int64(purgePages)
	for _, uid := range uids {
		var retired bool
		const isRetired = `SELECT EXISTS (SELECT 1 FROM head WHERE uid = ? AND retired_at IS NOT NULL)`
		if err := t.QueryRow(isRetired, uid).Scan(&retired); err != nil { //nolint:noctx // because the transaction carries the context
			return purged, err
		}
		if !retired { // it was revived in the meantime
			purged++
			continue
		}
		entries, err := t.prune(ofEntries, uid, &pagesLeft)
		t.added.Entries -= entries
		if err != nil || pagesLeft <= 0 {
			return purged, err
		}
		artifacts, err := t.prune(ofArtifacts, uid, &pagesLeft)
		t.added.Artifacts -= artifacts
		if err != nil || pagesLeft <= 0 {
			return purged, err
		}
		heads, err := t.exec(`DELETE FROM head WHERE uid = ?`, uid)
		if err != nil {
			return purged, err
		}
		t.added.Journals -= heads
		t.added.Retired -= heads
		purged++
		if pagesLeft--; pagesLeft <= 0 {
			return purged, nil
		}
	}
	return purged, nil
}

// part holds the statements for one table. find returns the key and the size of each row of a journal, and remove
// deletes the rows of a journal up to a key.
type part struct{ find, remove string }

var (
	ofEntries = part{
		find:   `SELECT seq, octet_length(payload) FROM journal WHERE uid = ? ORDER BY seq`,
		remove: `DELETE FROM journal WHERE uid = ? AND seq <= ?`,
	}
	ofArtifacts = part{
		find:   `SELECT sha256, octet_length(data) FROM artifact WHERE uid = ? ORDER BY sha256`,
		remove: `DELETE FROM artifact WHERE uid = ? AND sha256 <= ?`,
	}
)

// prune deletes rows of a journal while pagesLeft is positive, and subtracts the pages of each row from pagesLeft. If
// pagesLeft is still positive afterwards, prune has deleted all rows.
func (t *tx) prune(p part, uid string, pagesLeft *int64) (deleted int64, err error) {
	last, err := t.lastKey(p, uid, pagesLeft)
	if err != nil || last == nil {
		return 0, err
	}
	return t.exec(p.remove, uid, last)
}

// lastKey returns the key of the last row that prune may delete, or nil if there is no row. It subtracts the pages of
// the rows from pagesLeft.
func (t *tx) lastKey(p part, uid string, pagesLeft *int64) (last any, err error) {
	rows, err := t.Query(p.find, uid) //nolint:noctx // because the transaction carries the context
	if err != nil {
		return nil, err
	}
	defer rows.Close() //nolint:errcheck // because rows.Err below reports every error
	for *pagesLeft > 0 && rows.Next() {
		var bytes int64
		if err := rows.Scan(&last, &bytes); err != nil {
			return nil, err
		}
		*pagesLeft -= 1 + bytes/pageBytes
	}
	return last, rows.Err()
}
