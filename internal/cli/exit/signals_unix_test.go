//go:build unix

package exit_test

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"
	"time"

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

// TestSecondSignal checks that a second signal kills a program that does not end after the first one.
func TestSecondSignal(t *testing.T) {
	const variable = "CAPSTAN_TEST_SECOND_SIGNAL"
	if os.Getenv(variable) != "" { // the program that receives the signals
		watched, release := exit.Watch(context.Background())
		defer release()
		_, _ = os.Stdout.WriteString("watching\n")
		<-watched.Done()
		_, _ = os.Stdout.WriteString("stopping\n")
		select {}
	}
	program := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestSecondSignal$")
	program.Env = append(os.Environ(), variable+"=1")
	out, err := program.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() && lines.Text() != "watching" {
	}
	if err := program.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	for lines.Scan() && lines.Text() != "stopping" {
	}
	ended := make(chan error, 1)
	go func() { ended <- program.Wait() }()
	// The first of these signals may still be too early. They come one after another: while Go ends a program by a
	// signal, each further signal needs a part of a small stack, and hundreds of them would overflow it.
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for {
		_ = program.Process.Signal(syscall.SIGINT) // fails after the end
		select {
		case err := <-ended:
			if status, ok := program.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGINT {
				t.Errorf("the program ended with %s (%v), want the signal", program.ProcessState, err)
			}
			return
		case <-again.C:
		}
	}
}
