package terminal

import (
	"os"

	"golang.org/x/sys/unix"
)

// readQueue is FREAD of <sys/fcntl.h>: the queue of the input.
const readQueue = 1

// discardTyped drops what was typed at a terminal and is not read yet.
func discardTyped(f *os.File) error {
	return unix.IoctlSetPointerInt(int(f.Fd()), unix.TIOCFLUSH, readQueue)
}
