package webservertest

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// child is the environment variable that makes this process the child of WithoutInotify.
const child = "CAPSTAN_TEST_WITHOUT_INOTIFY"

// WithoutInotify runs a function in a child process that gets no inotify instance, as on a node where other processes
// use all of them. The child runs only the test that calls WithoutInotify. The test is skipped if this process may not
// create a user namespace, which has a limit of its own.
func WithoutInotify(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	if os.Getenv(child) != "" {
		if err := os.WriteFile("/proc/sys/user/max_inotify_instances", []byte("0"), 0); err != nil {
			t.Skip(err)
		}
		if _, err := unix.InotifyInit1(unix.IN_CLOEXEC); !errors.Is(err, unix.EMFILE) {
			t.Fatalf("an inotify instance was created (error %v), want none", err)
		}
		f(t)
		return
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v") //nolint:gosec // because it is this program
	cmd.Env = append(os.Environ(), child+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	switch {
	case cmd.ProcessState == nil:
		t.Skip(err)
	case err != nil:
		t.Fatalf("without inotify: %v\n%s", err, out)
	case strings.Contains(string(out), "--- SKIP"):
		t.Skipf("%s", out)
	}
}
