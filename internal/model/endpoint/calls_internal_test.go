package endpoint

import (
	"runtime"
	"strings"
	"testing"
	"unsafe"
	"weak"
)

// TestALabelDoesNotKeepItsEvent checks that the memory of an event is free once the ID of its call has been read. An
// ID may be part of an event of 2 MiB, a reply may have 128 calls, and the reply reserves memory for neither.
func TestALabelDoesNotKeepItsEvent(t *testing.T) {
	label, event := labelOf(strings.Repeat("x", 1<<20))
	runtime.GC()
	if event.Value() != nil {
		t.Error("the label keeps the memory of the event")
	}
	if len(label) != maxLabel {
		t.Errorf("the label has %d bytes, want %d", len(label), maxLabel)
	}
	runtime.KeepAlive(label)
}

// labelOf returns the label that begins with an event, and where the event is in memory.
//
//go:noinline
func labelOf(event string) (string, weak.Pointer[byte]) {
	return join("", event), weak.Make(unsafe.StringData(event))
}
