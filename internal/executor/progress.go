package executor

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/translate"
)

// progressInterval is the least time from the start of a run to the first write of its progress, and between two of them.
const progressInterval = 5 * time.Second

// progressDelay is how long what a run has done waits to be written where there was nothing for a while: mostly it is the
// answer, and the end follows at once, which says it, too.
const progressDelay = time.Second

// progressWriter writes the status of a Turn and returns that as written; nil if it is not the run's any more.
type progressWriter func(context.Context, *v1alpha1.Turn, turn.Progress) (*v1alpha1.Turn, error)

// progress writes into the status of a Turn what its run has done by now, from time to time: most runs end before the first
// such write. It writes one at a time, and none once stop has returned.
type progress struct {
	write progressWriter
	// life of the writes.
	life context.Context //nolint:containedctx // because a timer begins them
	end  context.CancelFunc

	mu sync.Mutex
	// turn as its last write left it.
	turn *v1alpha1.Turn
	// newest is what there is to say, told counts how often there was something, and dirty is true while it is not written.
	newest turn.Progress
	told   int
	dirty  bool
	// idle is true when the interval is over and there is nothing to write.
	idle bool
	// timer runs while there may be no write yet.
	timer *time.Timer
	// over is set when nothing is written any more.
	over   bool
	writes sync.WaitGroup
}

// begin starts the interval before the first write.
func (p *progress) begin(ctx context.Context, t *v1alpha1.Turn, write progressWriter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.life, p.end = context.WithCancel(ctx)
	p.turn, p.write = t, write
	p.timer = time.AfterFunc(progressInterval, p.due)
}

// note takes in what the run has done by now. It returns at once.
func (p *progress) note(n turn.Progress) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.newest, p.dirty = n, true
	p.told++
	if p.idle && !p.over {
		p.idle = false
		p.timer.Reset(progressDelay)
	}
}

// due writes what there is, and starts the next interval. Its timer calls it.
func (p *progress) due() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return
	}
	if !p.dirty {
		p.idle = true
		return
	}
	p.dirty = false
	current, newest := p.turn, p.newest
	p.writes.Add(1)
	defer p.writes.Done()
	p.mu.Unlock()
	written, err := p.write(p.life, current, newest)
	p.mu.Lock()
	switch {
	case written != nil:
		p.turn = written
	case err == nil, isRefused(err):
		p.over = true // it is somebody else's, or will be refused again; the end of the run is told all the same
	default:
		p.dirty = true
	}
	if !p.over {
		p.timer.Reset(progressInterval)
	}
}

// stop ends the writes, at once also where one is under way, and returns the Turn as the last one left it.
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

// wrote notes that the run itself has written the status.
func (p *progress) wrote(t *v1alpha1.Turn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.turn = t
}

// last is what the run has done, and whether that is anything at all.
func (p *progress) last() (newest turn.Progress, any bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.newest, p.told > 0
}

// tell puts what the run has done into the status of its Turn, which is then written.
func (p *progress) tell(t *v1alpha1.Turn) {
	if done, any := p.last(); any {
		translate.Progress(t, done)
	}
}

// writeProgress writes the progress of a run once.
func (r *run) writeProgress(ctx context.Context, t *v1alpha1.Turn, n turn.Progress) (*v1alpha1.Turn, error) {
	r.confirm(ctx, string(t.UID))
	written, err := r.executor.update(ctx, t, r.epoch, func(t *v1alpha1.Turn) {
		r.stamp(t, false)
		translate.Progress(t, n)
	})
	if err != nil && !errors.Is(err, context.Canceled) {
		r.executor.Log.Error(err, "Failed to write the progress of a turn", "turn", r.key())
	}
	return written, err
}
