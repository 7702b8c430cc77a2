// Package memorytest measures memory in tests.
package memorytest

import "runtime"

// Heap returns the size of the heap without garbage, in bytes. A test that compares two sizes must not run in parallel
// with others.
func Heap() int64 {
	runtime.GC()
	runtime.GC() // pools may keep objects during the first collection
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc) //nolint:gosec // because no heap has a size that an int64 cannot hold
}
