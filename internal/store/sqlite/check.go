package sqlite

import (
	"bytes"
	"context"
	"fmt"
	"os"
)

const (
	// headerBytes is the length of the part of the file header that does not change while the file is open: the
	// file type, the page size and the mode.
	headerBytes = 20
	// maxProbe limits the number of bytes that are written to check for free space.
	maxProbe = 64 << 20
)

// Check returns an error if the journal cannot be written now, or if a write would be lost. The causes are: the file
// was deleted, replaced or damaged, the disk is full or read-only, or another process has locked the file.
//
// Check writes one page to prove that writes work. If the last transaction of appends failed because the disk was full
// or reported an error, Check also writes as many bytes as that transaction, but at most 64 MiB. Check does not search
// the file for damage, but reports damage that another call has found. It waits for a lock until ctx ends, but at most
// 10 s.
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
	// user_version is a number in the file's header that nothing else uses. SQLite writes the page even if the
	// value does not change.
	_, err := s.checks.ExecContext(ctx, `PRAGMA user_version = 0`)
	if missing := s.missing.Load(); err == nil && missing > 0 {
		err = s.probe(ctx, missing)
	}
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("failed to write to the journal %q in time: the disk is slow, or another process has locked the file: %w", s.path,
			context.Cause(ctx))
	}
	return fmt.Errorf("failed to write to the journal %q: %w", s.path, s.failed(err))
}

// checkFile returns an error if the file is not the file that was opened, or if its header has changed.
func (s *Store) checkFile() error {
	if err := s.checkPath(); err != nil {
		return err
	}
	// Read through the open file. Opening and closing the file again would release SQLite's locks on it.
	var header [headerBytes]byte
	if _, err := s.file.ReadAt(header[:], 0); err != nil {
		return fmt.Errorf("failed to read the header of the journal %q; %s: %w", s.path, damaged, err)
	}
	if !bytes.Equal(header[:], s.header[:]) {
		return fmt.Errorf("the header of the journal %q was overwritten; %s", s.path, damaged)
	}
	return nil
}

// checkPath returns an error if the file at the path is not the file that was opened.
func (s *Store) checkPath() error {
	current, err := os.Stat(s.path)
	if err != nil {
		return fmt.Errorf("failed to find the file of the journal, which this process still holds: stop it before you move the file: %w",
			err)
	}
	opened, err := s.file.Stat()
	if err != nil {
		return fmt.Errorf("failed to check the file of the journal %q: %w", s.path, err)
	}
	if !os.SameFile(opened, current) {
		return fmt.Errorf("the file of the journal %q was replaced: restart this process to use the new file", s.path)
	}
	return nil
}

// probe writes up to maxProbe bytes and deletes them.
func (s *Store) probe(ctx context.Context, n int64) error {
	_, err := s.checks.ExecContext(ctx, `INSERT OR REPLACE INTO probe (id, data) VALUES (1, zeroblob(?))`, min(n, maxProbe))
	if err != nil {
		return err
	}
	if _, err := s.checks.ExecContext(ctx, `DELETE FROM probe`); err != nil {
		return err
	}
	s.missing.CompareAndSwap(n, 0)
	return nil
}
