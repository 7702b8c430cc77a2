package exit

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// Watch returns a context that ends when the program receives Ctrl-C or SIGTERM, or when its terminal is closed
// (SIGHUP). A second signal has its default effect, so it kills a program that has not ended. The caller must call
// release: from then on, a first signal has its default effect again, too. nohup makes programs ignore SIGHUP, which
// Watch does not change.
func Watch(ctx context.Context) (watched context.Context, release func()) {
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		signals = append(signals, syscall.SIGHUP)
	}
	watched, stop := signal.NotifyContext(ctx, signals...)
	context.AfterFunc(watched, stop)
	return watched, stop
}
