//go:build (!unix && !windows) || aix || solaris

package sqlite

import "os"

// hasLocks is false because flock locks nothing.
const hasLocks = false

// flock locks nothing, because the locks of these systems differ too much. Even without a lock, the journal lets only
// one of two concurrent runs of a Turn continue.
func flock(*os.File) (taken bool, err error) { return true, nil }
