package localrun

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/capstan-dev/capstan/internal/cli/exit"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
)

// storePatience is how long a run without a terminal waits for a journal that cannot be written. At a terminal, a
// person can make space, or stop the run.
const storePatience = 10 * time.Second

// bareEngine returns an engine that shows only why it waits for the journal.
func (j *localRun) bareEngine() *turn.Engine {
	e := &turn.Engine{Journal: j.store, Now: j.Clock(), Patience: storePatience}
	if j.Env.ErrIsTerminal {
		e.Patience = 0
	}
	// A Turn that a signal cancels is ended in the journal. So while the journal cannot be written, a signal must
	// abandon the run.
	abandonOnSignal := sync.OnceFunc(func() {
		context.AfterFunc(j.watched, func() { j.abandon(errInterrupted) })
	})
	var last atomic.Value // the last error that was printed
	e.Waiting = func(_ turn.Input, err error, _ time.Duration) {
		abandonOnSignal()
		if last.Swap(err.Error()) != err.Error() {
			j.Env.Logf("Waiting until the journal in %s can be written; Ctrl-C stops the run: %s", j.store.dir, err)
		}
	}
	return e
}

// reportUnrecorded reports that the journal lacks a result that was printed. err is the outcome of the Turn. Without
// --data-dir, the journal would be deleted anyway, so the outcome stays.
func (j *localRun) reportUnrecorded(w *localTurn, err error) error {
	cause := fmt.Errorf("%s: the journal in %s could not record this answer: %w", w.Title(), j.store.dir, w.unrecorded)
	if j.DataDir != "" {
		cause = fmt.Errorf("%s: the journal in %s could not record this answer, so capstan logs does not show it, later Turns do not "+
			"see it, and the same command may ask the model again: %w", w.Title(), j.store.dir, w.unrecorded)
	}
	switch {
	case j.life.Err() != nil:
		err = exit.WithCode(exit.Interrupted, cause)
	case err == nil && j.DataDir != "":
		err = exit.WithCode(exit.Failed, cause)
	default:
		j.Env.Logf("warning: %s", cause)
	}
	return err
}
