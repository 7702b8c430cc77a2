//go:build unix

package exit_test

import (
	"os"
	"os/signal"
	"syscall"
	"testing"

	"github.com/capstan-dev/capstan/internal/cli/exit"
)

func TestWatch(t *testing.T) {
	all := []syscall.Signal{syscall.SIGINT, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // the tests may run under nohup
		all = append(all, syscall.SIGHUP)
	}
	for _, s := range all {
		watched, release := exit.Watch(t.Context())
		if err := syscall.Kill(os.Getpid(), s); err != nil {
			t.Fatal(err)
		}
		<-watched.Done()
		release()
	}
}

// TestWatchUnderNohup checks that a program that was started to ignore the end of its terminal still ignores it.
func TestWatchUnderNohup(t *testing.T) {
	if !signal.Ignored(syscall.SIGHUP) {
		signal.Ignore(syscall.SIGHUP)
		defer signal.Reset(syscall.SIGHUP)
	}
	watched, release := exit.Watch(t.Context())
	defer release()
	for _, s := range []syscall.Signal{syscall.SIGHUP, syscall.SIGTERM} { // signals arrive in this order
		if watched.Err() != nil {
			t.Fatalf("the context has ended before %s", s)
		}
		if err := syscall.Kill(os.Getpid(), s); err != nil {
			t.Fatal(err)
		}
	}
	<-watched.Done()
	if !signal.Ignored(syscall.SIGHUP) {
		t.Error("SIGHUP is no longer ignored")
	}
}
