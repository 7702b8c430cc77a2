package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/capstan-dev/capstan/internal/store"
)

// Use returns how much space the store's namespaces use. Bytes is the sum over their journals and memories, and over
// the journals that name no namespace. Free is negative, because the server does not report its free space.
func (s *Store) Use(ctx context.Context) (store.Use, error) {
	type row struct {
		namespace string
		bytes     int64
	}
	rows, err := read(ctx, s, func(of pgx.CollectableRow) (r row, err error) {
		return r, of.Scan(&r.namespace, &r.bytes)
	}, `SELECT namespace, sum(bytes)::bigint FROM (
			SELECT namespace, bytes FROM capstan_turn
			UNION ALL SELECT namespace, `+store.MemoryBytes+` FROM capstan_memory
		) AS used WHERE cardinality($1::text[]) = 0 OR namespace = '' OR namespace = ANY($1) GROUP BY namespace`, s.namespaces)
	if err != nil {
		return store.Use{}, err
	}
	u := store.Use{Free: -1, Namespaces: map[string]int64{}}
	for _, r := range rows {
		u.Bytes += r.bytes
		if r.namespace != "" {
			u.Namespaces[r.namespace] = r.bytes
		}
	}
	return u, nil
}
