package fairqueue

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

func requestFor(namespace, name string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: namespace, Name: name}}
}

func newQueue(t *testing.T, maxActive int) *Queue {
	t.Helper()
	q := New("test", workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](time.Second, time.Minute), maxActive)
	t.Cleanup(q.ShutDown)
	return q
}

// take gets n requests, and does not call Done for them.
func take(t *testing.T, q *Queue, n int) (names []string) {
	t.Helper()
	for range n {
		r, shutdown := q.Get()
		if shutdown {
			t.Fatal("the queue is shut down")
		}
		names = append(names, r.String())
	}
	return names
}

func TestNamespaceDoesNotTakeAllWorkers(t *testing.T) {
	q := newQueue(t, 3)
	for i := range 1000 {
		q.Add(requestFor("many", fmt.Sprintf("%04d", i)))
	}
	q.Add(requestFor("few", "a"))
	want := []string{"many/0000", "many/0001", "many/0002", "few/a"}
	if diff := cmp.Diff(want, take(t, q, 4)); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
	if q.Len() != 997 {
		t.Errorf("%d requests wait, want 997", q.Len())
	}
	q.Done(requestFor("many", "0001"))
	if got := take(t, q, 1); got[0] != "many/0003" {
		t.Errorf("got %v, want many/0003, because a request of the namespace is done", got)
	}
}

// TestNamespacesTakeTurns checks that the requests of several namespaces are handed out in turn.
func TestNamespacesTakeTurns(t *testing.T) {
	q := newQueue(t, 1)
	for _, ns := range []string{"a", "b", "c"} {
		for i := range 3 {
			q.Add(requestFor(ns, fmt.Sprint(i)))
		}
	}
	var got []string
	for range 9 {
		r, _ := q.Get()
		got = append(got, r.String())
		q.Done(r)
	}
	want := []string{"a/0", "b/0", "c/0", "a/1", "b/1", "c/1", "a/2", "b/2", "c/2"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("wrong order (-want +got):\n%s", diff)
	}
	if len(q.line.namespaces) != 0 || len(q.line.active) != 0 {
		t.Errorf("after all requests are done, the queue still holds %v and %v", q.line.namespaces, q.line.active)
	}
}

func TestPrioritiesApplyWithinANamespace(t *testing.T) {
	q := newQueue(t, 1)
	add := func(priority int, names ...string) {
		for _, name := range names {
			q.AddWithOpts(priorityqueue.AddOpts{Priority: &priority}, requestFor("a", name))
		}
	}
	add(Normal, "first")
	add(Low, "old", "raised")
	add(Normal, "news")
	add(Urgent, "urgent", "raised")
	add(Low, "urgent") // does not lower the priority
	q.Add(requestFor("b", "other"))
	var got []string
	for range 6 {
		r, _ := q.Get()
		got = append(got, r.String())
		q.Done(r)
	}
	want := []string{"a/first", "b/other", "a/raised", "a/urgent", "a/news", "a/old"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("wrong order (-want +got):\n%s", diff)
	}
}

// TestRequestIsHandedToOneWorkerAtATime checks that a request which is added while a worker has it is handed out once
// more after the worker is done.
func TestRequestIsHandedToOneWorkerAtATime(t *testing.T) {
	q := newQueue(t, 2)
	q.Add(requestFor("a", "x"))
	q.Add(requestFor("a", "x"))
	take(t, q, 1)
	for range 3 {
		q.Add(requestFor("a", "x"))
	}
	q.Add(requestFor("a", "y"))
	if got := take(t, q, 1); got[0] != "a/y" || q.Len() != 0 {
		t.Fatalf("got %v, %d wait; want a request that no worker has", got, q.Len())
	}
	q.Done(requestFor("a", "x"))
	if got := take(t, q, 1); got[0] != "a/x" || q.Len() != 0 {
		t.Errorf("got %v, %d wait; want a/x, which was added again, exactly once", got, q.Len())
	}
}

func TestDelayedRequestKeepsItsPriority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t, 1)
		low, urgent := Low, Urgent
		q.AddWithOpts(priorityqueue.AddOpts{After: time.Minute, Priority: &low}, requestFor("a", "low"))
		q.AddWithOpts(priorityqueue.AddOpts{After: time.Minute, Priority: &urgent}, requestFor("a", "urgent"))
		q.AddAfter(requestFor("a", "normal"), time.Minute)
		q.AddWithOpts(priorityqueue.AddOpts{RateLimited: true, Priority: &low}, requestFor("a", "failed"))
		if q.Len() != 0 {
			t.Fatalf("%d requests wait before their delay is over, want none", q.Len())
		}
		time.Sleep(time.Minute + time.Second)
		synctest.Wait()
		var got []string
		for range 4 {
			r, _ := q.Get()
			got = append(got, r.Name)
			q.Done(r)
		}
		// The delay of the request "failed" was only a second, so it was active before the other requests were added.
		if want := []string{"failed", "urgent", "normal", "low"}; !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
		if len(q.line.later) != 0 {
			t.Errorf("the queue keeps the priorities %v", q.line.later)
		}
		q.ShutDown()
	})
}

// TestNamespaceWaitsForItsWatch checks that a namespace waits while the watch does not show its writes, that another
// namespace does not wait, and that an observed event lets the waiting namespace continue.
func TestNamespaceWaitsForItsWatch(t *testing.T) {
	q := newQueue(t, 4)
	name := func(i int) reconcile.Request { return requestFor("many", fmt.Sprintf("%04d", i)) }
	for i := range maxExpected {
		q.Expect(name(i))
		q.Expect(name(i)) // counts once
	}
	q.Observe(requestFor("many", "never expected"))
	q.Add(requestFor("many", "a"))
	q.Add(requestFor("many", "b"))
	q.Add(requestFor("few", "a"))
	if got := take(t, q, 1); got[0] != "few/a" || q.Len() != 2 {
		t.Fatalf("got %v, and %d requests wait; want few/a, and both requests of the namespace many to wait", got, q.Len())
	}
	q.Observe(name(0))
	if got := take(t, q, 2); got[0] != "many/a" || got[1] != "many/b" {
		t.Errorf("got %v, want the requests that waited", got)
	}
	q.Expect(name(0))
	q.Add(requestFor("many", "c"))
	q.Done(requestFor("many", "a"))
	if q.Len() != 1 {
		t.Errorf("%d requests wait, want 1: a request that is done must not let in another one", q.Len())
	}
	for i := range maxExpected {
		q.Observe(name(i))
	}
	q.Done(requestFor("few", "a"))
	q.Done(requestFor("many", "b"))
	q.Done(requestFor("many", take(t, q, 1)[0][len("many/"):]))
	if len(q.line.namespaces) != 0 || len(q.line.active) != 0 || len(q.line.expected) != 0 {
		t.Errorf("the queue keeps %v, %v and %v", q.line.namespaces, q.line.active, q.line.expected)
	}
}

// TestLostEventBlocksNoNamespace checks that an expected event no longer counts after the timeout.
func TestLostEventBlocksNoNamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(t, 1)
		for i := range maxExpected {
			q.Expect(requestFor("a", fmt.Sprint(i)))
		}
		time.Sleep(expectTimeout - time.Millisecond)
		q.Expect(requestFor("a", "0")) // the newer write counts
		q.Add(requestFor("a", "x"))
		synctest.Wait()
		if n := q.line.TypedInterface.Len(); n != 0 {
			t.Fatalf("%d requests are active before the timeout, want none", n)
		}
		time.Sleep(time.Millisecond)
		synctest.Wait()
		if got := take(t, q, 1); got[0] != "a/x" {
			t.Errorf("got %v, want the request that waited", got)
		}
		q.line.mu.Lock()
		if len(q.line.expected) != 1 {
			t.Errorf("%d events are expected, want only that of the newer write", len(q.line.expected))
		}
		q.line.mu.Unlock()
		q.ShutDown()
	})
}

func TestShutDownEndsTheWait(t *testing.T) {
	q := newQueue(t, 1)
	q.ShutDown()
	q.Add(requestFor("a", "x"))
	if _, _, shutdown := q.GetWithPriority(); !shutdown || !q.ShuttingDown() {
		t.Error("a queue that is shut down must hand out nothing")
	}
}

// BenchmarkQueue takes a request from a long queue, and adds it again.
func BenchmarkQueue(b *testing.B) {
	q := New("bench", workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](time.Second, time.Minute), 4)
	defer q.ShutDown()
	for i := range 32_000 {
		q.Add(requestFor("many", fmt.Sprint(i)))
	}
	for b.Loop() {
		r, _ := q.Get()
		q.Done(r)
		q.Add(r)
	}
}
