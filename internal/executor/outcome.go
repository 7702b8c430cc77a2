package executor

import (
	"errors"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
)

// outcome says how an attempt to run a Turn ended.
type outcome int

const (
	// tryAgain means that the attempt failed, and the Turn did not: the run makes another attempt. A run that was
	// abandoned hands the Turn back instead.
	tryAgain outcome = iota
	// ended means that the engine has a result.
	ended
	// cutOff means that the Turn ends with the data of its status, because its journal cannot be continued.
	cutOff
	// superseded means that the Turn no longer belongs to this run.
	superseded
	// parked means that the Turn waits for approvals, for the Turns of sub-agents, or for a Budget.
	parked
	// suspended means that the Turn was suspended. It may be parked at the same time.
	suspended
	// outOfSpace means that the Turn waits for space for its journal.
	outOfSpace
	// notReady means that the Turn waits for an object that it needs to run.
	notReady
	// handedBack means that another run must continue the Turn.
	handedBack
)

// outcomeOf classifies the end of an attempt. suspends reports whether the Turn's desired state is Suspended. full
// reports whether the Turn must wait for space for its journal.
func outcomeOf(result *turn.Result, err error, suspends, full bool) outcome {
	var (
		cut         *cutOffError
		missing     *notReadyError
		waits       *loop.Parked
		notBegun    *handBackError
		interrupted = errors.Is(err, loop.ErrInterrupted)
	)
	switch {
	case result != nil:
		return ended
	case errors.As(err, &cut):
		return cutOff
	case errors.Is(err, errSuperseded):
		return superseded
	case errors.As(err, &waits) && suspends, interrupted && suspends:
		return suspended
	case interrupted && full:
		return outOfSpace
	case waits != nil: // errors.As has set waits above, even if suspends is false
		return parked
	case errors.As(err, &missing):
		return notReady
	case interrupted, errors.As(err, &notBegun), errors.Is(err, journal.ErrFenced), errors.Is(err, journal.ErrNewer):
		// Handing back changes nothing if the Turn is bound elsewhere. If it is still bound here, the next binding
		// gives it an epoch that is newer than the journal's.
		return handedBack
	}
	return tryAgain
}
