// Package janitor forgets the journals of Turns and Sessions that are gone, a while after they went. Before that it has Turns that
// were deleted before their end charged to their Sessions.
//
// It learns of deletions in two ways. A watch hints at one at once; the API server's word is asked before anything is done.
// And every now and then all journals are held against all objects, which finds what was deleted while nobody watched.
package janitor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/metrics"
	"github.com/capstan-dev/capstan/internal/store"
)

// Janitor retires the journals of objects that are gone, and purges those that were retired long enough ago. It implements
// manager.Runnable.
type Janitor struct {
	// Store of the journals.
	Store store.Keeper
	// Reader reads from the API server. A cache may be behind, so that its word is not enough to forget a journal.
	Reader client.Reader
	// Cache whose Turns and Sessions are watched. Turns that have finished are not in it.
	Cache cache.Cache
	// Namespaces whose objects count; none for all of them. With none, a journal whose object is in no namespace is that of an object
	// that is gone, so no other installation may share the store. With some, other installations may share it whose namespaces are
	// others, of the same cluster.
	Namespaces []string
	// Namespace returns the namespace of the object that a journal is of; empty where the journal does not say. It is needed with
	// Namespaces.
	Namespace func(ctx context.Context, uid string) (string, error)
	// Turns lists the unfinished Turns. Reference returns the UID of the Session whose history the journal of a Turn refers to; empty
	// for none. The history of a Session that is gone is kept as long as an unfinished Turn refers to it. If Turns is nil, it is not.
	Turns     client.Reader
	Reference func(ctx context.Context, uid string) (string, error)
	// Charge charges a Turn that is gone to its Session, as its journal says what it took, and does nothing for the UID of a Session. It
	// is called before the journal is retired, maybe more than once. A journal is not retired while Charge fails. If Charge is nil,
	// nothing is charged.
	Charge func(ctx context.Context, uid string) error
	// Retention is how long a journal is kept after its object was deleted, from 0.
	Retention time.Duration
	// Now is the time of day.
	Now func() time.Time
	Log logr.Logger

	// interval between two rounds; 0 for what follows from Retention.
	interval time.Duration
	doubts   doubts
	// inUse are Sessions that are gone and whose history an unfinished Turn refers to. The next round looks at them again.
	inUse map[types.UID]doubt
	// foreign are the journals of other namespaces, as the last sweep has found them.
	foreign sets.Set[string]
}

const (
	// settleTime is how long a Turn that has left the watch of unfinished ones may take to appear among the finished ones,
	// before the API server is asked what became of it. A run that was cut off by the deletion has stopped by then.
	settleTime = 2 * time.Second
	// retryTime is how long after a failed round the next one follows.
	retryTime = time.Minute
	// purgeBatch is how many journals are purged at once, and purgePause the time between two batches, in which others write.
	purgeBatch = 100
	purgePause = 50 * time.Millisecond
	// storeTimeout bounds one call of the store.
	storeTimeout = time.Minute
)

// NeedLeaderElection is true: one process does it.
func (j *Janitor) NeedLeaderElection() bool { return true }

// Start works until ctx ends.
func (j *Janitor) Start(ctx context.Context) error {
	unwatch, err := j.watch(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil //nolint:nilerr // because a start that was cut short by the stop has not failed
		}
		return err
	}
	j.work(ctx)
	return unwatch()
}

// work makes a round at once and then at intervals, and follows up hints meanwhile.
func (j *Janitor) work(ctx context.Context) {
	round := time.NewTimer(0)
	defer round.Stop()
	follow := newTimer()
	defer follow.Stop()
	due := newTimer()
	defer due.Stop()
	measure := time.NewTicker(measureInterval)
	defer measure.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-round.C:
			round.Reset(j.round(ctx))
		case <-j.doubts.hinted():
			follow.Reset(settleTime)
		case <-follow.C:
			retired, left := j.followUp(ctx)
			if left {
				follow.Reset(settleTime)
			}
			if retired {
				due.Reset(j.Retention)
			}
		case <-measure.C:
			j.measure(ctx)
		case <-due.C:
			j.report("purge journals", j.purge(ctx))
			j.measure(ctx)
		}
	}
}

// measureInterval is the time between two looks at the size of the store. They are cheap, and a disk fills within minutes.
const measureInterval = time.Minute

// newTimer returns a timer that does not run.
func newTimer() *time.Timer {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}

// every is the time between two rounds: a journal is kept a quarter longer than asked for at most, or a minute.
func (j *Janitor) every() time.Duration {
	if j.interval > 0 {
		return j.interval
	}
	return min(max(j.Retention/4, time.Minute), time.Hour)
}

// round sweeps, purges and measures. It returns when the next one is due.
func (j *Janitor) round(ctx context.Context) time.Duration {
	for uid, d := range j.inUse {
		j.doubts.hint(uid, d.object, j.Now())
	}
	j.inUse = nil
	swept := j.sweep(ctx)
	j.report("look for journals of objects that are gone", swept)
	purged := j.purge(ctx)
	j.report("purge journals", purged)
	j.measure(ctx)
	if swept != nil || purged != nil {
		return min(j.every(), retryTime)
	}
	return j.every()
}

// report logs a failure, unless the stop has cut something short. A failure costs disk space only.
func (j *Janitor) report(what string, err error) {
	if err != nil && !errors.Is(err, context.Canceled) {
		j.Log.Error(err, "Failed to "+what)
	}
}

// followUp asks the API server about what was hinted at, and retires the journals of what is gone. left says that some
// hints are to be followed up later.
func (j *Janitor) followUp(ctx context.Context) (retired, left bool) {
	gone := map[types.UID]doubt{}
	for uid, d := range j.doubts.due(j.Now()) {
		isGone, err := j.isGone(ctx, uid, d)
		if err != nil {
			j.report("learn whether an object is gone", err)
			j.doubts.hint(uid, d.object, j.Now())
			continue
		}
		if !isGone {
			continue
		}
		used, err := j.isReferred(ctx, uid, d)
		if err != nil {
			j.report("learn whether the history of a session is in use", err)
			j.doubts.hint(uid, d.object, j.Now())
			continue
		}
		if used {
			if j.inUse == nil {
				j.inUse = map[types.UID]doubt{}
			}
			j.inUse[uid] = d
			continue
		}
		if err := j.charge(ctx, uid, d); err != nil {
			j.report("charge a deleted turn to its session", err)
			j.doubts.hint(uid, d.object, j.Now())
			continue
		}
		gone[uid] = d
	}
	if len(gone) > 0 {
		retired = j.retire(ctx, gone)
	}
	return retired, j.doubts.any()
}

// charge charges a Turn that is gone to its Session. One that had finished was charged before that was written.
func (j *Janitor) charge(ctx context.Context, uid types.UID, d doubt) error {
	if d.object.finished || d.object.kind.Kind != "Turn" {
		return nil
	}
	return j.chargeUID(ctx, string(uid))
}

// chargeUID charges what has a UID, if it is a Turn.
func (j *Janitor) chargeUID(ctx context.Context, uid string) error {
	if j.Charge == nil {
		return nil
	}
	bounded, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	return j.Charge(bounded, uid)
}

// retire retires the journals of objects that are gone. What fails is hinted at again, so that it does not wait for a sweep.
func (j *Janitor) retire(ctx context.Context, gone map[types.UID]doubt) bool {
	uids := make([]string, 0, len(gone))
	for uid := range gone {
		uids = append(uids, string(uid))
	}
	bounded, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	err := j.Store.Retire(bounded, j.Now(), uids...)
	if err == nil {
		return true
	}
	j.report("retire journals", err)
	for uid, d := range gone {
		j.doubts.hint(uid, d.object, j.Now())
	}
	return false
}

// purge deletes the journals whose time is over, in batches, so that appends get their turn.
func (j *Janitor) purge(ctx context.Context) error {
	before := j.Now().Add(-j.Retention)
	for {
		bounded, cancel := context.WithTimeout(ctx, storeTimeout)
		n, err := j.Store.Purge(bounded, before, purgeBatch)
		cancel()
		metrics.Purged(n)
		if err != nil {
			return fmt.Errorf("failed to purge the journals that were retired until %s: %w", before.Format(time.RFC3339), err)
		}
		if n < purgeBatch {
			return nil
		}
		pause := time.NewTimer(purgePause)
		select {
		case <-ctx.Done():
			pause.Stop()
			return ctx.Err()
		case <-pause.C:
		}
	}
}

// measure tells the metrics how much there is.
func (j *Janitor) measure(ctx context.Context) {
	bounded, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	size, err := j.Store.Size(bounded)
	if err != nil {
		j.report("learn the size of the journals", err)
		return
	}
	metrics.Journals(size)
}

// watch lets the watches of Turns and Sessions hint at deletions, until unwatch is called.
func (j *Janitor) watch(ctx context.Context) (unwatch func() error, err error) {
	var undo []func() error
	unwatch = func() error {
		var errs []error
		for _, u := range undo {
			errs = append(errs, u())
		}
		return errors.Join(errs...)
	}
	for _, o := range []client.Object{&v1alpha1.Turn{}, &v1alpha1.Session{}} {
		informer, err := j.Cache.GetInformer(ctx, o)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("failed to watch %T: %w", o, err), unwatch())
		}
		registration, err := informer.AddEventHandler(j.handler())
		if err != nil {
			return nil, errors.Join(fmt.Errorf("failed to watch %T: %w", o, err), unwatch())
		}
		undo = append(undo, func() error { return informer.RemoveEventHandler(registration) })
	}
	return unwatch, nil
}

// handler follows the objects of a watch.
func (j *Janitor) handler() toolscache.ResourceEventHandler {
	return toolscache.ResourceEventHandlerFuncs{
		UpdateFunc: func(old, o any) {
			before, ok := old.(client.Object)
			after, isObject := o.(client.Object)
			// A list after a gap in the watch shows one that was deleted and made anew as a change.
			if ok && isObject && before.GetUID() != after.GetUID() {
				j.left(before)
			}
		},
		DeleteFunc: func(o any) {
			if last, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
				o = last.Obj
			}
			if gone, ok := o.(client.Object); ok {
				j.left(gone)
			}
		},
	}
}

// left is told of an object that has left the cache: a Session that is gone, or a Turn that is gone or has finished.
func (j *Janitor) left(o client.Object) { j.doubts.leave(o.GetUID(), objectOf(o), j.Now()) }

// Finished is told of a Turn that has finished, so that it has left the cache for that. It never blocks.
func (j *Janitor) Finished(uid types.UID) { j.doubts.finish(uid, j.Now()) }

// Deleted is told of a finished Turn that is gone. It never blocks.
func (j *Janitor) Deleted(o client.Object) {
	gone := objectOf(o)
	gone.finished = true
	j.doubts.hint(o.GetUID(), gone, j.Now())
}
