//go:build !windows

package terminal

import "os"

// EnableEscapes makes the terminal of a file execute escape sequences. It returns false if the terminal cannot do that.
func EnableEscapes(*os.File) bool { return true } // the variable TERM names terminals that cannot
