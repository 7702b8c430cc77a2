package turn

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// UndoMark is the payload of an entry in the journal of the Turn to undo. With it, another Turn says that it undoes a
// call, or how that ended.
type UndoMark struct {
	Step   int    `json:"step"`
	CallID string `json:"callID"`
	// TurnUID and Turn are the UID and the name of the Turn that undoes the call.
	TurnUID string `json:"turnUID"`
	Turn    string `json:"turn,omitempty"`
	// Repeatable is true in an entry of the kind UndoBegun if the tool that undoes the call may be called again.
	Repeatable bool `json:"repeatable,omitempty"`
	// Key is the idempotency key of the compensation. It is empty in entries of older versions.
	Key string `json:"idempotencyKey,omitempty"`
	// Undone is true in an entry of the kind UndoEnded if the call was undone.
	Undone bool `json:"undone,omitempty"`
	// MayHaveActed is true in an entry of the kind UndoEnded if the compensation may have taken effect, although it
	// failed. Another Turn that undoes the call must use the same key.
	MayHaveActed bool `json:"mayHaveActed,omitempty"`
}

// keyOfUndo returns the idempotency key of a compensation that an earlier Turn may have made, or an empty string. With
// another key, a server that remembers keys would make the compensation again. After a failure that certainly had no
// effect, the key differs, because the server may remember the failure, too.
func (r *run) keyOfUndo(callID string) string {
	if target := r.replayed.undo.call(callID); target != nil {
		return target.Key
	}
	return ""
}

// undoCaller is the Caller of a tool in a Turn that undoes calls. Before it calls the tool, it writes a mark into the
// journal of the other Turn: this Turn undoes the call. So at most one Turn undoes the call, even if a run is killed:
//
//  1. If the run is killed before the mark is written, nothing was called.
//  2. If the run is killed later, no other Turn makes the call while this Turn can continue, nor ever if it must not be
//     repeated. This Turn follows the rules for calls without a result.
//  3. After a failure, the mark is withdrawn only if the call certainly had no effect, or may be repeated. A mark whose
//     write has failed is withdrawn, too, because the journal may have it nevertheless.
//  4. If no run could withdraw the mark of a call that may be repeated, other Turns ignore it once this Turn has ended
//     or is gone.
type undoCaller struct {
	run   *run
	inner tool.Caller
}

// Check implements tool.Checker.
func (c *undoCaller) Check(ctx context.Context) error {
	if inner, ok := c.inner.(tool.Checker); ok {
		return inner.Check(ctx)
	}
	return nil
}

// Call implements tool.Caller.
func (c *undoCaller) Call(ctx context.Context, call tool.Call) (tool.Result, error) {
	target := c.run.replayed.undo.call(call.CallID)
	if target == nil { // impossible: all calls of the loop come from the plan
		return tool.Result{}, &tool.Error{Class: tool.Unavailable, Message: "this call undoes no call"}
	}
	begun := UndoMark{Repeatable: call.Repeatable, Key: call.IdempotencyKey}
	if refused, err := c.run.mark(ctx, target, begun); err != nil {
		if other, ok := errors.AsType[*undoneError](err); ok {
			return other.mark.result(), nil // the older calls may be undone, too
		}
		if !refused {
			m := UndoMark{Key: begun.Key, MayHaveActed: call.Attempt > 1}
			c.run.recordOutcome(target, m) //nolint:contextcheck // because the mark is withdrawn even if the call's time is over
		}
		return tool.Result{}, err
	}
	result, err := c.inner.Call(ctx, call)
	noEffect := err != nil && hadNoEffect(ctx, err)
	if err == nil || noEffect || call.Repeatable {
		m := UndoMark{Key: begun.Key, Undone: err == nil, MayHaveActed: err != nil && (!noEffect || call.Attempt > 1)}
		c.run.recordOutcome(target, m) //nolint:contextcheck // because the mark is written even if the call's time is over
	}
	return result, err
}

// hadNoEffect reports whether this attempt of a failed call certainly had no effect. Once ctx has ended, only the class
// Unavailable is certain, because the tool was then not reached.
func hadNoEffect(ctx context.Context, err error) bool {
	class := tool.AsError(err).Class
	switch {
	case tool.IsUncertain(err), class == tool.Timeout, class == tool.OutcomeUnknown:
		return false
	}
	return ctx.Err() == nil || class == tool.Unavailable
}

// undoneError says that another Turn has undone the call, and has written this mark.
type undoneError struct{ mark *callMark }

// Error implements error.
func (e *undoneError) Error() string { return "the tool was not called: " + e.mark.reason() }

// maxMarks is the maximum number of attempts to write a mark while other Turns write to the same journal.
const maxMarks = 32

// mark writes into the journal of the other Turn that this Turn is about to undo a call. begun has the idempotency key
// of the compensation, and whether the tool may be called again. Every error is a *tool.Error, or an *undoneError if
// another Turn has undone the call.
//
// refused is true if the mark was certainly not written, because another Turn has undone the call or may have, or
// because the journal is gone. Otherwise, the journal could not be read or written, and may have the mark nevertheless.
func (r *run) mark(ctx context.Context, target *UndoCall, begun UndoMark) (refused bool, err error) {
	for range maxMarks {
		if err = r.tryMark(ctx, target, journal.UndoBegun, begun); !errors.Is(err, journal.ErrSequence) {
			break
		}
	}
	if err == nil {
		return false, nil
	}
	if undone, ok := errors.AsType[*undoneError](err); ok {
		return true, undone
	}
	if refusal, ok := errors.AsType[*tool.Error](err); ok {
		return true, refusal
	}
	return false, &tool.Error{
		Class: tool.Unavailable, Err: err,
		Message: "the tool was not called, because the journal of the turn to undo could not be written",
	}
}

// outcomeTimeout is the maximum time for writing the outcome of a compensation.
const outcomeTimeout = 10 * time.Second

// recordOutcome writes the outcome of a compensation into the journal of the other Turn. If that fails, the mark stays,
// and no other Turn undoes the call, unless the tool may be called again and this Turn has ended. An outcome without a
// mark means nothing. But if the write of the mark has failed, the outcome takes the sequence number of the mark, so
// that a write of the mark that is still under way fails.
func (r *run) recordOutcome(target *UndoCall, m UndoMark) {
	ctx, cancel := context.WithTimeout(r.life, outcomeTimeout)
	defer cancel()
	for range maxMarks {
		if err := r.tryMark(ctx, target, journal.UndoEnded, m); !errors.Is(err, journal.ErrSequence) {
			return
		}
	}
}

// tryMark reads the marks in the journal of the other Turn, and appends a mark if they allow it. The sequence numbers
// of the journal make sure that only one of several Turns succeeds. For the others, tryMark returns
// journal.ErrSequence, and they must try again.
func (r *run) tryMark(ctx context.Context, target *UndoCall, kind journal.Kind, m UndoMark) error {
	uid := r.replayed.undo.TurnUID
	m.Step, m.CallID, m.TurnUID, m.Turn = target.Step, target.CallID, r.in.UID, r.in.Name
	reader, err := r.readMarks(ctx)
	if err != nil {
		return err
	}
	if open := reader.openMark(target.Step, target.CallID); open != nil && m.Repeatable && open.TurnUID != r.in.UID {
		ended, err := r.hasEnded(ctx, &open.UndoMark)
		if err != nil {
			return &tool.Error{
				Class: tool.Unavailable, Err: err,
				Message: fmt.Sprintf("the tool was not called, because it is unknown whether the Turn %q, "+
					"which has tried to undo the call, has ended", open.Turn),
			}
		}
		reader.setAbandoned(open, ended)
	}
	existing := reader.blockingMark(target.Step, target.CallID, m.Repeatable)
	switch {
	case reader.seq == 0:
		return &tool.Error{
			Class: tool.Unavailable, Message: "the tool was not called, because the journal of the turn to undo was deleted",
		}
	case kind == journal.UndoEnded: // beside the mark of another Turn, it means nothing, but a late mark then fails
	case existing != nil && existing.TurnUID != r.in.UID && existing.ended:
		return &undoneError{existing}
	case existing != nil && existing.TurnUID != r.in.UID:
		return &tool.Error{Class: tool.Unavailable, Message: "the tool was not called: " + existing.reason()}
	case existing != nil && !existing.ended:
		return nil // an earlier run of this Turn has written the mark
	case !reader.allowsKey(target.Step, target.CallID, m.Key):
		return &tool.Error{
			Class:   tool.Unavailable,
			Message: "the tool was not called, because another turn has tried to undo the call since this turn began",
		}
	}
	log, err := journal.Open(ctx, uid, reader.epoch, journal.Options{
		Journal: r.engine.Journal, Namespace: r.in.Namespace, Now: r.engine.Now, After: reader.seq, Patience: r.engine.Patience,
		Apply: func(journal.Entry) error { return nil },
	})
	switch {
	case errors.Is(err, journal.ErrFenced), err == nil && log.Len() != reader.seq:
		return journal.ErrSequence // another entry was added meanwhile
	case err != nil:
		return err
	}
	err = log.Append(ctx, journal.Record{Kind: kind, Payload: m})
	if errors.Is(err, journal.ErrFenced) {
		return journal.ErrSequence
	}
	return err
}

// readMarks reads the marks in the journal of the other Turn. It starts with the last entry that this run knows, to
// find out whether the journal was deleted since. The result is empty if there is no journal.
func (r *run) readMarks(ctx context.Context) (*UndoReader, error) {
	uid, reader := r.replayed.undo.TurnUID, r.marks
	if reader == nil {
		reader = NewUndoReader()
	}
	r.marks = nil // because after an error, the reader may be past an entry that it has not applied
	known, exists := reader.seq, false
	for e, err := range r.engine.Journal.Read(ctx, uid, max(known-1, 0)) {
		switch {
		case err != nil:
		case e.Seq <= known:
		case isMark(e.Kind):
			err = r.readEntry(ctx, uid, &e, reader)
		default:
			reader.skip(&e)
		}
		if err != nil {
			return nil, err
		}
		exists = true
	}
	if !exists {
		return NewUndoReader(), nil
	}
	r.marks = reader
	return reader, nil
}
