package sqlite

import (
	"context"
	"path/filepath"

	"github.com/capstan-dev/capstan/internal/store"
)

// selectUse adds up the bytes of each namespace.
const selectUse = `SELECT namespace, sum(bytes) FROM (
		SELECT namespace, bytes FROM head WHERE namespace <> ''
		UNION ALL SELECT namespace, ` + store.MemoryBytes + ` FROM memory
	) GROUP BY namespace`

// Use returns how much space is used. Bytes counts the file's pages in use, and the bytes by which the write-ahead log
// exceeds its usual size. Free is the free space of the volume plus the free pages of the file.
func (s *Store) Use(ctx context.Context) (u store.Use, err error) {
	var spare int64
	err = s.db.QueryRowContext(ctx, `SELECT (page_count - freelist_count) * page_size, freelist_count * page_size
		FROM pragma_page_count(), pragma_freelist_count(), pragma_page_size()`).Scan(&u.Bytes, &spare)
	if err != nil {
		return store.Use{}, s.failed(err)
	}
	u.Bytes += max(s.logBytes()-usualLog, 0)
	if u.Free, err = available(filepath.Dir(s.path)); err != nil {
		u.Free = -1 // unknown; the quotas that do not depend on the free space still apply
	} else {
		u.Free += spare
	}
	rows, err := s.db.QueryContext(ctx, selectUse)
	if err != nil {
		return store.Use{}, s.failed(err)
	}
	defer rows.Close() //nolint:errcheck // because rows.Err below reports every error
	u.Namespaces = map[string]int64{}
	for rows.Next() {
		var namespace string
		var bytes int64
		if err := rows.Scan(&namespace, &bytes); err != nil {
			return store.Use{}, err
		}
		u.Namespaces[namespace] = bytes
	}
	return u, s.failed(rows.Err())
}
