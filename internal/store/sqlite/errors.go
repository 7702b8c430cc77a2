package sqlite

import (
	"errors"
	"fmt"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// advice says what helps against an error of SQLite, by its primary result code.
var advice = map[int]string{
	sqlite3.SQLITE_BUSY: "another process holds the journal: end it, be it a second manager or a shell that has the file open",
	sqlite3.SQLITE_READONLY: "the file, its folder or the volume is read-only: mount the volume for writing and let the user of this " +
		"process own both, then restart the manager if it does not go on by itself",
	sqlite3.SQLITE_IOERR:   "the disk did not do what it was told: look at the volume and its limits; the work goes on by itself once it does",
	sqlite3.SQLITE_CORRUPT: damaged,
	sqlite3.SQLITE_NOTADB:  damaged,
	sqlite3.SQLITE_FULL:    "the disk is full: make room or enlarge the volume; the work goes on by itself then",
	sqlite3.SQLITE_CANTOPEN: "the file cannot be opened: its folder must be there, and the user of this process must be allowed to read " +
		"and write both",
}

const damaged = "the file is damaged: stop the manager, keep a copy of the file and of those beside it that end in -wal and -shm, " +
	"and put a backup in its place or what `sqlite3 FILE .recover` can save"

// code is the primary result code of an error of SQLite, or 0.
func code(err error) int {
	if of, ok := errors.AsType[*sqlite.Error](err); ok {
		return of.Code() & 0xff
	}
	return 0
}

// isDamage reports whether an error means that the file is damaged.
func isDamage(err error) bool {
	c := code(err)
	return c == sqlite3.SQLITE_CORRUPT || c == sqlite3.SQLITE_NOTADB || errors.Is(err, errDamaged)
}

// explain adds to an error what to do about it.
func explain(err error) error {
	help := advice[code(err)]
	if isDamage(err) {
		help = damaged
	}
	if err == nil || help == "" {
		return err
	}
	return fmt.Errorf("%w; %s", err, help)
}

// failed is the error of a call: ErrClosed after Close, else explained. Damage is remembered, and Check tells of it from then
// on, for what was read before the damage was met is no sign of health.
func (s *Store) failed(err error) error {
	switch {
	case err == nil:
		return nil
	case s.isClosed():
		return ErrClosed
	}
	damage := isDamage(err)
	err = explain(err)
	if damage {
		s.damage.CompareAndSwap(nil, &err)
	}
	return err
}
