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
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/bytebudget"
	"github.com/capstan-dev/capstan/internal/runtime/budget"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/task"
	"github.com/capstan-dev/capstan/internal/runtime/turnrecord"
	"github.com/capstan-dev/capstan/internal/store"
	"github.com/capstan-dev/capstan/internal/translate"
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
	// keepTasks is how long a task counts against the limits of its Agent after its work has ended.
	keepTasks = task.Day + task.Hour
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
		if err != nil && s.unbound {
			k.unboundFound = false
		}
		if apierrors.IsResourceExpired(err) {
			return errors.Join(errs...) // the list took so long that its token expired; the next round starts from the beginning
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

// record ends those of the given Turns that have no record, and adds their records: see complete. Turns for which it
// fails wait for another attempt.
func (k *Keeper) record(ctx context.Context, turns map[types.UID]finishedTurn) error {
	missing, err := k.unrecorded(ctx, turns)
	if err != nil {
		for uid, f := range turns {
			k.tryAgain(uid, f)
		}
		return err
	}
	return k.complete(ctx, turns, missing)
}

// recordPage is record for a page of a round. If the store does not say which of the Turns have records, the next round
// asks again: most have one, and would take the places of those that wait for their record.
func (k *Keeper) recordPage(ctx context.Context, turns map[types.UID]finishedTurn) error {
	missing, err := k.unrecorded(ctx, turns)
	if err != nil {
		for uid, f := range turns {
			if f.unbound {
				k.tryAgain(uid, f)
			}
		}
		return err
	}
	return k.complete(ctx, turns, missing)
}

// unrecorded returns the UIDs of those of the given Turns that have no record.
func (k *Keeper) unrecorded(ctx context.Context, turns map[types.UID]finishedTurn) (missing []string, err error) {
	if len(turns) == 0 {
		return nil, nil
	}
	uids := make([]string, 0, len(turns))
	for uid := range turns {
		uids = append(uids, string(uid))
	}
	bounded, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if missing, err = k.Store.Unrecorded(bounded, uids); err != nil {
		return nil, fmt.Errorf("failed to find out which turns have records: %w", err)
	}
	return missing, nil
}

// complete ends the Turns in missing, which have no record, and adds their records. It charges the Sessions of the
// other Turns if they ended without an executor. It skips a Turn that does not exist any more. It does not make a
// record from a status if the record would be too old to be kept, or if records of Turns that ended later were deleted
// because of their number.
func (k *Keeper) complete(ctx context.Context, turns map[types.UID]finishedTurn, missing []string) error {
	charged := k.chargeRecorded(ctx, turns, missing)
	// Add the records last: a Turn with a record is not handled again, so its reservations must be closed before, even
	// if this process is killed in between.
	records, alive, ended := k.settle(ctx, turns, missing)
	missing = slices.DeleteFunc(missing, func(uid string) bool { return slices.Contains(alive, uid) })
	err := k.closeReservations(ctx, missing)
	if err == nil {
		err = k.add(ctx, records)
	}
	if err != nil {
		for _, uid := range missing {
			k.tryAgain(types.UID(uid), turns[types.UID(uid)])
		}
	}
	return errors.Join(charged, ended, err)
}

// chargeRecorded charges the Sessions of those of the given Turns that ended without an executor and that are not in
// missing, because they have a record. The charge has no effect if the Session has the Turn.
func (k *Keeper) chargeRecorded(ctx context.Context, turns map[types.UID]finishedTurn, missing []string) error {
	unrecorded := sets.New(missing...)
	var errs []error
	for uid, f := range turns {
		if !f.unbound || unrecorded.Has(string(uid)) || k.charged.has(uid) {
			continue
		}
		var t v1alpha1.Turn
		if err := k.Reader.Get(ctx, f.key, &t); err != nil {
			if !apierrors.IsNotFound(err) {
				k.tryAgain(uid, f)
				errs = addFailure(errs, fmt.Errorf("failed to read a finished turn: %w", err))
			}
			continue
		}
		if t.UID != uid {
			continue // a new Turn with the same name
		}
		var err error
		if endedUnbound(&t) {
			_, err = k.end(ctx, &t)
		}
		switch {
		case cannotEndYet(err):
			k.wait(&t, f, err)
		case err != nil:
			k.tryAgain(uid, f)
			errs = addFailure(errs, fmt.Errorf("failed to charge the session of turn %q: %w", f.key, err))
		default:
			k.charged.add(uid)
		}
	}
	return errors.Join(errs...)
}

// addFailure adds a failure to errs, unless there are enough.
func addFailure(errs []error, err error) []error {
	if len(errs) >= maxFailures {
		return errs
	}
	return append(errs, err)
}

// cannotEndYet reports whether the journal of a Turn cannot end yet, for a reason that is not a failure. A journal of a
// newer version, and its reservations in Budgets, stay open until the leader has that version.
func cannotEndYet(err error) bool {
	_, parked := errors.AsType[*loop.Parked](err)
	return parked || errors.Is(err, bytebudget.ErrShort) || errors.Is(err, journal.ErrNewer)
}

// tryAgain makes Start handle a Turn again within retryTime, or leaves it to the next round if too many Turns wait.
func (k *Keeper) tryAgain(uid types.UID, f finishedTurn) {
	if len(k.waiting) < maxHints {
		k.waiting[uid] = f
	} else if f.unbound {
		k.unboundFound = false
	}
}

// wait makes Start try again within retryTime to end the journal of a Turn, which cannot end yet because of err.
func (k *Keeper) wait(t *v1alpha1.Turn, f finishedTurn, err error) {
	k.tryAgain(t.UID, f)
	k.Log.V(1).Info("The journal of a turn cannot end yet", "turn", f.key, "requester", t.Requester(), "cause", err.Error())
}

// settle ends the journals of the Turns in missing together with their records. It returns the records of the Turns
// whose status must be the source. alive are the Turns that could not be read, or whose journal could not be ended: a
// run may still write to the journal, and close its reservations itself.
func (k *Keeper) settle(ctx context.Context, turns map[types.UID]finishedTurn, missing []string) (
	records []turnrecord.Record, alive []string, err error,
) {
	var errs []error
	for _, uid := range missing {
		f := turns[types.UID(uid)]
		if k.settled.has(types.UID(uid)) {
			continue
		}
		var t v1alpha1.Turn
		if err := k.Reader.Get(ctx, f.key, &t); err != nil {
			if !apierrors.IsNotFound(err) {
				alive = append(alive, uid)
				k.tryAgain(types.UID(uid), f)
				errs = addFailure(errs, fmt.Errorf("failed to read a finished turn: %w", err))
			}
			continue
		}
		r, ok := translate.Record(&t, k.Labels)
		if !ok || r.UID != uid {
			continue // a new Turn with the same name
		}
		recorded, err := k.end(ctx, &t)
		if err == nil && !recorded {
			err = k.charge(ctx, &t)
		}
		if err == nil && f.unbound {
			k.charged.add(t.UID)
		}
		needed := true
		if err == nil && !recorded {
			needed, err = k.needsRecord(ctx, &r)
		}
		switch {
		case cannotEndYet(err):
			alive = append(alive, uid)
			k.wait(&t, f, err)
		case err != nil:
			alive = append(alive, uid)
			k.tryAgain(types.UID(uid), f)
			errs = addFailure(errs, fmt.Errorf("failed to end turn %q: %w", f.key, err))
		case !needed:
			k.settled.add(t.UID)
		case !recorded:
			records = append(records, r)
		}
	}
	return records, alive, errors.Join(errs...)
}

// needsRecord reports whether a record would be kept. If it is not newer than a record that was deleted because of its
// age or because of the number of records in its namespace, it would be deleted at the end of the round, and made again
// in the next one.
func (k *Keeper) needsRecord(ctx context.Context, r *turnrecord.Record) (bool, error) {
	if r.Completed.Before(k.Now().Add(-k.Retention)) {
		return false, nil
	}
	until, known := k.deletedUntil[r.Namespace]
	if !known {
		var err error
		if until, err = k.readDeletedUntil(ctx, r.Namespace); err != nil {
			return false, err
		}
		k.deletedUntil[r.Namespace] = until
	}
	return r.Completed.After(until), nil
}

// readDeletedUntil calls DeletedUntil of the store.
func (k *Keeper) readDeletedUntil(ctx context.Context, namespace string) (time.Time, error) {
	bounded, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	until, err := k.Store.DeletedUntil(bounded, namespace)
	if err != nil {
		return until, fmt.Errorf("failed to find out which records were deleted: %w", err)
	}
	return until, nil
}

// RecordDeleted ends the journal of a Turn that had ended when it was deleted, charges its Session and adds its record,
// as for a Turn that still exists. t is the last state of the Turn: translate.EndOf returns the fields that are needed.
// RecordDeleted has no effect if this was done before. It returns a *loop.Parked error while a Turn of a sub-agent has
// not ended. It is safe for concurrent use.
func (k *Keeper) RecordDeleted(ctx context.Context, t *v1alpha1.Turn) error {
	r, ok := translate.Record(t, k.Labels)
	if !ok {
		return nil
	}
	recorded, err := k.end(ctx, t)
	if err != nil || recorded {
		return err
	}
	if err := k.charge(ctx, t); err != nil {
		return err
	}
	until, err := k.readDeletedUntil(ctx, r.Namespace)
	if err != nil || r.Completed.Before(k.Now().Add(-k.Retention)) || !r.Completed.After(until) {
		return err
	}
	return k.add(ctx, []turnrecord.Record{r})
}

// end calls End for a Turn. If Turns of sub-agents have not ended long after the Turn, they may never end, so end
// returns false without an error.
func (k *Keeper) end(ctx context.Context, t *v1alpha1.Turn) (recorded bool, err error) {
	if k.End == nil {
		return false, nil
	}
	bounded, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	recorded, err = k.End(bounded, t)
	at := t.Status.CompletionTime
	if _, parked := errors.AsType[*loop.Parked](err); parked && at != nil && k.Now().Sub(at.Time) > waitForChildren {
		return false, nil
	}
	return recorded, err
}

// charge calls Charge for a Turn.
func (k *Keeper) charge(ctx context.Context, t *v1alpha1.Turn) error {
	if k.Charge == nil {
		return nil
	}
	bounded, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := k.Charge(bounded, t); err != nil {
		return fmt.Errorf("failed to charge its session: %w", err)
	}
	return nil
}

// add adds records to the store.
func (k *Keeper) add(ctx context.Context, records []turnrecord.Record) error {
	for chunk := range slices.Chunk(records, page) {
		bounded, cancel := context.WithTimeout(ctx, callTimeout)
		n, err := k.Store.AddRecords(bounded, chunk...)
		cancel()
		if err != nil {
			return fmt.Errorf("failed to add the records of turns: %w", err)
		}
		k.Log.V(1).Info("Added records of turns that ended without a journal", "records", n)
	}
	return nil
}
