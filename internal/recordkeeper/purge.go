package recordkeeper

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// purge deletes the records whose retention time is over.
func (k *Keeper) purge(ctx context.Context) error {
	before := k.Now().Add(-k.Retention)
	return k.inBatches(ctx, func(ctx context.Context) (bool, error) {
		n, err := k.Store.PurgeRecords(ctx, before, batch)
		if err != nil {
			return false, fmt.Errorf("failed to purge the records of turns that ended before %s: %w", before.Format(time.RFC3339), err)
		}
		return n == batch, nil
	})
}

// trim deletes the oldest records of namespaces that have too many.
func (k *Keeper) trim(ctx context.Context) error {
	return k.inBatches(ctx, func(ctx context.Context) (bool, error) {
		n, err := k.Store.TrimRecords(ctx, k.MostPerNamespace, batch)
		if err != nil {
			return false, fmt.Errorf("failed to delete the oldest records of namespaces that have too many: %w", err)
		}
		return n > 0, nil
	})
}

// purgeTasks deletes the tasks that no longer count against a limit.
func (k *Keeper) purgeTasks(ctx context.Context) error {
	before := k.Now().Add(-keepTasks)
	return k.inBatches(ctx, func(ctx context.Context) (bool, error) {
		n, err := k.Store.PurgeTasks(ctx, before, batch)
		if err != nil {
			return false, fmt.Errorf("failed to delete the tasks that ended before %s: %w", before.Format(time.RFC3339), err)
		}
		return n == batch, nil
	})
}

// purgeMemories deletes the memories that have expired.
func (k *Keeper) purgeMemories(ctx context.Context) error {
	now := k.Now()
	return k.inBatches(ctx, func(ctx context.Context) (bool, error) {
		n, err := k.Store.PurgeMemories(ctx, now, batch)
		if err != nil {
			return false, fmt.Errorf("failed to delete expired memories: %w", err)
		}
		return n == batch, nil
	})
}

// inBatches calls do until it reports that there is no more work, with a pause after each call in which other writers
// can proceed. After each pause it follows up the Turns that have ended, because many calls may take long.
func (k *Keeper) inBatches(ctx context.Context, do func(ctx context.Context) (more bool, err error)) error {
	var errs []error
	for {
		bounded, cancel := context.WithTimeout(ctx, callTimeout)
		more, err := do(bounded)
		cancel()
		if err != nil || !more {
			return errors.Join(append(errs, err)...)
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		case <-timer.C:
		}
		if err := k.followUp(ctx); err != nil {
			errs = addFailure(errs, err)
		}
	}
}
