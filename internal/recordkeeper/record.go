package recordkeeper

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/bytebudget"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/turnrecord"
	"github.com/capstan-dev/capstan/internal/translate"
)

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
