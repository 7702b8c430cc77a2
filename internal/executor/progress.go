package executor

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/turnstatus"
	"github.com/capstan-dev/capstan/internal/writeerror"
)

// progressInterval is the shortest time from the start of a run to the first write of its progress, and between two
// writes.
const progressInterval = 5 * time.Second

// progressDelay is how long new progress waits for its write if there was no progress for an interval. Such progress is
// usually the answer: the run then ends immediately, and the write of its end includes the progress.
const progressDelay = time.Second

// statusUpdate holds the changes that one write makes to the status of a running Turn.
type statusUpdate struct {
	// progress is the newest progress of the run, or nil if there is none yet.
	progress *turn.Progress
	// wait is the current wait of the run, or nil if the status already shows it.
	wait *turnstatus.RunWait
}

// progressWriter writes the status of a Turn and returns the Turn as written, or nil if it no longer belongs to the
// run.
type progressWriter func(context.Context, *v1alpha1.Turn, statusUpdate) (*v1alpha1.Turn, error)

// progress writes the progress of a run into the status of its Turn at intervals. Most runs end before the first
// write. It makes one write at a time, and none after stop has returned.
type progress struct {
	write progressWriter
	// life is the context of the writes.
	life context.Context //nolint:containedctx // because a timer starts the writes
	end  context.CancelFunc

	mu sync.Mutex
	// turn is the Turn as its last write left it.
	turn *v1alpha1.Turn
	// newest is the newest progress, notes counts the calls of note, and dirty is true while newest is not written.
	newest turn.Progress
	notes  int
	dirty  bool
	// wait is the current wait of the run. shown is the wait that the status shows. shown is nil if a write has failed,
	// because the API server may have applied that write nevertheless.
	wait  turnstatus.RunWait
	shown *turnstatus.RunWait
	// idle is true if the interval is over and there is nothing to write.
	idle bool
	// timer runs while no write is allowed yet.
	timer *time.Timer
	// over is set when nothing must be written any more.
	over   bool
	writes sync.WaitGroup
}

// begin starts the interval before the first write.
func (p *progress) begin(ctx context.Context, t *v1alpha1.Turn, write progressWriter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.life, p.end = context.WithCancel(ctx)
	p.turn, p.write, p.shown = t, write, new(turnstatus.RunWait)
	p.timer = time.AfterFunc(progressInterval, p.onTimer)
}

// note stores the newest progress of the run. It does not block.
func (p *progress) note(n turn.Progress) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.newest, p.dirty = n, true
	p.notes++
	p.writeSoon()
}

// setWait stores the current wait of the run. It does not block. A wait that ends before the next write is not written.
func (p *progress) setWait(wait turnstatus.RunWait) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wait = wait
	p.writeSoon()
}

// setProviderWait stores the name of the ModelProvider that the run waits for, or an empty name.
func (p *progress) setProviderWait(name string) { p.setWait(turnstatus.RunWait{Provider: name}) }

// writeSoon ends the idle time. The caller must hold the lock.
func (p *progress) writeSoon() {
	if p.idle && !p.over {
		p.idle = false
		p.timer.Reset(progressDelay)
	}
}

// onTimer writes the newest state of the run, if it has changed, and starts the next interval. The timer calls it.
func (p *progress) onTimer() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return
	}
	var u statusUpdate
	if p.shown == nil || *p.shown != p.wait {
		u.wait = new(p.wait)
	} else if !p.dirty {
		p.idle = true
		return
	}
	if p.dirty = false; p.notes > 0 {
		u.progress = new(p.newest)
	}
	current := p.turn
	p.writes.Add(1)
	defer p.writes.Done()
	p.mu.Unlock()
	written, err := p.write(p.life, current, u)
	p.mu.Lock()
	switch {
	case written != nil:
		if p.turn = written; u.wait != nil {
			p.shown = u.wait
		}
	case err == nil, writeerror.IsUnstorable(err):
		p.over = true // the Turn is not ours, or the write would be refused again; the end is written anyway
	default:
		p.dirty, p.shown = true, nil
	}
	if !p.over {
		p.timer.Reset(progressInterval)
	}
}

// stop ends the writes, and cancels a write that has not returned yet. It returns the Turn as the last write left it.
func (p *progress) stop() *v1alpha1.Turn {
	p.mu.Lock()
	p.over = true
	p.timer.Stop()
	p.end()
	p.mu.Unlock()
	p.writes.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.turn
}

// setTurn stores the Turn after the run itself has written its status.
func (p *progress) setTurn(t *v1alpha1.Turn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.turn = t
}

// last returns the newest progress of the run, or nil if there is none.
func (p *progress) last() *turn.Progress {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.notes == 0 {
		return nil
	}
	return new(p.newest)
}

// writeProgress writes an update into the status of the Turn.
func (r *run) writeProgress(ctx context.Context, t *v1alpha1.Turn, u statusUpdate) (*v1alpha1.Turn, error) {
	e := r.executor
	r.confirm(ctx, string(t.UID))
	written, err := e.update(ctx, t, r.epoch, func(t *v1alpha1.Turn) {
		known := r.known()
		known.Progress = u.progress
		turnstatus.ReportProgress(t, known, u.wait, e.Now())
	})
	if err != nil && !errors.Is(err, context.Canceled) {
		r.log().Error(err, "Failed to write the progress of a turn")
	}
	return written, err
}
