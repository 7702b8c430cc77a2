package terminal

import "os"

// InputDiscarder returns a function for Environment.DiscardInput, for the terminal of a file.
func InputDiscarder(f *os.File) func() {
	return func() { _ = discardTyped(f) } // if it fails, an early reply counts, as it does in any other program
}
