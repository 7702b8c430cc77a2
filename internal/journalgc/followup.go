package journalgc

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capstan-dev/capstan/internal/existence"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
)

const (
	// followBatch is the maximum number of hints that are followed up before other work may be done.
	followBatch = 500
	// maxFailures is the number of failures in a row after which the other hints wait. If the store or the API server
	// is away, each attempt may take until its timeout.
	maxFailures = 3
)

// newBackOff returns waits that begin with settleTime and double up to a maximum.
func newBackOff(longest time.Duration) *backoff.ExponentialBackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval, b.Multiplier, b.RandomizationFactor = settleTime, longest, 2, 0
	return b
}

// scheduleFollowUp sets the timer to the time at which the next hint is due, but not before the end of a pause.
func (c *Collector) scheduleFollowUp(timer *time.Timer) {
	next := c.suspects.nextDue()
	if next.IsZero() {
		return
	}
	now := c.Now()
	// The maximum counts if the clock was set back.
	timer.Reset(min(max(next.Sub(now), c.resume.Sub(now), 0), maxBackOff))
}

// followUp asks the API server about hints that are due, and retires the journals of deleted objects. It handles the
// hints of one namespace after another, so that a namespace that deletes thousands of objects, or whose hints fail,
// does not delay the others. A hint that fails is due again after a back-off. If all fail, all hints pause.
func (c *Collector) followUp(ctx context.Context) (retired bool) {
	var (
		gone                   []suspect
		cause                  error
		done, failed, inSeries int
		newer                  int
	)
	due := c.suspects.due(c.Now(), followBatch)
	for i, d := range due {
		if inSeries == maxFailures || ctx.Err() != nil {
			c.suspects.putBack(due[i:])
			break
		}
		isGone, err := c.check(ctx, d)
		_, waits := errors.AsType[*loop.Parked](err)
		switch {
		case errors.Is(err, journal.ErrNewer): // which is no failure, so it must not delay the other hints
			c.suspects.retry(d, c.Now())
			newer++
		case waits: // for a Turn of a sub-agent that has not ended, which is no failure
			c.suspects.retry(d, c.Now())
		case err != nil:
			c.suspects.retry(d, c.Now())
			cause = err
			failed, inSeries = failed+1, inSeries+1
			continue
		case isGone:
			gone = append(gone, d)
		default:
			done++
		}
		inSeries = 0
	}
	if len(gone) > 0 {
		if err := c.retire(ctx, gone); err != nil {
			for _, d := range gone {
				c.suspects.retry(d, c.Now())
			}
			cause = err
			failed += len(gone)
		} else {
			retired = true
			done += len(gone)
		}
	}
	c.reportNewer(newer)
	if failed > 0 {
		c.report(fmt.Sprintf("follow up %d of %d hints about deleted objects, trying again later", failed, len(due)), cause)
	}
	c.setPause(done, failed)
	return retired
}

// setPause begins a longer pause of all hints if all attempts have failed, and ends the pause if one has succeeded.
func (c *Collector) setPause(done, failed int) {
	switch {
	case done > 0:
		c.pause, c.resume = nil, time.Time{}
	case failed > 0:
		if c.pause == nil {
			c.pause = newBackOff(retryTime)
		}
		c.resume = c.Now().Add(c.pause.NextBackOff())
	}
}

// check handles a hint up to the retirement of the journal. It reports whether the journal must be retired now.
func (c *Collector) check(ctx context.Context, d suspect) (retire bool, err error) {
	isGone, err := existence.IsGone(ctx, c.Reader, d.object.kind.Kind, d.object.key, d.uid)
	if err != nil {
		return false, fmt.Errorf("failed to check whether an object was deleted: %w", err)
	}
	if !isGone {
		return false, nil
	}
	used, err := c.isReferenced(ctx, d)
	if err != nil {
		return false, fmt.Errorf("failed to check whether the history of a session is in use: %w", err)
	}
	if used {
		if err := c.forget(ctx, string(d.uid)); err != nil {
			return false, fmt.Errorf("failed to forget what was learned in a session: %w", err)
		}
		if c.inUse == nil {
			c.inUse = map[types.UID]suspect{}
		}
		c.inUse[d.uid] = d
		return false, nil
	}
	if err := c.charge(ctx, d); err != nil {
		return false, fmt.Errorf("failed to add the usage of a deleted turn to its session: %w", err)
	}
	return true, nil
}

// charge adds the usage of a deleted Turn to its Session: see End and Charge.
func (c *Collector) charge(ctx context.Context, d suspect) error {
	switch {
	case d.object.charged || d.object.kind.Kind != "Turn":
		return nil
	case d.object.end == nil || c.End == nil:
		return c.chargeUID(ctx, string(d.uid))
	}
	bounded, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	return c.End(bounded, d.object.end)
}

// chargeUID calls Charge for a UID.
func (c *Collector) chargeUID(ctx context.Context, uid string) error {
	if c.Charge == nil {
		return nil
	}
	bounded, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	return c.Charge(bounded, uid)
}

// forget deletes what was learned in deleted Sessions whose histories are kept. It does not wait until no Turn refers
// to the histories: this may take long, and until then, Turns of other Sessions would use what was learned about users.
func (c *Collector) forget(ctx context.Context, sessions ...string) error {
	bounded, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	return c.Store.Forget(bounded, c.Now(), sessions...)
}

// retire retires the journals of deleted objects.
func (c *Collector) retire(ctx context.Context, gone []suspect) error {
	uids := make([]string, 0, len(gone))
	for _, d := range gone {
		uids = append(uids, string(d.uid))
	}
	bounded, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	if err := c.Store.Retire(bounded, c.Now(), uids...); err != nil {
		return fmt.Errorf("failed to retire journals: %w", err)
	}
	return nil
}
