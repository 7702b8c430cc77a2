package memory

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// The garbage collector starts when the garbage has reached a percentage of the live heap and stacks. Each collection
// marks the whole live heap, however little garbage there is. Go's default of 100 % doubles the memory of thousands of
// Turns that wait for models, and collects often while there is little live memory.
const (
	// minGCPercent limits the CPU time of the collector, with much live memory.
	minGCPercent = 20
	// maxGCPercent limits the garbage until the next check if the live memory grows quickly.
	maxGCPercent = 300
	// minGarbage and maxGarbage bound the garbage between these two percentages, in bytes.
	minGarbage, maxGarbage = 16 * mebibyte, 64 * mebibyte
	// garbageShare is the part of the soft limit that may be garbage: an eighth.
	garbageShare = 8
	// gcPercentStep is the step in which the percentage changes, so that a small change of the live memory has no
	// effect.
	gcPercentStep = 10
	// gcPercentInterval is the time between two checks.
	gcPercentInterval = time.Second
)

// LimitGarbage limits the garbage of this process until ctx ends. The limit is an eighth of the soft limit of Go's
// runtime, kept between 16 and 64 MiB, and then between a fifth of the live memory and three times the live memory.
// LimitGarbage does nothing if the environment sets GOGC.
func (l Limit) LimitGarbage(ctx context.Context) {
	if os.Getenv("GOGC") != "" {
		return
	}
	percent := 0
	wait.UntilWithContext(ctx, func(context.Context) {
		if next := l.gcPercent(liveBytes()); next != percent { // a change stops all goroutines for a moment
			percent = next
			debug.SetGCPercent(percent)
		}
	}, gcPercentInterval)
}

// gcPercent returns the value of GOGC for a process with this amount of live memory, in bytes.
func (l Limit) gcPercent(live uint64) int {
	garbage := uint64(min(max(l.Go/garbageShare, minGarbage), maxGarbage))
	percent := int(min(max(garbage*100/max(live, 1), minGCPercent), maxGCPercent))
	return percent - percent%gcPercentStep
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
