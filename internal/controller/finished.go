package controller

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/existence"
	"github.com/capstan-dev/capstan/internal/fairqueue"
	"github.com/capstan-dev/capstan/internal/turnstatus"
	"github.com/capstan-dev/capstan/internal/writeerror"
)

// The API server selects Turns by these fields.
const (
	// FieldCompletionTime is empty for an unfinished Turn.
	FieldCompletionTime = "status.completionTime"
	// FieldExecutor is the executor that a Turn is or was bound to.
	FieldExecutor = "status.executor.name"
)

// Journals receives events of the watch of finished Turns. Its methods must not block.
type Journals interface {
	// Finished receives a Turn that has appeared in the watch. It exists, so its journal is still needed. Usually it
	// has just finished; after an interruption of the watch, it may have finished long ago.
	Finished(uid types.UID)
	// Deleted receives a Turn that has left the watch. Usually it was deleted, so its journal may no longer be needed.
	// But a Turn also leaves the watch if a client removes its status.completionTime.
	Deleted(o client.Object)
}

// Records receives Turns that may have no record yet, or whose usage their Sessions may lack. Its methods must not
// block.
type Records interface {
	// Finished receives a Turn that has appeared in the watch of finished Turns. Usually it has just finished; after an
	// interruption of the watch, it may have finished long ago, and may have a record.
	Finished(t *v1alpha1.Turn)
	// Missed is called after each list of all finished Turns. Those that finished before the list, during a gap in the
	// watch, do not appear in the watch.
	Missed()
}

// FinishedTurns deletes Turns whose time to live is over, and updates status.observedGeneration of finished Turns.
// The cache holds no finished Turns, however many exist. FinishedTurns does not hold them either: it watches them,
// and keeps the names of the Turns that need an action now or later. FinishedTurns implements manager.Runnable.
type FinishedTurns struct {
	// Client writes to the API server; Reader reads from it; Watcher lists and watches there.
	Client  client.Client
	Reader  client.Reader
	Watcher client.WithWatch
	// Namespaces are the namespaces to watch. If there are none, all namespaces are watched.
	Namespaces []string
	// Journals receives the Turns that appear in the watch or leave it. It may be nil.
	Journals Journals
	// Records receives the Turns that appear in the watch. It may be nil.
	Records Records
	// Memories keeps the memories of Turns that are deleted because their time to live is over. It may be nil.
	Memories MemoryKeeper
	// Now returns the current time.
	Now func() time.Time
	Log logr.Logger

	queue workqueue.TypedRateLimitingInterface[ctrl.Request]
}

// finishedWorkers limits the finished Turns that are handled at the same time. finishedOfNamespace limits those of one
// namespace.
const finishedWorkers, finishedOfNamespace = 4, 2

func newFinishedQueue() workqueue.TypedRateLimitingInterface[ctrl.Request] {
	return fairqueue.New("finished-turns",
		workqueue.NewTypedItemExponentialFailureRateLimiter[ctrl.Request](minRetryDelay, maxRetryDelay), finishedOfNamespace)
}

// NeedLeaderElection returns true: only one process does this work.
func (f *FinishedTurns) NeedLeaderElection() bool { return true }

// Start handles finished Turns until ctx ends.
func (f *FinishedTurns) Start(ctx context.Context) error {
	f.queue = newFinishedQueue()
	namespaces := f.Namespaces
	if len(namespaces) == 0 {
		namespaces = []string{metav1.NamespaceAll}
	}
	var all sync.WaitGroup
	for _, ns := range namespaces {
		reflector := cache.NewReflectorWithOptions(f.listerWatcher(ns), &v1alpha1.Turn{}, finishedStore{f}, cache.ReflectorOptions{
			Logger: &f.Log, Name: "finished-turns", TypeDescription: "finished Turns",
		})
		all.Go(func() { reflector.RunWithContext(ctx) })
	}
	for range finishedWorkers {
		all.Go(func() { f.work(ctx) })
	}
	<-ctx.Done()
	f.queue.ShutDown()
	all.Wait()
	return nil
}

// listerWatcher lists and watches the finished Turns of a namespace.
func (f *FinishedTurns) listerWatcher(namespace string) *cache.ListWatch {
	options := func(o metav1.ListOptions) *client.ListOptions {
		return &client.ListOptions{
			Namespace: namespace, Limit: o.Limit, Continue: o.Continue, Raw: &o,
			FieldSelector: fields.OneTermNotEqualSelector(FieldCompletionTime, ""),
		}
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			var turns v1alpha1.TurnList
			return &turns, f.Watcher.List(ctx, &turns, options(o))
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return f.Watcher.Watch(ctx, &v1alpha1.TurnList{}, options(o))
		},
	}
}

// work handles Turns until the queue is shut down.
func (f *FinishedTurns) work(ctx context.Context) {
	for {
		request, stopped := f.queue.Get()
		if stopped {
			return
		}
		after, err := f.handle(ctx, request.NamespacedName)
		switch {
		case ctx.Err() != nil:
		case apierrors.IsConflict(err): // another client changed the Turn, which needs no log message
			f.queue.AddRateLimited(request)
		case err != nil:
			f.Log.Error(err, "Failed to handle a finished turn; retrying", "turn", request.NamespacedName)
			f.queue.AddRateLimited(request)
		default:
			f.queue.Forget(request)
			if after > 0 {
				f.queue.AddAfter(request, after)
			}
		}
		f.queue.Done(request)
	}
}

// handle reads a Turn from the API server and carries out the action that is due. It returns when the Turn must be
// handled again, or 0 if the watch will report the next change.
func (f *FinishedTurns) handle(ctx context.Context, key types.NamespacedName) (time.Duration, error) {
	var t v1alpha1.Turn
	if err := f.Reader.Get(ctx, key, &t); err != nil {
		return 0, client.IgnoreNotFound(err)
	}
	if !t.IsFinished() || !t.DeletionTimestamp.IsZero() {
		return 0, nil // a new Turn with the same name, or a Turn that only a finalizer keeps
	}
	d := decide(snapshot{turn: &t, now: f.Now()})
	var err error
	switch d.action {
	case remove:
		err = removeTurn(ctx, f.Client, f.Reader, f.Memories, &t, f.Now())
	case observe:
		turnstatus.Observe(&t)
		err = f.Client.Status().Update(ctx, &t)
	case nothing, follow, hold, queue, stay, end, wait, schedule, park, cancelSubAgents, cancel, endFromJournal:
	}
	again, err := resultAfterWrite(ctrl.Result{RequeueAfter: d.after}, err)
	return again.RequeueAfter, err
}

// enqueueIfDue adds a Turn that the watch has shown to the queue if it needs an action.
func (f *FinishedTurns) enqueueIfDue(o any) {
	t, ok := o.(*v1alpha1.Turn)
	if !ok {
		return
	}
	if !t.IsFinished() || !t.DeletionTimestamp.IsZero() {
		return
	}
	request := ctrl.Request{NamespacedName: client.ObjectKeyFromObject(t)}
	switch d := decide(snapshot{turn: t, now: f.Now()}); {
	case d.action != nothing:
		f.queue.Add(request)
	case d.after > 0:
		f.queue.AddAfter(request, d.after)
	}
}

// finishedStore receives the Turns of the reflector. It keeps none of them.
type finishedStore struct{ *FinishedTurns }

// Add receives a Turn that has appeared in the watch.
func (f finishedStore) Add(o any) error {
	if t, ok := o.(*v1alpha1.Turn); ok {
		if f.Journals != nil {
			f.Journals.Finished(t.UID)
		}
		if f.Records != nil {
			f.Records.Finished(t)
		}
	}
	f.enqueueIfDue(o)
	return nil
}

// Update receives a finished Turn that has changed.
func (f finishedStore) Update(o any) error {
	f.enqueueIfDue(o)
	return nil
}

// Delete receives a Turn that has left the watch: see Journals.
func (f finishedStore) Delete(o any) error {
	if t, ok := o.(*v1alpha1.Turn); ok && f.Journals != nil {
		f.Journals.Deleted(t)
	}
	return nil
}

// Replace receives all finished Turns, at the start and after a gap in the watch.
func (f finishedStore) Replace(all []any, _ string) error {
	if f.Records != nil {
		f.Records.Missed()
	}
	for _, o := range all {
		f.enqueueIfDue(o)
	}
	return nil
}

// Resync does nothing: the queue holds everything that is due later.
func (f finishedStore) Resync() error { return nil }

// Transformer returns the function that reduces Turns, because the reflector holds all Turns of a first list until
// it is complete.
func (f finishedStore) Transformer() cache.TransformFunc {
	return func(o any) (any, error) {
		t, ok := o.(*v1alpha1.Turn)
		if !ok {
			return o, nil
		}
		kept := &v1alpha1.Turn{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: t.Namespace, Name: t.Name, UID: t.UID, ResourceVersion: t.ResourceVersion,
				Generation: t.Generation, DeletionTimestamp: t.DeletionTimestamp,
			},
			Spec:   v1alpha1.TurnSpec{TTLSecondsAfterFinished: t.Spec.TTLSecondsAfterFinished},
			Status: v1alpha1.TurnStatus{ObservedGeneration: t.Status.ObservedGeneration, CompletionTime: t.Status.CompletionTime},
		}
		if c := meta.FindStatusCondition(t.Status.Conditions, v1alpha1.ConditionSucceeded); c != nil {
			kept.Status.Conditions = []metav1.Condition{*c}
		}
		return kept, nil
	}
}

// MemoryKeeper keeps the memories that were learned from Turns.
type MemoryKeeper interface {
	// SetExpired notes that a Turn or a Session is deleted because its time to live is over. If its journal is retired
	// (marked as no longer needed) no later than until, memories outlive the object: all memories of a Turn, but of a
	// Session only those of scope User. The zero time removes the note.
	SetExpired(ctx context.Context, uid string, until time.Time) error
}

const (
	// noteTimeout limits the time of one note of a MemoryKeeper.
	noteTimeout = 10 * time.Second
	// noteValidity is how long a note counts if the deletion may have failed. It need not be longer: the journal of a
	// deleted object is retired within seconds, and after a crash by the next leader within minutes. It must not be
	// much longer: if our deletion fails and a person then deletes the object, its memories should be deleted, too, but
	// the note would keep them.
	noteValidity = 10 * time.Minute
)

// forever is the time of a note about an object that is certainly deleted.
var forever = time.Date(9999, time.December, 31, 0, 0, 0, 0, time.UTC)

// removeTurn deletes a Turn whose time to live is over, unless it has changed since it was read. live reads from the
// API server.
func removeTurn(
	ctx context.Context, c client.Client, live client.Reader, m MemoryKeeper, t *v1alpha1.Turn, now time.Time,
) error {
	err := expire(ctx, m, t, now, func() error {
		return deleteUnchanged(ctx, c, live, "Turn", t, client.PropagationPolicy(metav1.DeletePropagationBackground))
	})
	return client.IgnoreNotFound(err)
}

// deleteUnchanged deletes an object, unless it has changed since it was read. A conflict does not say whether the
// object exists: an earlier deletion whose result was not known may have succeeded, and another object may have the
// name now. So deleteUnchanged then reads from live, and returns nil if the object is gone. If the read fails, the
// result of the deletion is not known.
func deleteUnchanged(
	ctx context.Context, c client.Client, live client.Reader, kind string, o client.Object, options ...client.DeleteOption,
) error {
	uid, version := o.GetUID(), o.GetResourceVersion()
	err := c.Delete(ctx, o, append(options, client.Preconditions{UID: &uid, ResourceVersion: &version})...)
	if !apierrors.IsConflict(err) {
		return err
	}
	gone, failed := existence.IsGone(ctx, live, kind, client.ObjectKeyFromObject(o), uid)
	switch {
	case failed != nil:
		return fmt.Errorf("failed to check whether %s %q, whose deletion met a conflict, exists: %w", kind, o.GetName(), failed)
	case gone:
		return nil
	}
	return err
}

var (
	// errNotAttempted is the error of a deletion that was certainly not attempted.
	errNotAttempted = errors.New("the deletion was not attempted")
	// errInUse is the error of a deletion that was not attempted because the object is in use.
	errInUse = fmt.Errorf("%w: the object is in use", errNotAttempted)
)

// expire deletes an object whose time to live is over by calling remove. Its memories are kept, whereas the memories of
// an object that people delete are deleted with its journal. m may be nil.
//
//  1. The note is written first, so the memories are kept even if the process is killed after the deletion. While the
//     store does not answer, the object stays. This note counts for noteValidity.
//  2. If the object is certainly deleted, the note counts forever, so the memories are kept however late the journal is
//     retired.
//  3. If the object is not deleted, people may delete it later, so the note is removed. If the result of the deletion
//     is not known, the note stays, because the deletion is repeated, unless the time to live was extended in between.
//
// In two cases, memories are deleted or kept wrongly:
//
//   - The object was deleted, but the second note is missing, because the process was killed or the store failed. If
//     the journal is then retired more than noteValidity after the first note, the memories are deleted.
//   - The object was not deleted, but the first note stays, because the process was killed, the store failed, or the
//     result of the deletion is unknown. If a person then deletes the object within noteValidity, its memories are kept
//     until they expire.
func expire(ctx context.Context, m MemoryKeeper, o client.Object, now time.Time, remove func() error) error {
	if m == nil {
		return remove()
	}
	note := func(until time.Time) error {
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), noteTimeout)
		defer cancel()
		if err := m.SetExpired(bounded, string(o.GetUID()), until); err != nil {
			return fmt.Errorf("failed to note whether the memories of %q outlive it: %w", client.ObjectKeyFromObject(o), err)
		}
		return nil
	}
	if err := note(now.Add(noteValidity)); err != nil {
		return err
	}
	err := remove()
	var failed error
	switch {
	case errors.Is(err, errNotAttempted), writeerror.ChangedNothing(err):
		failed = note(time.Time{})
	case client.IgnoreNotFound(err) == nil:
		failed = note(forever)
	}
	if failed != nil {
		return failed
	}
	return err
}
