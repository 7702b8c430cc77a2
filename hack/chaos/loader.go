package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/capstan-dev/capstan/internal/translate"
)

const (
	// pollInterval is the time between two reads of all Turns.
	pollInterval = 500 * time.Millisecond
	// logInterval is the time between two lines of progress.
	logInterval = 10 * time.Second
)

// loader creates Turns little by little, so that some are running at each kill, and waits until they finish.
type loader struct {
	*rig
	phase string
	// total is the number of Turns to create. kills is the planned number of kills, over which the Turns are spread.
	// killed counts the kills so far.
	total, kills int
	killed       *atomic.Int64

	created, unfinished atomic.Int64
}

// feed creates the Turns. If all Turns finish before done returns true, it creates more.
func (l *loader) feed(ctx context.Context, done func() bool) error {
	share := max(1, (l.total+l.kills-1)/l.kills)
	for ctx.Err() == nil {
		i := int(l.created.Load())
		if i >= l.total && done() {
			return nil
		}
		if due := share * (int(l.killed.Load()) + 1); i >= min(due, l.total) && l.unfinished.Load() > 0 {
			pause(ctx, probeInterval)
			continue
		}
		err := l.createTurn(ctx, l.phase, fmt.Sprintf("turn-%03d", i), mixed[i%len(mixed)], i)
		if err != nil && ctx.Err() == nil {
			return err
		}
		l.unfinished.Add(1)
		l.created.Add(1)
	}
	return nil
}

// await waits until done returns true and all Turns have finished.
func (l *loader) await(ctx context.Context, done func() bool) error {
	said := time.Now()
	for {
		isDone, created := done(), l.created.Load() // read both before counting the Turns
		turns, err := l.turns(ctx, l.phase)
		if err != nil {
			return err
		}
		finished := int64(0)
		for i := range turns {
			if _, child := translate.Parent(&turns[i]); !child && turns[i].IsFinished() {
				finished++
			}
		}
		l.unfinished.Store(max(0, l.created.Load()-finished))
		if isDone && created >= int64(l.total) && finished == l.created.Load() {
			return nil
		}
		if time.Since(said) > logInterval {
			said = time.Now()
			l.logf("%s: %d of %d Turns have finished, %d have been created", l.phase, finished, l.total, created)
		}
		if !pause(ctx, pollInterval) {
			return fmt.Errorf("%d of %d Turns have finished: %w", finished, created, context.Cause(ctx))
		}
	}
}
