//go:build unix

package postgrestest

import (
	"fmt"
	"os"
	osuser "os/user"
	"strconv"
	"sync"
	"syscall"
)

// owner returns the user of the server processes, or nil for the user of this process. If this process runs as root,
// owner returns the user postgres, which Debian's package creates, or else the user nobody.
var owner = sync.OnceValue(func() *syscall.Credential {
	if os.Geteuid() != 0 {
		return nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := osuser.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.ParseUint(u.Uid, 10, 32)
		if err != nil {
			continue
		}
		gid, err := strconv.ParseUint(u.Gid, 10, 32)
		if err != nil {
			continue
		}
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	}
	return nil // initdb then reports the problem
})

func unprivileged() *syscall.SysProcAttr { return &syscall.SysProcAttr{Credential: owner()} }

// chownToOwner makes the user of the server processes the owner of a directory.
func chownToOwner(dir string) error {
	c := owner()
	if c == nil {
		return nil
	}
	if err := os.Chown(dir, int(c.Uid), int(c.Gid)); err != nil {
		return fmt.Errorf("failed to change the owner of a directory to PostgreSQL's user: %w", err)
	}
	return nil
}
