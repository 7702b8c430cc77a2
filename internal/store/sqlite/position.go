package sqlite

import (
	"context"
	"crypto/rand"

	"github.com/capstan-dev/capstan/internal/store"
)

const selectState = `SELECT id, incarnation, position FROM store`

// State returns the ID that the migration gave to the file, its incarnation and its position. Unsure is always false,
// because nothing in a file shows that the file was restored from a copy.
func (s *Store) State(ctx context.Context) (st store.State, err error) {
	if err := s.checks.QueryRowContext(ctx, selectState).Scan(&st.ID, &st.Incarnation, &st.Position); err != nil {
		return store.State{}, s.failed(err)
	}
	return st, nil
}

// Mark gives the file a new position if there may be appends since the last mark. If the position of the file is less
// than least, Mark also gives it a new incarnation.
func (s *Store) Mark(ctx context.Context, least int64) (st store.State, err error) {
	var wrote bool
	err = s.change(ctx, func(t *tx) error {
		st, wrote = store.State{}, false
		row := t.QueryRow(selectState) //nolint:noctx // because the transaction carries the context
		if err := row.Scan(&st.ID, &st.Incarnation, &st.Position); err != nil {
			return err
		}
		if st.Lost = st.Position < least; st.Lost {
			st.Incarnation = rand.Text()
		}
		if wrote = st.Lost || s.unmarked.Load(); !wrote {
			return nil
		}
		st.Position = max(st.Position, least) + 1
		_, err := t.exec(`UPDATE store SET position = ?, incarnation = ?`, st.Position, st.Incarnation)
		if err == nil {
			s.unmarked.Store(false) // the writer runs this transaction, so no append runs at the same time
		}
		return err
	})
	if err != nil {
		if wrote {
			s.unmarked.Store(true)
		}
		return store.State{}, err
	}
	return st, nil
}
