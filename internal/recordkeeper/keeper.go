// Package recordkeeper completes and deletes the records of Turns. An executor writes the record of a Turn together
// with the last entry of the Turn's journal. If a Turn ended without an executor, its status shows the end but its
// journal does not. This package then charges the Turn's Session and ends the journal in the same way as an executor.
//
// In four cases the journal cannot be the source of the record: no executor has run the Turn, its journal is lost or
// cannot be read, Turns of its sub-agents do not end, or an older version of Capstan has ended the Turn. The package
// then charges the Session and makes the record from the Turn's status.
//
// The package also deletes old records, tasks that no longer count against a limit, and expired memories, even if no
// process evaluates Turns or learns from them.
//
// It works in the background of the leader, so no controller waits for the store:
//
//  1. A controller that watches Turns calls Finished for each Turn that has finished. This is a hint: the package then
//     asks the store whether the Turn has a record.
//  2. A periodic round compares all finished Turns with all records. It finds the Turns whose hints were lost.
//
// A Turn that ended without an executor can have a record, but be missing in its Session: an executor writes the end
// into the journal, with the record, and charges the Session after that. If it is killed in between, the controller
// later ends the Turn. So the package also charges the Sessions of such Turns, once in the life of a process: the first
// round finds those of earlier leaders, and hints find the others. If hints are lost, the next round finds their Turns.
//
// If a Turn is deleted before a hint or a round is handled, package journalgc calls RecordDeleted with the last state
// of the Turn. If it does not know this state, it ends the journal as that of a Turn that was deleted while it ran. A
// Turn without a journal has used nothing and then has no record.
//
// A Turn that ended without an executor may still have a reservation in Budgets, if its run was killed during a request
// and no later run continued the Turn. The package also charges these reservations.
package recordkeeper

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/identities"
	"github.com/capstan-dev/capstan/internal/runtime/budget"
	"github.com/capstan-dev/capstan/internal/runtime/task"
	"github.com/capstan-dev/capstan/internal/store"
)

// Store keeps the records of Turns, the tasks that followed their end, and the memories that were learned from them.
type Store interface {
	store.Records

	// PurgeTasks is the method of store.Tasks.
	PurgeTasks(ctx context.Context, before time.Time, limit int) (purged int, err error)

	// PurgeMemories is the method of store.Memories.
	PurgeMemories(ctx context.Context, now time.Time, limit int) (purged int, err error)
}

// Keeper completes and deletes records, and deletes old tasks and memories. It implements manager.Runnable.
type Keeper struct {
	// Store keeps the records, the tasks and the memories.
	Store Store
	// Ledger holds the reservations of Turns in Budgets. If Ledger is nil, there are no reservations.
	Ledger budget.Ledger
	// End ends the journal of a Turn that has ended, together with its record, and charges the Session of the Turn if
	// no executor has done so, also if the journal has its end already. It returns false if the status must be the
	// source of the record. If End is nil, the status is the source of all records.
	End func(ctx context.Context, t *v1alpha1.Turn) (recorded bool, err error)
	// Charge adds the usage in the status of a Turn to its Session, unless the Session already contains it. It is
	// called before the record is made from the status, possibly more than once. If Charge is nil, nothing is charged.
	Charge func(ctx context.Context, t *v1alpha1.Turn) error
	// Reader reads from the API server.
	Reader client.Reader
	// Namespaces are the namespaces of this installation; empty means all.
	Namespaces []string
	// Labels are the keys of the labels of Turns that records keep.
	Labels []string
	// Retention is how long a record is kept after the end of its Turn. It may be 0.
	Retention time.Duration
	// MostPerNamespace is the number of records that are kept for each namespace.
	MostPerNamespace int
	// Now returns the current time. It must not be nil.
	Now func() time.Time
	Log logr.Logger

	mu    sync.Mutex
	hints map[types.UID]finishedTurn
	// hintLost is true if a hint of a Turn with a Session that ended without an executor was dropped, or if the watch
	// may have missed such a Turn.
	hintLost bool
	// waiting holds the Turns whose journals cannot end yet, for a reason that is not a failure, and those for which an
	// attempt has failed. Only the goroutine of Start uses it.
	waiting map[types.UID]finishedTurn
	// again has a value when the Turns in waiting should be tried again. It is nil before Start. Only the goroutine of
	// Start uses it.
	again <-chan time.Time
	// unboundFound is true if a round has found all Turns for which unbound is true. Hints name the later ones, so
	// rounds need not read all these Turns again unless hintLost is true. Only the goroutine of Start uses it.
	unboundFound bool
	// settled holds the Turns that need no record, because it would be too old to be kept, or because the namespace has
	// too many records that are newer. charged holds the Turns whose Sessions need not be charged again although the
	// Turns may have ended without an executor. Only the goroutine of Start uses both.
	settled, charged remembered
	// deletedUntil holds the results of Store.DeletedUntil since the beginning of the last round, by namespace. Only
	// the goroutine of Start uses it.
	deletedUntil map[string]time.Time
	// hinted holds a token if hints were added since the last receive.
	hinted chan struct{}
	once   sync.Once
}

const (
	// maxHints is the maximum number of pending hints. If a hint is dropped, the next round finds its Turn.
	maxHints = 10_000
	// settleTime is the time from the first pending hint to the request to the store for the records of all pending
	// hints. So one request covers many Turns, and a hint does not wait for later ones.
	settleTime = 2 * time.Second
	// roundInterval is the time from a round to the next one. retryTime is the time after the first round that failed,
	// and between two attempts to handle the Turns that wait. While rounds fail, the time between them doubles, because
	// each lists all finished Turns from the API server. It doubles at most maxDoublings times: then it is longer than
	// roundInterval.
	roundInterval, retryTime = time.Hour, time.Minute
	maxDoublings             = 6
	// page is the number of Turns whose records one request to the store looks up or adds.
	page = 500
	// batch is the number of records, tasks or memories that one call of the store deletes. pause is the time between
	// two batches.
	batch, pause = 500, 50 * time.Millisecond
	// keepTasks is how long a task is kept after its work has ended. It counts against the limits of its Agent for a
	// day. It is kept for longer, so that it still counts after a clock that was hours ahead for a while.
	keepTasks = 2 * task.Day
	// waitForChildren is how long after the end of a Turn its record waits for the Turns of its sub-agents to end.
	waitForChildren = time.Hour
	// maxFailures bounds the failures that one part of a round, or one attempt for many Turns, reports.
	maxFailures = 10
	// callTimeout limits one call of the store or the API server.
	callTimeout = time.Minute
)

// NeedLeaderElection returns true, because only one process does this work.
func (k *Keeper) NeedLeaderElection() bool { return true }

func (k *Keeper) init() {
	k.once.Do(func() {
		k.hints, k.waiting = map[types.UID]finishedTurn{}, map[types.UID]finishedTurn{}
		k.settled, k.charged = newRemembered(), newRemembered()
		k.deletedUntil = map[string]time.Time{}
		k.hinted = make(chan struct{}, 1)
	})
}

// takeWaiting returns all Turns that wait, and removes them.
func (k *Keeper) takeWaiting() map[types.UID]finishedTurn {
	all := k.waiting
	k.waiting = map[types.UID]finishedTurn{}
	return all
}

// alarm is a timer that can be brought forward but not put off, so that work happens although it is requested again
// and again.
type alarm struct {
	*time.Timer
	at time.Time // zero if the alarm is not set
}

// newAlarm returns an alarm that is not set.
func newAlarm() *alarm {
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	return &alarm{Timer: timer}
}

// within sets the alarm to a time from now, unless it is due earlier.
func (a *alarm) within(d time.Duration) {
	at := time.Now().Add(d) //nolint:forbidigo // because a duration is measured, not a time of day
	if a.at.IsZero() || at.Before(a.at) {
		a.at = at
		a.Reset(d)
	}
}

// done notes that the alarm was received.
func (a *alarm) done() { a.at = time.Time{} }

// Start handles hints and runs rounds until ctx ends.
func (k *Keeper) Start(ctx context.Context) error {
	k.init()
	round, settle := newAlarm(), newAlarm()
	round.within(0)
	again := time.NewTicker(retryTime)
	k.again = again.C
	defer round.Stop()
	defer settle.Stop()
	defer again.Stop()
	failedRounds := 0
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-k.hinted:
			settle.within(settleTime)
		case <-settle.C:
			settle.done()
			k.report("record finished turns", k.record(ctx, k.takeHints()))
		case <-k.again:
			k.report("record finished turns", k.record(ctx, k.takeWaiting()))
		case <-round.C:
			round.done()
			if err := k.Round(ctx); err != nil {
				k.report("keep the records of turns", err)
				round.within(min(retryTime<<min(failedRounds, maxDoublings), roundInterval))
				failedRounds++
				continue
			}
			failedRounds = 0
			round.within(roundInterval)
		}
	}
}

// report logs a failure, unless the process is stopping. The next round tries again, and Turns that wait are tried
// again within retryTime. They do not bring the next round forward, because it lists all finished Turns.
func (k *Keeper) report(what string, err error) {
	if err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, store.ErrClosed) {
		k.Log.Error(err, "Failed to "+what)
	}
}

// Round adds all missing records, except those of Turns whose journals cannot end yet, charges the Sessions of Turns
// that ended without an executor, and deletes records that are too old or too many. It also deletes old tasks and
// expired memories. If one part fails, the other parts still run.
func (k *Keeper) Round(ctx context.Context) error {
	k.init()
	k.settled.beginRound()
	k.charged.beginRound()
	clear(k.deletedUntil)
	namespaces := k.Namespaces
	if len(namespaces) == 0 {
		namespaces = []string{metav1.NamespaceAll}
	}
	k.mu.Lock()
	all := finished
	if !k.unboundFound || k.hintLost {
		all, k.unboundFound, k.hintLost = selections, true, false
	}
	k.mu.Unlock()
	var errs []error
	for _, namespace := range namespaces {
		for _, s := range all {
			errs = append(errs, k.repair(ctx, namespace, s))
		}
	}
	return errors.Join(append(errs, k.purge(ctx), k.trim(ctx), k.purgeTasks(ctx), k.purgeMemories(ctx))...)
}

// repair adds the missing records of the Turns of a namespace that s selects. Of Turns that have a record, it reads
// only the metadata, unless s.unbound is true. If it fails for a page of Turns, it continues with the next page. It
// calls followUp after each page, because many pages, or the pages of many namespaces, may take long.
func (k *Keeper) repair(ctx context.Context, namespace string, s selection) error {
	var errs []error
	for next := ""; ; {
		list := &metav1.PartialObjectMetadataList{}
		list.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("TurnList"))
		err := k.Reader.List(ctx, list, client.InNamespace(namespace), client.Limit(page), client.Continue(next),
			client.MatchingFieldsSelector{Selector: s.selector})
		if token := identities.RenewedToken(err); token != "" && token != next {
			next = token // hints name the Turns that end during the list
			continue
		}
		if err != nil && s.unbound {
			k.unboundFound = false
		}
		if apierrors.IsResourceExpired(err) {
			return errors.Join(errs...) // the next round starts from the beginning
		}
		if err != nil {
			return errors.Join(append(errs, fmt.Errorf("failed to list the finished turns: %w", err))...)
		}
		turns := map[types.UID]finishedTurn{}
		for i := range list.Items {
			turns[list.Items[i].UID] = finishedTurn{client.ObjectKeyFromObject(&list.Items[i]), s.unbound}
		}
		if err := k.recordPage(ctx, turns); err != nil && ctx.Err() != nil {
			return err
		} else if err != nil {
			errs = addFailure(errs, err)
		}
		if err := k.followUp(ctx); err != nil {
			errs = addFailure(errs, err)
		}
		if next = list.Continue; next == "" {
			return errors.Join(errs...)
		}
	}
}

// followUp handles the hints during a round, and tries to end the journals of the Turns that wait if that is due.
func (k *Keeper) followUp(ctx context.Context) error {
	err := k.record(ctx, k.takeHints())
	select {
	case <-k.again:
		err = errors.Join(err, k.record(ctx, k.takeWaiting()))
	default:
	}
	return err
}

// closeReservations charges the reserved requests of Turns that have ended without an executor, because no run will
// report how such a request ended. The deletion of the journal also charges them, but may be much later.
func (k *Keeper) closeReservations(ctx context.Context, turns []string) error {
	if k.Ledger == nil || len(turns) == 0 {
		return nil
	}
	bounded, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := k.Ledger.CloseReservations(bounded, turns...); err != nil {
		return fmt.Errorf("failed to close the reservations of turns that have ended: %w", err)
	}
	return nil
}
