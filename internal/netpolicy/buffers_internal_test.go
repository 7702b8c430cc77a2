package netpolicy

import "testing"

// TestBuffers checks the sizes of the receive buffers of a namespace's connections, and that they do not depend on
// other namespaces.
func TestBuffers(t *testing.T) {
	var b buffers
	sum := 0
	for n := 1; n <= 4000; n++ {
		got := b.enter("greedy")
		sum += got
		switch want := namespaceBuffers / n; {
		case n <= 32 && got != maxBuffer, n > 32 && n < 512 && got != want, n >= 512 && got != minBuffer:
			t.Fatalf("the buffer of connection %d has %d bytes", n, got)
		}
	}
	if sum > 180<<20 {
		t.Errorf("4,000 connections have buffers of %d MiB, want at most 180", sum>>20)
	}
	if got := b.enter("other"); got != maxBuffer {
		t.Errorf("the first connection of another namespace has a buffer of %d bytes, want %d", got, maxBuffer)
	}
	for range 4000 {
		b.leave("greedy")
	}
	b.leave("other")
	if len(b.open) != 0 {
		t.Errorf("after all connections were closed, %v are counted", b.open)
	}
	if got := b.enter("greedy"); got != maxBuffer {
		t.Errorf("after all connections were closed, a new one has a buffer of %d bytes, want %d", got, maxBuffer)
	}
}
