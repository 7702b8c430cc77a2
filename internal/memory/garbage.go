package memory

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
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
	// gcPercentInterval is the time between two checks.
	gcPercentInterval = 2 * time.Second
)

// LimitGarbage limits the garbage of this process until ctx ends: to half of the live memory, and with more than
// 128 MiB of live memory to 64 MiB or a fifth of it, whichever is more. It does nothing if the environment sets GOGC.
func LimitGarbage(ctx context.Context) {
	if os.Getenv("GOGC") != "" {
		return
	}
	percent := 0
	wait.UntilWithContext(ctx, func(context.Context) {
		if next := gcPercent(liveBytes()); next != percent { // a change stops all goroutines for a moment
			percent = next
			debug.SetGCPercent(percent)
		}
	}, gcPercentInterval)
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
