package sqlite

import (
	"bytes"
	"context"
	"fmt"
	"os"
)

const (
	// headerBytes is the part of a file's head that stays the same while it is open: what it is, its page size, its mode.
	headerBytes = 20
	// maxProbe bounds what is written to see whether there is room.
	maxProbe = 64 << 20
)

// Check fails if the journal cannot be written now, or if what is written would be lost: its file was deleted, replaced or
// damaged under this process, the disk is full or read-only, another process holds it. It writes one page, so that a success
// means something, and after an append that failed for want of room as much as that would have. Damage within the file is
// found by who meets it, and told here from then on. It waits for a lock as long as ctx and 10 s allow.
func (s *Store) Check(ctx context.Context) error {
	if s.isClosed() {
		return ErrClosed
	}
	if found := s.damage.Load(); found != nil {
		return fmt.Errorf("failed to use the journal %q: %w", s.path, *found)
	}
	if err := s.checkFile(); err != nil {
		return err
	}
	// A number in the file's header that nothing else uses. SQLite writes the page also if it stays the same.
	_, err := s.db.ExecContext(ctx, `PRAGMA user_version = 0`)
	if missing := s.missing.Load(); err == nil && missing > 0 {
		err = s.probe(ctx, missing)
	}
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("failed to write to the journal %q in time: the disk is slow, or another process holds the file: %w", s.path, context.Cause(ctx))
	}
	return fmt.Errorf("failed to write to the journal %q: %w", s.path, s.failed(err))
}

// checkFile fails if the file is not what was opened.
func (s *Store) checkFile() error {
	now, err := os.Stat(s.path)
	if err != nil {
		return fmt.Errorf("failed to find the file of the journal, which this process still holds: stop the manager before you move it: %w", err)
	}
	opened, err := s.file.Stat()
	if err != nil {
		return fmt.Errorf("failed to look at the journal %q: %w", s.path, err)
	}
	if !os.SameFile(opened, now) {
		return fmt.Errorf("another file has taken the place of the journal %q: restart the manager to work with it", s.path)
	}
	// Read from what is open anyway: opening the file once more and closing it would end SQLite's locks on it.
	var header [headerBytes]byte
	if _, err := s.file.ReadAt(header[:], 0); err != nil {
		return fmt.Errorf("failed to read the head of the journal %q; %s: %w", s.path, damaged, err)
	}
	if !bytes.Equal(header[:], s.header[:]) {
		return fmt.Errorf("the head of the journal %q was overwritten; %s", s.path, damaged)
	}
	return nil
}

// probe writes some bytes and deletes them.
func (s *Store) probe(ctx context.Context, n int64) error {
	if _, err := s.db.ExecContext(ctx, `INSERT OR REPLACE INTO probe (id, data) VALUES (1, zeroblob(?))`, min(n, maxProbe)); err != nil {
		return err
	}
	if _, err := s.db.ExecContext(ctx, `DELETE FROM probe`); err != nil {
		return err
	}
	s.missing.CompareAndSwap(n, 0)
	return nil
}
