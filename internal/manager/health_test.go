package manager

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
)

func TestReadinessFollowsStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var broken atomic.Bool
		var checks atomic.Int64
		var lines []string
		h := &health{
			part: "the store of the journal", impact: "Turns wait for it",
			log: funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{}),
			check: func(context.Context) error {
				checks.Add(1)
				if broken.Load() {
					return errors.New("no space left on device")
				}
				return nil
			},
		}
		if err := h.ready(nil); err == nil || !strings.Contains(err.Error(), "has not been checked yet") {
			t.Errorf("ready before the first check = %v, want an error that says so", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- h.Start(ctx) }()
		for _, step := range []struct {
			broken bool
			want   string
			lines  int
		}{{false, "", 0}, {true, "no space left on device", 1}, {true, "no space left on device", 1}, {false, "", 2}} {
			broken.Store(step.broken)
			time.Sleep(checkInterval) // on the fake clock
			synctest.Wait()
			for range 100 { // frequent probes cause no checks
				err := h.ready(nil)
				if (err != nil) != step.broken || err != nil && !strings.Contains(err.Error(), step.want) {
					t.Fatalf("ready = %v, want an error: %t", err, step.broken)
				}
			}
			if len(lines) != step.lines {
				t.Errorf("logged %q, want one line for each change", lines)
			}
		}
		if n := checks.Load(); n > 5 {
			t.Errorf("%d checks in 20 s, want one every %s", n, checkInterval)
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Start = %v after its context has ended, want nil", err)
		}
	})
}

func TestChecksAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &health{
			part: "the store of the journal", impact: "Turns wait for it",
			log: funcr.New(func(string, string) {}, funcr.Options{}),
			check: func(ctx context.Context) error {
				<-ctx.Done()
				return ctx.Err()
			},
		}
		begin := time.Now()
		h.checkOnce(t.Context())
		if err := h.ready(nil); !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) != checkTimeout {
			t.Errorf("ready = %v after %s, want the hanging check to time out after %s", err, time.Since(begin), checkTimeout)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		h.last.Store(&finding{})
		h.checkOnce(ended)
		if err := h.ready(nil); err != nil {
			t.Errorf("ready = %v, want the earlier result: the last check was cancelled", err)
		}
	})
}

// TestHangingCheckIsReported checks that a check that ignores its context, as on a disk that hangs, makes the manager
// unready, that only one such check waits, and that its result counts when it returns.
func TestHangingCheckIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hangs := make(chan struct{})
		checks := 0
		h := &health{
			part: "the store of the journal", impact: "Turns wait for it",
			log: funcr.New(func(string, string) {}, funcr.Options{}),
			check: func(context.Context) error {
				checks++
				<-hangs
				return nil
			},
		}
		h.last.Store(&finding{})
		for range 2 {
			begin := time.Now()
			h.checkOnce(t.Context())
			if err := h.ready(nil); err == nil || !strings.Contains(err.Error(), "did not return within 10s") {
				t.Errorf("ready = %v, want an error that says that the check hangs", err)
			}
			if took := time.Since(begin); took != checkTimeout+checkGrace {
				t.Errorf("checkOnce took %s, want %s", took, checkTimeout+checkGrace)
			}
		}
		close(hangs)
		h.checkOnce(t.Context())
		if err := h.ready(nil); err != nil || checks != 1 {
			t.Errorf("ready = %v after %d checks, want the result of the only check, which has returned", err, checks)
		}
	})
}

// TestReachNeedsLastingFailure checks that a store counts as lost only after it has failed for lostAfter without a
// success.
func TestReachNeedsLastingFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var failure error
		h := &health{part: "the store", log: funcr.New(func(string, string) {}, funcr.Options{}), check: func(context.Context) error {
			return failure
		}}
		check := func(why string, wantReachable, wantKnown bool) {
			t.Helper()
			if reachable, known := h.reach(); reachable != wantReachable || known != wantKnown {
				t.Errorf("%s: reach() = %t, %t, want %t, %t", why, reachable, known, wantReachable, wantKnown)
			}
		}
		check("before the first check", false, false)
		h.checkOnce(t.Context())
		check("a success", true, true)
		failure = errors.New("connection refused")
		h.checkOnce(t.Context())
		time.Sleep(lostAfter - time.Second) // on the fake clock
		h.checkOnce(t.Context())
		check("a short failure", false, false)
		time.Sleep(time.Second)
		check("a lasting failure", false, true)
		failure = nil
		h.checkOnce(t.Context())
		check("a success after a failure", true, true)
		failure = errors.New("connection refused")
		h.checkOnce(t.Context())
		check("a new failure counts from its own start", false, false)
	})
}
