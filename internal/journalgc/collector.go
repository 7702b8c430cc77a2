// Package journalgc deletes the journals of deleted Turns and Sessions after a retention time. Before that, it adds the
// usage of deleted Turns to their Sessions, if no executor has done so: for Turns that were deleted before their end,
// and for Turns that ended without an executor.
//
// It finds deletions in two ways:
//
//  1. The event of a watch is an immediate hint. The package asks the API server for confirmation before it acts.
//  2. A periodic sweep compares all journals, and all records with comments, with all objects. It finds deletions that
//     the watch has missed, and objects that a backup of the cluster has brought back.
package journalgc

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/metrics"
	"github.com/capstan-dev/capstan/internal/store"
	"github.com/capstan-dev/capstan/internal/translate"
)

// Store keeps journals, and the records of Turns with the comments on them.
type Store interface {
	store.Keeper
	store.RecordPages
}

// Collector retires the journals of deleted objects, and purges journals that were retired long enough ago. It
// implements manager.Runnable.
type Collector struct {
	// Store keeps the journals. To retire a journal also deletes the comments on its Turn, even if there is no journal.
	Store Store
	// Reader reads from the API server. A cache may be stale, so it does not justify the deletion of a journal.
	Reader client.Reader
	// Cache provides the watches of Turns and Sessions. It does not contain finished Turns.
	Cache cache.Cache
	// Namespaces are the namespaces of this installation; empty means all. If it is empty, a journal counts as orphaned
	// if its object is found in no namespace of this cluster, so no other installation may share the store. Otherwise
	// installations for other namespaces of the same cluster may share the store.
	Namespaces []string
	// Namespace returns the namespace of the object to which a journal belongs, or an empty string if the journal does
	// not name it. It must not be nil if Namespaces or Turns is set.
	Namespace func(ctx context.Context, uid string) (string, error)
	// Turns lists the unfinished Turns, and Reference returns the UID of the Session whose history the journal of a
	// Turn refers to, or an empty string, or journal.ErrNewer. The history of a deleted Session is kept while an
	// unfinished Turn refers to it. If Turns is nil, references are not checked.
	Turns     client.Reader
	Reference func(ctx context.Context, uid string) (string, error)
	// Charge writes the end of a deleted Turn into the journal, stores the record of the Turn, and adds the usage in
	// the journal to the Session. It does nothing for the UID of a Session. It is called before the journal is retired,
	// possibly more than once, and the journal is not retired while Charge fails. journal.ErrNewer is no failure: a
	// manager of a newer version retires the journal. If Charge is nil, the usage of deleted Turns is not added.
	Charge func(ctx context.Context, uid string) error
	// End is called instead of Charge for a Turn that had ended when it was deleted, and whose journal may lack the
	// end. It receives the end of the Turn, as translate.EndOf returns it for Labels. It does the work of Charge, with
	// the reason and the time of this end. If End is nil, Charge is called.
	End func(ctx context.Context, t *v1alpha1.Turn) error
	// Labels are the keys of the labels of Turns that records keep.
	Labels []string
	// Retention is how long a journal is kept after its object was deleted. It may be 0.
	Retention time.Duration
	// Now returns the current time. It must not be nil.
	Now func() time.Time
	Log logr.Logger

	// interval is the time between two rounds. If it is 0, roundInterval computes it from Retention.
	interval time.Duration
	suspects suspects
	// inUse holds deleted Sessions to whose history an unfinished Turn refers. The next round checks them again.
	inUse map[types.UID]suspect
	// pause is the back-off of all hints while all of them fail, which ends at resume. Both are zero before the first
	// failure.
	pause  *backoff.ExponentialBackOff
	resume time.Time
	// failedRounds is the number of rounds that have failed since the last successful one. While rounds fail, the time
	// between them doubles, because each lists all objects from the API server.
	failedRounds int
	// mayPurge is true if the last sweep has revived the retired journals whose objects exist.
	mayPurge bool
	// foreign holds the journals of other namespaces that the last sweep found.
	foreign sets.Set[string]
}

const (
	// settleTime is how long a Turn that has left the watch of unfinished Turns may take to appear among the
	// finished ones. After that, the API server is asked. A run that the deletion interrupted has stopped by then.
	settleTime = 2 * time.Second
	// maxBackOff is the longest time between two attempts to follow up a hint.
	maxBackOff = 5 * time.Minute
	// retryTime is the time between the first failed round and the next one, and the longest pause of all hints. The
	// time between failed rounds doubles at most maxDoublings times: then it is longer than any interval.
	retryTime    = time.Minute
	maxDoublings = 6
	// purgeBatch is the number of journals that one call of the store purges. purgePause is the time between two
	// batches, in which other writers can proceed.
	purgeBatch = 100
	purgePause = 50 * time.Millisecond
	// storeTimeout limits one call of the store.
	storeTimeout = time.Minute
)

// NeedLeaderElection returns true, because only one process may do this work.
func (c *Collector) NeedLeaderElection() bool { return true }

// Start works until ctx ends.
func (c *Collector) Start(ctx context.Context) error {
	unwatch, err := c.watch(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil //nolint:nilerr // because a start that was cut short by the stop has not failed
		}
		return err
	}
	c.work(ctx)
	return unwatch()
}

// work runs a round immediately and then at intervals. In between it follows up hints.
func (c *Collector) work(ctx context.Context) {
	round := time.NewTimer(0)
	defer round.Stop()
	follow := newTimer()
	defer follow.Stop()
	var due <-chan time.Time // of the first journal that was retired since the last purge
	var newest time.Time     // when the last journal was retired
	measure := time.NewTicker(measureInterval)
	defer measure.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-round.C:
			round.Reset(c.round(ctx))
		case <-c.suspects.hinted():
			c.scheduleFollowUp(follow)
		case <-follow.C:
			if c.followUp(ctx) {
				newest = c.Now()
				if due == nil { // otherwise, the purge would never be due while objects are deleted again and again
					due = time.After(c.Retention)
				}
			}
			c.scheduleFollowUp(follow)
		case <-measure.C:
			c.measure(ctx)
		case <-due:
			due = nil
			if rest := newest.Add(c.Retention).Sub(c.Now()); rest > 0 { // other journals were retired in the meantime
				due = time.After(min(rest, c.Retention)) // the retention counts if the clock was set back
			}
			c.report("purge journals", c.purge(ctx))
			c.measure(ctx)
		}
	}
}

// measureInterval is the time between two measurements of the store's size. Measurements are cheap, and a disk can fill
// within minutes.
const measureInterval = time.Minute

// newTimer returns a stopped timer.
func newTimer() *time.Timer {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}

// roundInterval returns the time between two rounds. A journal is kept for at most a quarter longer than Retention,
// or a minute if that is more.
func (c *Collector) roundInterval() time.Duration {
	if c.interval > 0 {
		return c.interval
	}
	return min(max(c.Retention/4, time.Minute), time.Hour)
}

// round sweeps, purges and measures. It returns the time until the next round.
func (c *Collector) round(ctx context.Context) time.Duration {
	for _, d := range c.inUse {
		c.suspects.hint(d.uid, d.object, c.Now())
	}
	c.inUse = nil
	swept := c.sweep(ctx)
	c.report("find the journals of deleted objects", swept)
	purged := c.purge(ctx)
	c.report("purge journals", purged)
	c.measure(ctx)
	if swept == nil && purged == nil {
		c.failedRounds = 0
		return c.roundInterval()
	}
	again := retryTime << min(c.failedRounds, maxDoublings)
	c.failedRounds++
	return min(c.roundInterval(), again)
}

// report logs a failure, unless the manager is stopping. After a failure, journals are deleted later, which only costs
// disk space.
func (c *Collector) report(what string, err error) {
	if err != nil && !errors.Is(err, context.Canceled) {
		c.Log.Error(err, "Failed to "+what)
	}
}

// purge deletes the journals whose retention time is over, in batches, so that appends can proceed. It does nothing if
// the last sweep could not find out which retired journals are in use.
func (c *Collector) purge(ctx context.Context) error {
	if !c.mayPurge {
		return nil
	}
	before := c.Now().Add(-c.Retention)
	for {
		bounded, cancel := context.WithTimeout(ctx, storeTimeout)
		n, err := c.Store.Purge(bounded, before, purgeBatch)
		cancel()
		metrics.Purged(n)
		if err != nil {
			return fmt.Errorf("failed to purge the journals that were retired by %s: %w", before.Format(time.RFC3339), err)
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

// measure updates the metrics about the size of the store.
func (c *Collector) measure(ctx context.Context) {
	bounded, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	size, err := c.Store.Size(bounded)
	if err != nil {
		c.report("measure the size of the journals", err)
		return
	}
	metrics.SetJournalSize(size)
}

// watch registers handlers for deleted Turns and Sessions, until unwatch is called.
func (c *Collector) watch(ctx context.Context) (unwatch func() error, err error) {
	var undo []func() error
	unwatch = func() error {
		var errs []error
		for _, u := range undo {
			errs = append(errs, u())
		}
		return errors.Join(errs...)
	}
	for _, o := range []client.Object{&v1alpha1.Turn{}, &v1alpha1.Session{}} {
		informer, err := c.Cache.GetInformer(ctx, o)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("failed to watch %T: %w", o, err), unwatch())
		}
		registration, err := informer.AddEventHandler(c.handler())
		if err != nil {
			return nil, errors.Join(fmt.Errorf("failed to watch %T: %w", o, err), unwatch())
		}
		undo = append(undo, func() error { return informer.RemoveEventHandler(registration) })
	}
	return unwatch, nil
}

// handler returns the event handler of a watch.
func (c *Collector) handler() toolscache.ResourceEventHandler {
	return toolscache.ResourceEventHandlerFuncs{
		UpdateFunc: func(old, o any) {
			before, ok := old.(client.Object)
			after, isObject := o.(client.Object)
			// After a gap in the watch, an object that was deleted and created again appears as an update.
			if ok && isObject && before.GetUID() != after.GetUID() {
				c.onLeave(before)
			}
		},
		DeleteFunc: func(o any) {
			if last, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
				o = last.Obj
			}
			if gone, ok := o.(client.Object); ok {
				c.onLeave(gone)
			}
		},
	}
}

// onLeave is called when an object has left the cache: a deleted Session, or a deleted or finished Turn.
func (c *Collector) onLeave(o client.Object) { c.suspects.leave(o.GetUID(), objectOf(o), c.Now()) }

// Finished must be called when a Turn has finished and has therefore left the cache. It never blocks.
func (c *Collector) Finished(uid types.UID) { c.suspects.finish(uid, c.Now()) }

// Deleted must be called when a finished Turn was deleted. It never blocks. A Turn whose journal has its end is
// recorded and charged already, because an executor does both before it writes the end into the status. Another Turn
// may have been deleted before its journal was ended.
func (c *Collector) Deleted(o client.Object) {
	gone := objectOf(o)
	if t, ok := o.(*v1alpha1.Turn); ok {
		gone.charged = !mayLackEnd(t)
		if _, _, ended := translate.ObjectEnd(t, nil); ended && !gone.charged {
			gone.end = translate.EndOf(t, c.Labels)
		}
	}
	c.suspects.hint(o.GetUID(), gone, c.Now())
}

// mayLackEnd reports whether the journal of a Turn that has ended may lack its end: the Turn ended without an executor,
// or its executor had no result of the engine, because the journal was lost or could not be used.
func mayLackEnd(t *v1alpha1.Turn) bool {
	return t.EndedWithoutExecutor() ||
		t.Status.Executor != nil && !meta.IsStatusConditionTrue(t.Status.Conditions, v1alpha1.ConditionFinalized)
}
