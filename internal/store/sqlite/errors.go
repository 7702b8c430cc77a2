package sqlite

import (
	"errors"
	"fmt"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// advice maps SQLite's primary result code of an error to a text that says what to do. The manager and the command line
// show it.
var advice = map[int]string{
	sqlite3.SQLITE_BUSY: "another process has locked the journal: stop that process; it may be a shell, or a second process of Capstan",
	sqlite3.SQLITE_READONLY: "the file, its directory or the volume is read-only: mount the volume for writing and let the user of this " +
		"process own both, then restart this process if it does not continue by itself",
	sqlite3.SQLITE_IOERR:   "the disk reported an error: check the volume and its limits, such as its free space and quotas",
	sqlite3.SQLITE_CORRUPT: damaged,
	sqlite3.SQLITE_NOTADB:  damaged,
	sqlite3.SQLITE_FULL:    "the disk is full: free space or enlarge the volume",
	sqlite3.SQLITE_CANTOPEN: "the file cannot be opened: its directory must exist, and the user of this process must have permission to " +
		"read and write both; or this process has no free file descriptor: raise its limit of open files (ulimit -n)",
}

// damaged says to move the write-ahead log, too, because SQLite would apply it to the new file and so damage that file.
const damaged = "the file is damaged: stop the process that uses it, move the file and the files next to it that end in -wal and -shm " +
	"to another directory, and only then put a backup, or the output of `sqlite3 FILE .recover` for the moved file, in its place"

// code returns the primary result code of a SQLite error, or 0.
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

// explain adds the matching advice to an error, if there is any.
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

// failed returns the error of a call: ErrClosed after Close, or else the explained error. It stores the first error
// that means damage. Check reports this error from then on, because other calls may not read the damaged part.
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
