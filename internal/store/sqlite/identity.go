package sqlite

import (
	"context"

	"github.com/capstan-dev/capstan/internal/store"
)

// Identity returns the ID that the file was given when its schema was made. A file does not know that it was restored from a
// copy, so the incarnation is always "1".
func (s *Store) Identity(ctx context.Context) (store.Identity, error) {
	i := store.Identity{Incarnation: "1"}
	if err := s.db.QueryRowContext(ctx, `SELECT id FROM store`).Scan(&i.ID); err != nil {
		return store.Identity{}, s.failed(err)
	}
	return i, nil
}
