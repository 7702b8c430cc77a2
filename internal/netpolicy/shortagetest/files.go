//go:build unix

// Package shortagetest makes this process run short of file descriptors, for tests.
package shortagetest

import (
	"errors"
	"os"
	"sync"
	"syscall"
	"testing"
)

// NoFiles lets this process get no further file descriptor until restore is called, or the test ends. Those that it has
// continue to work. The test must not run in parallel with others.
func NoFiles(tb testing.TB) (restore func()) {
	tb.Helper()
	in, out, err := os.Pipe() // starts the poller of the runtime, which would end a process without file descriptors
	if err != nil {
		tb.Fatal(err)
	}
	_, _ = in.Close(), out.Close() // they were not used
	var before syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &before); err != nil {
		tb.Fatal(err)
	}
	none := before
	none.Cur = 0
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &none); err != nil {
		tb.Fatal(err)
	}
	restore = sync.OnceFunc(func() {
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &before); err != nil {
			tb.Error(err)
		}
	})
	tb.Cleanup(restore)
	if f, err := os.Open(os.DevNull); !errors.Is(err, syscall.EMFILE) {
		_ = f.Close()
		tb.Fatalf("a file was opened (error %v), want no file descriptor for it", err)
	}
	return restore
}
