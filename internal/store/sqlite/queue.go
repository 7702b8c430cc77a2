package sqlite

import (
	"cmp"
	"container/heap"
	"sync"
)

// queue holds the appends that wait for the writer. Namespaces take turns, measured by the bytes that they write: an
// append does not wait for all waiting appends of another namespace. Appends of one namespace keep their order.
type queue struct {
	// ready holds an item while appends are waiting.
	ready chan struct{}

	mu    sync.Mutex
	calls calls
	added uint64
	// virtualTime, measured in bytes, is the start of the last append that the writer took. The start of an append is
	// the end of the previous append of its namespace, but not less than virtualTime when the append arrived. ends
	// holds the end of the last append of each namespace: its start plus its bytes. When no append is waiting,
	// virtualTime is 0 and ends is empty.
	virtualTime int64
	ends        map[string]int64
}

func newQueue() *queue { return &queue{ready: make(chan struct{}, 1), ends: map[string]int64{}} }

func (q *queue) add(call *appendCall) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.added++
	call.start, call.number = max(q.virtualTime, q.ends[call.namespace]), q.added
	q.ends[call.namespace] = call.start + call.bytes
	heap.Push(&q.calls, call)
	q.signal()
}

// remove removes a waiting append, and returns false if the writer has taken it.
func (q *queue) remove(call *appendCall) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if call.taken {
		return false
	}
	heap.Remove(&q.calls, call.at)
	call.taken = true
	q.signal()
	return true
}

// take removes and returns the appends of the next transaction. It returns none if all were removed.
func (q *queue) take() []*appendCall {
	q.mu.Lock()
	defer q.mu.Unlock()
	var batch []*appendCall
	var bytes int64
	for len(q.calls) > 0 && len(batch) < maxBatch {
		if bytes += q.calls[0].bytes; bytes > maxBatchBytes && len(batch) > 0 {
			break
		}
		next := heap.Pop(&q.calls).(*appendCall)
		next.taken, q.virtualTime = true, next.start
		batch = append(batch, next)
	}
	q.signal()
	return batch
}

// signal tells the writer that appends are waiting, or resets virtualTime and ends if none are.
func (q *queue) signal() {
	if len(q.calls) == 0 {
		q.virtualTime = 0
		clear(q.ends)
		return
	}
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

// calls is a heap of appends with the next one at the top.
type calls []*appendCall

// Len is part of heap.Interface.
func (c calls) Len() int { return len(c) }

// Less is part of heap.Interface.
func (c calls) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(c[i].start, c[j].start), cmp.Compare(c[i].number, c[j].number)) < 0
}

// Swap is part of heap.Interface.
func (c calls) Swap(i, j int) {
	c[i], c[j] = c[j], c[i]
	c[i].at, c[j].at = i, j
}

// Push is part of heap.Interface.
func (c *calls) Push(x any) {
	last := x.(*appendCall)
	last.at = len(*c)
	*c = append(*c, last)
}

// Pop is part of heap.Interface.
func (c *calls) Pop() any {
	all := *c
	last := all[len(all)-1]
	all[len(all)-1] = nil
	*c = all[:len(all)-1]
	return last
}
