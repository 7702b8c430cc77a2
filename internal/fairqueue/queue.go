// Package fairqueue provides a queue for controllers that serves namespaces in turn.
package fairqueue

import (
	"cmp"
	"container/heap"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Priorities order the requests within a namespace. They have no effect between namespaces.
const (
	// Overdue is for requests that should have been handled long ago, such as the requests for the Turns of a lost
	// executor: no executor has run these Turns since the lost executor last renewed its Lease.
	Overdue = 200
	// Urgent is for requests that must not wait, such as the request for a Turn that has a slot and is not bound yet.
	Urgent = 100
	// Normal is for changes.
	Normal = 0
	// Low is for routine work, such as checking an object again. Objects that exist at the start also have this
	// priority.
	Low = handler.LowPriority
)

// Queue hands out requests. A request is active if a worker has it, or if it is next in line. The number of active
// requests of a namespace has a maximum. The other requests of the namespace wait separately, ordered by priority and
// then by age. If the maximum is smaller than the number of workers, a namespace with thousands of requests does not
// occupy all workers, and a request of another namespace waits for no more of these requests than the maximum.
//
// The reconciler can also report the writes that its watch must show: see Expect. While the watch lags behind the
// writes of a namespace, the requests of that namespace wait. So a namespace does not fill the watch, which is one
// stream for all namespaces, with the results of its own writes.
//
// Package workqueue provides the delays, retries and metrics. Queue is safe for concurrent use.
type Queue struct {
	workqueue.TypedRateLimitingInterface[reconcile.Request]
	line *line
}

var _ priorityqueue.PriorityQueue[reconcile.Request] = (*Queue)(nil)

const (
	// maxExpected is the number of expected events of a namespace at which its waiting requests are held back.
	maxExpected = 32
	// expectTimeout is the time after which an expected event no longer counts. It is far longer than a working watch
	// needs, so a namespace waits that long only if an event is lost.
	expectTimeout = 10 * time.Second
)

// New returns a queue. name is the name of its metrics. maxActive is the maximum number of active requests of a
// namespace. It must be at least 1.
func New(name string, limiter workqueue.TypedRateLimiter[reconcile.Request], maxActive int) *Queue {
	l := &line{
		TypedInterface: workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[reconcile.Request]{Name: name}),
		maxActive:      maxActive, active: map[reconcile.Request]*entry{}, namespaces: map[string]*namespace{},
		later: map[reconcile.Request]int{}, expected: map[reconcile.Request]*time.Timer{},
	}
	delays := workqueue.NewTypedDelayingQueueWithConfig(
		workqueue.TypedDelayingQueueConfig[reconcile.Request]{Name: name, Queue: delayed{l}})
	return &Queue{
		TypedRateLimitingInterface: workqueue.NewTypedRateLimitingQueueWithConfig(limiter,
			workqueue.TypedRateLimitingQueueConfig[reconcile.Request]{Name: name, DelayingQueue: delays}),
		line: l,
	}
}

// For returns the NewQueue option of a controller. limit is the maximum number of active requests of a namespace.
func For(limit int) func(string, workqueue.TypedRateLimiter[reconcile.Request]) workqueue.TypedRateLimitingInterface[reconcile.Request] {
	return func(
		name string, limiter workqueue.TypedRateLimiter[reconcile.Request],
	) workqueue.TypedRateLimitingInterface[reconcile.Request] {
		return New(name, limiter, limit)
	}
}

// Add adds a request of normal priority.
func (q *Queue) Add(r reconcile.Request) { q.line.add(r, Normal) }

// AddAfter adds a request of normal priority after a delay.
func (q *Queue) AddAfter(r reconcile.Request, after time.Duration) {
	q.AddWithOpts(priorityqueue.AddOpts{After: after}, r)
}

// AddRateLimited adds a request of normal priority when the limiter allows it.
func (q *Queue) AddRateLimited(r reconcile.Request) {
	q.AddWithOpts(priorityqueue.AddOpts{RateLimited: true}, r)
}

// AddWithOpts adds requests with a priority, immediately or after a delay. A request that already waits keeps the
// highest of its priorities.
func (q *Queue) AddWithOpts(o priorityqueue.AddOpts, requests ...reconcile.Request) {
	priority := Normal
	if o.Priority != nil {
		priority = *o.Priority
	}
	for _, r := range requests {
		switch {
		case o.RateLimited:
			q.line.addLater(r, priority)
			q.TypedRateLimitingInterface.AddRateLimited(r)
		case o.After > 0:
			q.line.addLater(r, priority)
			q.TypedRateLimitingInterface.AddAfter(r, o.After)
		default:
			q.line.add(r, priority)
		}
	}
}

// GetWithPriority waits for a request and returns it. The caller must then call Done with the request.
func (q *Queue) GetWithPriority() (r reconcile.Request, priority int, shutdown bool) {
	r, shutdown = q.line.Get()
	if shutdown {
		return r, 0, true
	}
	return r, q.line.begin(r), false
}

// Get is GetWithPriority without the priority.
func (q *Queue) Get() (r reconcile.Request, shutdown bool) {
	r, _, shutdown = q.GetWithPriority()
	return r, shutdown
}

// Expect records that the object of a request is about to be written, so that the watch will show an event. The caller
// must call Observe if the write fails. While 32 events of a namespace are expected, its requests wait. An event that
// does not arrive within 10 seconds is no longer expected. Expect does nothing if the Queue is nil.
func (q *Queue) Expect(r reconcile.Request) {
	if q != nil {
		q.line.expect(r)
	}
}

// Observe records that the watch has shown the event for a request, or that there will be no event. It does nothing if
// the Queue is nil.
func (q *Queue) Observe(r reconcile.Request) {
	if q != nil {
		q.line.observe(r)
	}
}

// line holds the waiting requests. The embedded queue holds the active requests.
type line struct {
	workqueue.TypedInterface[reconcile.Request]
	maxActive int

	mu         sync.Mutex
	active     map[reconcile.Request]*entry
	namespaces map[string]*namespace
	added      uint64
	waiting    int
	// later holds the priorities of requests that are added after a delay.
	later map[reconcile.Request]int
	// expected holds the requests whose events are expected, each with the timer that ends the expectation.
	expected map[reconcile.Request]*time.Timer
}

// namespace holds the waiting requests of one namespace, and counts its active requests and its expected events.
type namespace struct {
	active, expected int
	waiting          entries
	known            map[reconcile.Request]*entry
}

// entry is a waiting or active request.
type entry struct {
	request  reconcile.Request
	priority int
	// number orders entries of the same priority.
	number uint64
	// index is the index of a waiting request in the heap.
	index int
	// begun is true if the request was handed out. again is true if it was added again since then, with againPriority.
	begun, again  bool
	againPriority int
}

// delayed is the queue to which workqueue's delaying queue adds requests whose delay is over.
type delayed struct{ *line }

// Add adds a request with the priority that was stored for it.
func (d delayed) Add(r reconcile.Request) {
	d.mu.Lock()
	priority, ok := d.later[r]
	if !ok {
		priority = Normal
	}
	delete(d.later, r)
	d.mu.Unlock()
	d.add(r, priority)
}

// addLater stores the priority of a request that is added after a delay.
func (l *line) addLater(r reconcile.Request, priority int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if known, ok := l.later[r]; ok {
		priority = max(priority, known)
	}
	l.later[r] = priority
}

func (l *line) add(r reconcile.Request, priority int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ShuttingDown() {
		return
	}
	if e := l.active[r]; e != nil {
		switch {
		case !e.begun:
			e.priority = max(e.priority, priority)
		case e.again:
			e.againPriority = max(e.againPriority, priority)
		default:
			e.again, e.againPriority = true, priority
		}
		return
	}
	n := l.namespaceOf(r.Namespace)
	if e := n.known[r]; e != nil {
		if priority > e.priority {
			e.priority = priority
			heap.Fix(&n.waiting, e.index)
		}
		return
	}
	l.added++
	e := &entry{request: r, priority: priority, number: l.added}
	n.known[r] = e
	heap.Push(&n.waiting, e)
	l.waiting++
	l.advance(n)
}

// namespaceOf returns the state of a namespace. It creates the state if necessary.
func (l *line) namespaceOf(name string) *namespace {
	n := l.namespaces[name]
	if n == nil {
		n = &namespace{known: map[reconcile.Request]*entry{}}
		l.namespaces[name] = n
	}
	return n
}

// removeIfUnused removes the state of a namespace without requests and expected events.
func (l *line) removeIfUnused(name string) {
	if n := l.namespaces[name]; n.active == 0 && n.expected == 0 && len(n.waiting) == 0 {
		delete(l.namespaces, name)
	}
}

func (l *line) expect(r reconcile.Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t := l.expected[r]; t != nil {
		t.Reset(expectTimeout)
		return
	}
	l.namespaceOf(r.Namespace).expected++
	l.expected[r] = time.AfterFunc(expectTimeout, func() { l.observe(r) })
}

func (l *line) observe(r reconcile.Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.expected[r]
	if t == nil {
		return
	}
	t.Stop()
	delete(l.expected, r)
	n := l.namespaces[r.Namespace]
	n.expected--
	l.advance(n)
	l.removeIfUnused(r.Namespace)
}

// advance makes waiting requests of a namespace active: it adds them to the embedded queue, until the maximum is
// reached.
func (l *line) advance(n *namespace) {
	for n.active < l.maxActive && n.expected < maxExpected && len(n.waiting) > 0 {
		e := heap.Pop(&n.waiting).(*entry)
		delete(n.known, e.request)
		l.waiting--
		n.active++
		l.active[e.request] = e
		l.Add(e.request)
	}
}

// begin records that a request was handed out, and returns its priority.
func (l *line) begin(r reconcile.Request) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.active[r]
	e.begun = true
	return e.priority
}

// Done records that a request is done. If the request was added again while a worker had it, it waits again, behind the
// other requests of its priority.
func (l *line) Done(r reconcile.Request) {
	l.mu.Lock()
	e, n := l.active[r], l.namespaces[r.Namespace]
	delete(l.active, r)
	n.active--
	l.TypedInterface.Done(r)
	l.advance(n)
	l.removeIfUnused(r.Namespace)
	l.mu.Unlock()
	if e.again {
		l.add(r, e.againPriority)
	}
}

// Len returns the number of requests that wait to be handed out.
func (l *line) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.waiting + l.TypedInterface.Len()
}

// entries is a heap of waiting requests with the next one at the top.
type entries []*entry

// Len is part of heap.Interface.
func (e entries) Len() int { return len(e) }

// Less is part of heap.Interface.
func (e entries) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(e[j].priority, e[i].priority), cmp.Compare(e[i].number, e[j].number)) < 0
}

// Swap is part of heap.Interface.
func (e entries) Swap(i, j int) {
	e[i], e[j] = e[j], e[i]
	e[i].index, e[j].index = i, j
}

// Push is part of heap.Interface.
func (e *entries) Push(x any) {
	last := x.(*entry)
	last.index = len(*e)
	*e = append(*e, last)
}

// Pop is part of heap.Interface.
func (e *entries) Pop() any {
	all := *e
	last := all[len(all)-1]
	all[len(all)-1] = nil
	*e = all[:len(all)-1]
	return last
}
