package memory

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// The garbage collector starts when the garbage has reached a percentage of the live heap and stacks. Go's default of
// 100 % doubles the memory of thousands of Turns that wait for models.
const (
	// maxGCPercent costs little CPU time, because a manager mostly waits for models, too.
	maxGCPercent = 50
	// minGCPercent limits the CPU time: a collection marks the whole live heap, however little garbage there is.
	minGCPercent = 20
	// usualGarbage is the garbage, in bytes, that a process may have between these two percentages.
	usualGarbage = 64 * mebibyte
	// gcPercentStep is the smallest change that is made, because each change stops all goroutines for a moment.
	gcPercentStep = 5
	// gcPercentInterval is the time between two checks.
	gcPercentInterval = 2 * time.Second
)

// LimitGarbage limits the garbage of this process until ctx ends: to half of the live memory, and with more than
// 128 MiB of live memory to 64 MiB or a fifth of it, whichever is more. It does nothing if the environment sets GOGC.
func LimitGarbage(ctx context.Context) {
	if os.Getenv("GOGC") != "" {
		return
	}
	percent := maxGCPercent
	debug.SetGCPercent(percent)
	ticker := time.NewTicker(gcPercentInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if next := gcPercent(liveBytes()); next <= percent-gcPercentStep || next >= percent+gcPercentStep {
			percent = next
			debug.SetGCPercent(percent)
		}
	}
}

// gcPercent returns the value of GOGC for a process with this amount of live memory, in bytes.
func gcPercent(live uint64) int {
	return int(min(max(usualGarbage*100/max(live, 1), minGCPercent), maxGCPercent))
}

// liveBytes returns the bytes of the heap and of stacks that were live at the last collection. The collector computes
// its goal from these numbers: see https://tip.golang.org/doc/gc-guide#GOGC.
func liveBytes() uint64 {
	samples := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/scan/stack:bytes"}}
	metrics.Read(samples)
	var live uint64
	for _, s := range samples {
		if s.Value.Kind() == metrics.KindUint64 {
			live += s.Value.Uint64()
		}
	}
	return live
}
