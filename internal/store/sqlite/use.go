package sqlite

import (
	"context"
	"path/filepath"

	"github.com/capstan-dev/capstan/internal/store"
)

// Use returns how much is used. Bytes are those of the file's pages that hold something, and Free is what its volume has left, with the
// other pages.
func (s *Store) Use(ctx context.Context) (u store.Use, err error) {
	var spare int64
	err = s.db.QueryRowContext(ctx, `SELECT (page_count - freelist_count) * page_size, freelist_count * page_size
		FROM pragma_page_count(), pragma_freelist_count(), pragma_page_size()`).Scan(&u.Bytes, &spare)
	if err != nil {
		return store.Use{}, s.failed(err)
	}
	if u.Free, err = available(filepath.Dir(s.path)); err != nil {
		u.Free = -1 // the quotas that do not depend on it hold all the same
	} else {
		u.Free += spare
	}
	rows, err := s.db.QueryContext(ctx, `SELECT namespace, sum(bytes) FROM head WHERE namespace <> '' GROUP BY namespace`)
	if err != nil {
		return store.Use{}, s.failed(err)
	}
	defer rows.Close() //nolint:errcheck // because rows.Err below reports what matters
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
