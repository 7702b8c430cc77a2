package controller

import (
	"context"
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
)

// Fields by which the API server selects Turns.
const (
	// FieldCompletionTime is empty for a Turn that has not finished.
	FieldCompletionTime = "status.completionTime"
	// FieldExecutor is the executor that a Turn is or was bound to.
	FieldExecutor = "status.executor.name"
)

// Journals is told of Turns whose journals may be of no more use. It must not block.
type Journals interface {
	// Finished is told of a Turn that has finished a moment ago, mostly.
	Finished(uid types.UID)
	// Deleted is told of a finished Turn that is gone, mostly.
	Deleted(o client.Object)
}

// FinishedTurns deletes Turns whose time to live is over, and notes that the newest spec of a finished Turn was seen. The cache
// holds no finished Turn, however many there are; nor does this: it watches them, and keeps the names of those about which
// something is to be done, now or later. It implements manager.Runnable.
type FinishedTurns struct {
	// Client writes, Reader reads from the API server, Watcher lists and watches there.
	Client  client.Client
	Reader  client.Reader
	Watcher client.WithWatch
	// Namespaces that are watched; none for all.
	Namespaces []string
	// Journals is told what the watch shows; nil tells nobody.
	Journals Journals
	// Now is the time of day.
	Now func() time.Time
	Log logr.Logger

	queue workqueue.TypedRateLimitingInterface[types.NamespacedName]
}

// finishedAtOnce is how many finished Turns are looked at side by side.
const finishedAtOnce = 4

// NeedLeaderElection is true: one process does it.
func (f *FinishedTurns) NeedLeaderElection() bool { return true }

// Start works until ctx ends.
func (f *FinishedTurns) Start(ctx context.Context) error {
	f.queue = workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](retryFirst, retryMost),
		workqueue.TypedRateLimitingQueueConfig[types.NamespacedName]{Name: "finished-turns"})
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
	for range finishedAtOnce {
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

// work looks at Turns until the queue is shut down.
func (f *FinishedTurns) work(ctx context.Context) {
	for {
		key, stopped := f.queue.Get()
		if stopped {
			return
		}
		after, err := f.look(ctx, key)
		switch {
		case ctx.Err() != nil:
		case apierrors.IsConflict(err): // somebody else changed it: that is no news to anybody
			f.queue.AddRateLimited(key)
		case err != nil:
			f.Log.Error(err, "Failed to look after a finished turn, trying again", "turn", key)
			f.queue.AddRateLimited(key)
		default:
			f.queue.Forget(key)
			if after > 0 {
				f.queue.AddAfter(key, after)
			}
		}
		f.queue.Done(key)
	}
}

// look does what is to be done about a Turn now, as the API server has it, and returns when to look again, 0 for when the
// watch tells.
func (f *FinishedTurns) look(ctx context.Context, key types.NamespacedName) (time.Duration, error) {
	var t v1alpha1.Turn
	if err := f.Reader.Get(ctx, key, &t); err != nil {
		return 0, client.IgnoreNotFound(err)
	}
	if !t.IsFinished() || !t.DeletionTimestamp.IsZero() {
		return 0, nil // another one of that name, or gone but for a finalizer
	}
	d := decide(view{turn: &t, now: f.Now()})
	var err error
	switch d.action {
	case remove:
		err = removeTurn(ctx, f.Client, &t)
	case observe:
		t.Status.ObservedGeneration = t.Generation
		err = f.Client.Status().Update(ctx, &t)
	case nothing, follow, hold, end, wait, admit, park, gather, cancel, settle:
	}
	again, err := written(ctrl.Result{RequeueAfter: d.after}, err)
	return again.RequeueAfter, err
}

// saw puts a Turn that the watch has shown into the queue, if there is something to do about it.
func (f *FinishedTurns) saw(o any) {
	t, ok := o.(*v1alpha1.Turn)
	if !ok {
		return
	}
	if !t.IsFinished() || !t.DeletionTimestamp.IsZero() {
		return
	}
	switch d := decide(view{turn: t, now: f.Now()}); {
	case d.action != nothing:
		f.queue.Add(client.ObjectKeyFromObject(t))
	case d.after > 0:
		f.queue.AddAfter(client.ObjectKeyFromObject(t), d.after)
	}
}

// finishedStore is where the reflector puts the Turns: it keeps none of them.
type finishedStore struct{ *FinishedTurns }

// Add is told of a Turn that has finished.
func (f finishedStore) Add(o any) error {
	if t, ok := o.(*v1alpha1.Turn); ok && f.Journals != nil {
		f.Journals.Finished(t.UID)
	}
	f.saw(o)
	return nil
}

// Update is told of a finished Turn that has changed.
func (f finishedStore) Update(o any) error {
	f.saw(o)
	return nil
}

// Delete is told of a finished Turn that was deleted.
func (f finishedStore) Delete(o any) error {
	if t, ok := o.(*v1alpha1.Turn); ok && f.Journals != nil {
		f.Journals.Deleted(t)
	}
	return nil
}

// Replace is told of all Turns that have finished.
func (f finishedStore) Replace(all []any, _ string) error {
	for _, o := range all {
		f.saw(o)
	}
	return nil
}

// Resync has nothing to do: what is due later is in the queue.
func (f finishedStore) Resync() error { return nil }

// Transformer returns what the reflector applies to the Turns that it must hold until it has all of a first list.
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

// removeTurn deletes a Turn, unless it has changed since it was read.
func removeTurn(ctx context.Context, c client.Client, t *v1alpha1.Turn) error {
	err := c.Delete(ctx, t, client.Preconditions{UID: &t.UID, ResourceVersion: &t.ResourceVersion},
		client.PropagationPolicy(metav1.DeletePropagationBackground))
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
