package terminal

import (
	"os"

	"golang.org/x/sys/windows"
)

// EnableEscapes makes the terminal of a file execute escape sequences, which a console of Windows does only on request.
// It returns false if the terminal cannot do that.
func EnableEscapes(f *os.File) bool {
	console := windows.Handle(f.Fd())
	var mode uint32
	if windows.GetConsoleMode(console, &mode) != nil {
		return true // it is not a console
	}
	return windows.SetConsoleMode(console, mode|windows.ENABLE_VIRTUAL_TERMINAL_PROCESSING) == nil
}
