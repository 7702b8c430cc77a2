package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/capstan-dev/capstan/internal/translate"
)

const (
	// pollInterval is the time between two looks at all Turns.
	pollInterval = 500 * time.Millisecond
	// sayInterval is the time between two lines that say how far it is.
	sayInterval = 10 * time.Second
)

// loader creates Turns little by little, so that there are some at each kill, and watches them finish.
type loader struct {
	*rig
	phase string
	// most is how many there are to be, and kills how many kills they are spread over; killed counts those.
	most, kills int
	killed      *atomic.Int64

	created, unfinished atomic.Int64
}

// feed creates the Turns, and goes on with more of them if there are none left before all is done.
func (l *loader) feed(ctx context.Context, done func() bool) error {
	share := max(1, (l.most+l.kills-1)/l.kills)
	for ctx.Err() == nil {
		i := int(l.created.Load())
		if i >= l.most && done() {
			return nil
		}
		if due := share * (int(l.killed.Load()) + 1); i >= min(due, l.most) && l.unfinished.Load() > 0 {
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

// await returns when all Turns have finished, and nothing else is left to be done.
func (l *loader) await(ctx context.Context, done func() bool) error {
	said := time.Now()
	for {
		isDone, created := done(), l.created.Load() // before the Turns are counted
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
		if isDone && created >= int64(l.most) && finished == l.created.Load() {
			return nil
		}
		if time.Since(said) > sayInterval {
			said = time.Now()
			l.say("%s: %d of %d Turns have finished, %d are created", l.phase, finished, l.most, created)
		}
		if !pause(ctx, pollInterval) {
			return fmt.Errorf("%d of %d Turns have finished: %w", finished, created, context.Cause(ctx))
		}
	}
}
