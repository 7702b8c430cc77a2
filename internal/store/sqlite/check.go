package sqlite

import (
	"context"
	"fmt"
	"os"
)

// Check fails if the journal cannot be written now, or if what is written would be lost: its file was deleted or replaced
// under this process, the disk is full or read-only, another process holds it. It writes one page, so that a success
// means something, and waits for a lock as long as ctx and 10 s allow.
func (s *Store) Check(ctx context.Context) error {
	select {
	case <-s.closing:
		return ErrClosed
	default:
	}
	now, err := os.Stat(s.path)
	if err != nil {
		return fmt.Errorf("failed to find the file of the journal, which this process still holds: stop the manager before you move it: %w", err)
	}
	if !os.SameFile(s.file, now) {
		return fmt.Errorf("another file has taken the place of the journal %q: restart the manager to work with it", s.path)
	}
	// A number in the file's header that nothing else uses. SQLite writes the page also if it stays the same.
	if _, err := s.db.ExecContext(ctx, `PRAGMA user_version = 0`); err != nil {
		return fmt.Errorf("failed to write to the journal %q: %w", s.path, err)
	}
	return nil
}
