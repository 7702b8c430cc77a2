package terminal

import (
	"os"

	"golang.org/x/sys/windows"
)

// discardTyped drops what was typed at a terminal and is not read yet.
func discardTyped(f *os.File) error { return windows.FlushConsoleInputBuffer(windows.Handle(f.Fd())) }
