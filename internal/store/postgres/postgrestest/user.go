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

// owner is whose processes the servers are: nil stands for the user of this process. As root it is postgres, which Debian's
// package makes, else nobody.
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
	return nil // initdb then says what is wrong
})

func unprivileged() *syscall.SysProcAttr { return &syscall.SysProcAttr{Credential: owner()} }

// giveAway makes a folder that of the servers' user.
func giveAway(dir string) error {
	c := owner()
	if c == nil {
		return nil
	}
	if err := os.Chown(dir, int(c.Uid), int(c.Gid)); err != nil {
		return fmt.Errorf("failed to give a folder to PostgreSQL's user: %w", err)
	}
	return nil
}
