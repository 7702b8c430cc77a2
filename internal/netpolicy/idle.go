package netpolicy

import (
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"
)

const (
	// maxWithIdle is the number of open connections up to which a namespace may keep idle ones for IdleConnTimeout.
	maxWithIdle = 256
	// idleInterval is the time between two closings of the idle connections of a namespace with more open connections.
	idleInterval = time.Second
)

// idle bounds the idle connections of each namespace. A transport knows only its own, and a namespace may have hundreds
// of transports: without a common bound, all of them could keep connections of requests that have ended long ago.
//
// The zero value is ready to use. It is safe for concurrent use.
type idle struct {
	mu         sync.Mutex
	namespaces map[string]*openConnections
}

// openConnections are the open connections of a namespace.
type openConnections struct {
	// all is the number of connections, and transports that of each transport.
	all        int
	transports map[*http.Transport]int
	// isClosing is true while idle connections are closed at intervals.
	isClosing bool
}

// enter counts a new connection of a namespace, which belongs to a transport or to nil. The caller must call leave
// once, when the connection is closed.
func (i *idle) enter(namespace string, of *http.Transport) (leave func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.namespaces == nil {
		i.namespaces = map[string]*openConnections{}
	}
	open := i.namespaces[namespace]
	if open == nil {
		open = &openConnections{transports: map[*http.Transport]int{}}
		i.namespaces[namespace] = open
	}
	open.all++
	open.transports[of]++
	if open.all > maxWithIdle && !open.isClosing {
		open.isClosing = true
		time.AfterFunc(idleInterval, func() { i.close(open) })
	}
	return func() {
		i.mu.Lock()
		defer i.mu.Unlock()
		if open.transports[of]--; open.transports[of] == 0 {
			delete(open.transports, of)
		}
		if open.all--; open.all == 0 {
			delete(i.namespaces, namespace)
		}
	}
}

// close closes the idle connections of a namespace with more than maxWithIdle open connections, and does so again after
// idleInterval.
func (i *idle) close(open *openConnections) {
	i.mu.Lock()
	open.isClosing = open.all > maxWithIdle
	isClosing, transports := open.isClosing, slices.Collect(maps.Keys(open.transports))
	i.mu.Unlock()
	if !isClosing {
		return
	}
	for _, t := range transports { // without the lock, because a closed connection leaves
		if t != nil {
			t.CloseIdleConnections()
		}
	}
	time.AfterFunc(idleInterval, func() { i.close(open) })
}
