package turn

import (
	"errors"

	"github.com/capstan-dev/capstan/internal/runtime/budget"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
)

// append writes all, which has records and entries about them, to the journal. If this fails for an answer, and the
// caller wants unrecorded answers, append only folds the answer, its check and the end of the Turn into the state of
// the run, and sets failure. All other writes then fail, so the run sends no request and makes no call.
func (r *run) append(records, all []journal.Record) error {
	err := r.failure
	if err == nil {
		err = r.log.Append(r.life, all...)
	}
	if err == nil || r.engine.Unrecorded == nil || isRefused(err) {
		return err
	}
	for i := range records {
		if !isOfAnswer(&records[i]) {
			return err
		}
	}
	r.failure = err
	return r.log.ApplyUnrecorded(r.life, all...)
}

// isRefused reports whether a journal that works has refused an append. For example, another run may have the Turn now.
func isRefused(err error) bool {
	_, overBudget := errors.AsType[*budget.Refusal](err)
	return overBudget || errors.Is(err, journal.ErrFenced) || errors.Is(err, journal.ErrSequence) || errors.Is(err, journal.ErrLost)
}

// isOfAnswer reports whether a record is an answer, its check or the end of a Turn.
func isOfAnswer(e *journal.Record) bool {
	switch e.Kind { //nolint:exhaustive // because something else follows from the others
	case journal.OutputChecked, journal.Finalized:
		return true
	case journal.ModelReplied:
		s, ok := e.Payload.(loop.Step)
		return ok && s.Purpose == loop.ForStep && len(s.Reply.ToolCalls) == 0
	}
	return false
}

// reportUnrecorded passes the result of the Turn, if there is one, to the caller. It returns err, the error because of
// which a journal lacks the result.
func (r *run) reportUnrecorded(err error) error {
	if r.engine.Unrecorded != nil && r.replayed.result != nil {
		r.engine.Unrecorded(r.replayed.result)
	}
	return err
}
