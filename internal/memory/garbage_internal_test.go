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
	for _, tc := range []struct {
		limit int64
		live  uint64
		want  int
	}{
		{512, 0, 300},
		{512, 10, 300},
		{512, 64, 100},
		{512, 128, 50},
		{512, 256, 20},
		{512, 8192, 20},
		{128, 5, 300},
		{128, 10, 160},
		{128, 32, 50},
		{128, 80, 20},
		{8192, 21, 300},
		{8192, 64, 100},
		{8192, 300, 20},
		{256, 20, 160},
		{256, 64, 50},
	} {
		l := Limit{Go: tc.limit * mebibyte}
		if got := l.gcPercent(tc.live * mebibyte); got != tc.want {
			t.Errorf("with a limit of %d MiB and %d MiB of live memory, GOGC is %d, want %d", tc.limit, tc.live, got, tc.want)
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
			Limit{Go: 512 * mebibyte}.LimitGarbage(ctx)
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
		check(300, "at the start")
		held := make([]byte, 400*mebibyte)
		check(20, "with 400 MiB of live memory")
		runtime.KeepAlive(held)
		check(300, "after that memory was freed")
		cancel()
		<-done
	})
}

// TestGarbageIsLeftToTheUser checks that GOGC in the environment counts.
func TestGarbageIsLeftToTheUser(t *testing.T) {
	t.Setenv("GOGC", "80")
	before := debug.SetGCPercent(80)
	defer debug.SetGCPercent(before)
	Limit{}.LimitGarbage(t.Context()) // it returns
	if got := debug.SetGCPercent(80); got != 80 {
		t.Errorf("GOGC is %d, want the 80 of the environment", got)
	}
}
