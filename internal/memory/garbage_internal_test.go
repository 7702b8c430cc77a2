package memory

import (
	"context"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"testing/synctest"
	"time"
)

func TestGCPercent(t *testing.T) {
	for live, want := range map[uint64]int{
		0: 50, 10 * mebibyte: 50, 128 * mebibyte: 50, 129 * mebibyte: 49, 256 * mebibyte: 25, 320 * mebibyte: 20, 8192 * mebibyte: 20,
	} {
		if got := gcPercent(live); got != want {
			t.Errorf("with %d MiB of live memory, GOGC is %d, want %d", live/mebibyte, got, want)
		}
	}
}

// TestLimitGarbage checks the value of GOGC in this process while it holds much memory, and after that.
func TestLimitGarbage(t *testing.T) {
	t.Setenv("GOGC", "")
	before := debug.SetGCPercent(100)
	defer debug.SetGCPercent(before)
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			LimitGarbage(ctx)
		}()
		check := func(want uint64, when string) {
			t.Helper()
			runtime.GC()
			time.Sleep(2 * gcPercentInterval)
			synctest.Wait()
			gogc := []metrics.Sample{{Name: "/gc/gogc:percent"}}
			if metrics.Read(gogc); gogc[0].Value.Uint64() != want {
				t.Errorf("%s, GOGC is %d, want %d", when, gogc[0].Value.Uint64(), want)
			}
		}
		check(50, "at the start")
		held := make([]byte, 400*mebibyte)
		check(20, "with 400 MiB of live memory")
		runtime.KeepAlive(held)
		check(50, "after that memory was freed")
		cancel()
		<-done
	})
}

// TestGarbageIsLeftToTheUser checks that GOGC in the environment counts.
func TestGarbageIsLeftToTheUser(t *testing.T) {
	t.Setenv("GOGC", "80")
	before := debug.SetGCPercent(80)
	defer debug.SetGCPercent(before)
	LimitGarbage(t.Context()) // it returns
	if got := debug.SetGCPercent(80); got != 80 {
		t.Errorf("GOGC is %d, want the 80 of the environment", got)
	}
}
