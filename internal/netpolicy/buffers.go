package netpolicy

import "sync"

const (
	// namespaceBuffers is the sum, in bytes, at which the receive buffers of a namespace's connections begin to shrink.
	namespaceBuffers = 16 << 20
	// maxBuffer is the largest receive buffer of a connection, in bytes. It allows 5 MB/s from a server that is 100 ms
	// away. Requests over HTTP/2 share it.
	maxBuffer = 512 << 10
	// minBuffer is the smallest receive buffer of a connection, in bytes. It still allows 640 kB/s from a server that
	// is 50 ms away, which is more than the text of a model or the events of a tool server need.
	minBuffer = 32 << 10
)

// buffers bounds the kernel's memory for data that has arrived and was not read. Without a bound, the kernel of Linux
// accepts several megabytes for each connection, and counts them as memory of the manager's container. So one
// namespace with hundreds of connections could exhaust the memory of all.
//
// The more connections a namespace has, the smaller is the buffer of a new one. The connections of other namespaces
// have no effect on it. A namespace whose servers support HTTP/2 has few connections, and so has large buffers.
//
// The zero value is ready to use. It is safe for concurrent use.
type buffers struct {
	mu   sync.Mutex
	open map[string]int // the number of connections of each namespace
}

// enter counts a new connection of a namespace, and returns the size of its receive buffer in bytes. The caller must
// call leave once, when the connection is closed.
func (b *buffers) enter(namespace string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open == nil {
		b.open = map[string]int{}
	}
	b.open[namespace]++
	return min(max(namespaceBuffers/b.open[namespace], minBuffer), maxBuffer)
}

func (b *buffers) leave(namespace string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open[namespace]--; b.open[namespace] <= 0 {
		delete(b.open, namespace)
	}
}
