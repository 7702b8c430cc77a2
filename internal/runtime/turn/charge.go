package turn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/shopspring/decimal"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/session"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// DeletedTurn identifies a Turn whose object is gone or has ended.
type DeletedTurn struct{ UID, Namespace, Name string }

// SubAgentUsageFunc returns the usage of the Turn that a call of a sub-agent has created, or a *tool.Pending error
// while that Turn has not ended. parent is the Turn that made the call; its object is gone or has ended. uid is the UID
// of the sub-agent's Turn, or empty if it is not known.
type SubAgentUsageFunc func(ctx context.Context, parent DeletedTurn, call loop.Intent, uid string) (tool.Result, error)

// ChargeableTurn is the journal of a Turn whose object is gone and whose requests to models count for a Session.
type ChargeableTurn struct {
	// Namespace is the namespace of the Turn and of its Session. Session is the Session that the journal names.
	Namespace string
	Session   Session

	run *run
}

// OpenDeletedTurn reads the journal of a Turn whose object is gone. It returns nil if there is nothing to charge: the
// journal is empty or belongs to a Session, or the Turn has no Session or has asked no model. It returns
// journal.ErrDamaged or journal.ErrNewer for a journal that this build cannot read, and a *PanicError if the engine
// panicked.
func (e *Engine) OpenDeletedTurn(ctx context.Context, uid string, children SubAgentUsageFunc) (opened *ChargeableTurn, err error) {
	defer recoverPanic(&opened, &err) // because a bug that one Turn triggers must not stop the leader
	r, err := e.openGone(ctx, uid, children)
	if err != nil || r == nil {
		return nil, err
	}
	s := r.recordedSession()
	if s == nil || !r.hasAskedModel() {
		return nil, nil //nolint:nilnil // because "nothing" is an answer, not an error
	}
	if err := r.restoreForHistory(); err != nil {
		return nil, err
	}
	return &ChargeableTurn{Namespace: r.in.Namespace, Session: *s, run: r}, nil
}

// restoreForHistory restores the text of the answer, which the history of the Session keeps. If the text is damaged,
// the history lacks it, and the usage of the Turn is charged nevertheless.
func (r *run) restoreForHistory() error {
	if err := r.restore(); err != nil && !errors.Is(err, journal.ErrDamaged) {
		return err
	}
	return nil
}

// recordedSession returns the Session that the journal names, or nil if there is none. A Turn whose input for the
// messages is not recorded has only requested vectors; its Session is the Session that its first entry names.
func (r *run) recordedSession() *Session {
	h, f := r.replayed.reference(), r.replayed.input
	switch {
	case f == nil:
		return r.in.Session
	case h == nil || f.sessionInfo().session == nil:
		return nil
	}
	return &Session{UID: h.SessionUID, Name: f.sessionInfo().session.ID}
}

// EndDeletedTurn is EndOpenTurn for a sub-agent's Turn whose object is gone. A run that has not noticed the deletion
// can then spend nothing more.
func (e *Engine) EndDeletedTurn(ctx context.Context, uid string, children SubAgentUsageFunc) (*tool.Spent, error) {
	return e.EndOpenTurn(ctx, uid, deletedTurn, children)
}

// EndOpenTurn writes the end of a sub-agent's Turn that no run continues into the journal, as cancelled with a message,
// unless the journal has an end. EndOpenTurn returns the usage of the Turn and of its own sub-agents, or a *loop.Parked
// error while the Turn of such a sub-agent has not ended. It returns nil if the journal has no entries or belongs to a
// Session, and a *PanicError if the engine panicked.
func (e *Engine) EndOpenTurn(
	ctx context.Context, uid, message string, children SubAgentUsageFunc,
) (spent *tool.Spent, err error) {
	defer recoverPanic(&spent, &err) // because a bug that one Turn triggers must not stop the leader
	r, err := e.openGone(ctx, uid, children)
	if err != nil || r == nil {
		return nil, err
	}
	if r.replayed.result == nil {
		if err := r.endAsCancelled(message); err != nil {
			return nil, err
		}
	}
	t := r.addition(r.replayed.result)
	out := &tool.Spent{Turn: r.in.Name, Usage: t.Usage}
	switch {
	case t.Cost != nil:
		amount, err := decimal.NewFromString(t.Cost.Amount)
		if err != nil {
			return nil, fmt.Errorf("failed to read the cost of %q: %w: %w", uid, journal.ErrDamaged, err)
		}
		out.Cost = &model.Cost{Amount: amount, Currency: t.Cost.Currency}
	case t.KnownCost.IsPositive():
		out.Known = &t.KnownCost
	}
	return out, nil
}

// ObjectEnd is the end of a Turn according to its object. No executor has written this end into the journal.
type ObjectEnd struct {
	// Stop and Message describe the end for the result. Reason is the reason in the record.
	Stop            Stop
	Message, Reason string
	// At is the time of the end. Epoch is the epoch of the Turn's newest binding.
	At    time.Time
	Epoch int64
	// Entries is the number of entries that the journal must have. A journal with fewer has lost some.
	Entries int64
	// Charge receives the place of the Turn in the history of its Session. It is called before EndFromObject writes the
	// end, because a Turn with a record is not charged later. Before the charge, EndFromObject writes an entry with a
	// new epoch, so that no other run can add usage. Charge may be called several times with the same place. If Charge
	// is nil, the Turn is not added to a Session.
	Charge func(place *SessionPosition) error
}

// EndFromObject writes the end of a Turn from its object into the journal, with the record of the Turn, in one append.
// A run that has not noticed the end can then spend nothing more. in names the Turn and its requester. EndFromObject
// returns false if the record must be made from the object:
//
//   - The journal has fewer entries than end.Entries, or belongs to a Session. Nothing changes.
//   - The journal has an end. It does not change, but the Session is charged.
//   - The journal has no entries. EndFromObject writes an end without a record.
//
// EndFromObject returns journal.ErrDamaged or journal.ErrNewer for a journal that this build cannot read, a *PanicError
// if the engine panicked, and a *loop.Parked error while the Turn of a sub-agent has not ended.
func (e *Engine) EndFromObject(ctx context.Context, in *Input, end ObjectEnd, children SubAgentUsageFunc) (recorded bool, err error) {
	defer recoverPanic(&recorded, &err) // because a bug that one Turn triggers must not stop the leader
	first, last, err := e.bounds(ctx, in.UID)
	if err != nil || last.Seq < end.Entries || first.Kind == journal.SessionTurn ||
		last.Kind == journal.Finalized && end.Charge == nil {
		return false, err
	}
	if last.Kind == journal.Finalized {
		in.Observer = nil // because the run that wrote the end has reported the parts of the Turn
	}
	r, err := e.openEnded(ctx, in, max(last.Epoch, end.Epoch), children)
	if err != nil {
		return false, err
	}
	r.objectEnd = &end
	if ended := r.replayed.result; ended != nil {
		if err := r.restoreForHistory(); err != nil {
			return false, err
		}
		return false, r.chargeObjectEnd(ended)
	}
	result, err := r.finalize(end.Stop, end.Message)
	if err != nil {
		return false, err
	}
	if r.log.Len() == 0 { // these entries prevent a paused run from starting the Turn
		return false, r.endWith(result, nil, nil, journal.Record{Kind: journal.RunStarted, Payload: r.started()})
	}
	if err := r.fence(last.Epoch); err != nil {
		return false, err
	}
	if err := r.chargeObjectEnd(result); err != nil {
		return false, err
	}
	return true, r.end(result)
}

// fence writes an entry with the epoch of this run before the Turn is charged to its Session. A run that has not
// noticed the end of the Turn could otherwise still record a reply, which the Session would then lack. newest is the
// epoch of the last entry that this run has found. fence writes nothing if nothing is charged, or if an earlier call
// has written the entry.
func (r *run) fence(newest int64) error {
	if !r.charges() || newest > r.objectEnd.Epoch {
		return nil
	}
	return r.record(journal.Record{Kind: journal.RunStarted, Payload: r.started()})
}

// charges reports whether the end of the Turn according to its object is charged to a Session.
func (r *run) charges() bool { return r.objectEnd.Charge != nil && r.hasAskedModel() }

// chargeObjectEnd adds a Turn that has asked a model to the history of its Session, and calls Charge. The result may
// still be missing in the journal.
func (r *run) chargeObjectEnd(result *Result) error {
	if !r.charges() {
		return nil
	}
	added, err := r.addToSession(result)
	if err != nil || added.Session == nil {
		return err
	}
	place := added.Session
	result.Session = nil // a recorded result has no position
	return r.objectEnd.Charge(place)
}

// openGone opens the journal of a Turn whose object is gone. It returns nil if the journal has no entries or
// belongs to a Session.
func (e *Engine) openGone(ctx context.Context, uid string, children SubAgentUsageFunc) (*run, error) {
	first, last, err := e.bounds(ctx, uid)
	if err != nil || last.Seq == 0 || first.Kind == journal.SessionTurn {
		return nil, err
	}
	in := &Input{UID: uid}
	if err := e.setIdentity(ctx, in, first); err != nil {
		return nil, err
	}
	if e.ObserveGone != nil {
		in.Observer = e.ObserveGone(in.Namespace, in.About.Agent)
	}
	return e.openEnded(ctx, in, last.Epoch, children)
}

// openEnded opens the journal of a Turn for a run that only writes the end of the Turn. epoch is the newest epoch of
// the Turn so far.
func (e *Engine) openEnded(ctx context.Context, in *Input, epoch int64, children SubAgentUsageFunc) (r *run, err error) {
	// The next epoch fences a run that has not noticed the end: its next append fails.
	in.Epoch = epoch + 1
	r = e.newRun(ctx, in)
	r.gone = true
	r.in.Child = func(ctx context.Context, call loop.Intent, child string) (tool.Result, error) {
		return children(ctx, DeletedTurn{UID: in.UID, Namespace: in.Namespace, Name: in.Name}, call, child)
	}
	o := r.options()
	o.First = nil // because this run must not count as a run of the Turn
	if r.log, err = journal.Open(ctx, in.UID, in.Epoch, o); err != nil {
		return nil, err
	}
	r.resumes = max(0, r.replayed.resumes()-1) // because this run does not resume the Turn
	return r, nil
}

// bounds returns the first and the last entry of a journal. Both have no sequence number if the journal has no entries.
func (e *Engine) bounds(ctx context.Context, uid string) (first, last journal.Entry, err error) {
	n, err := e.Journal.Last(ctx, uid)
	if err != nil || n == 0 {
		return first, last, err
	}
	if first, err = e.entry(ctx, uid, 1); err != nil {
		return first, last, err
	}
	last, err = e.entry(ctx, uid, n)
	return first, last, err
}

// entry returns the entry with the given sequence number.
func (e *Engine) entry(ctx context.Context, uid string, seq int64) (journal.Entry, error) {
	for found, err := range e.Journal.Read(ctx, uid, seq-1) {
		if err != nil {
			return found, fmt.Errorf("failed to read the journal of %q: %w", uid, err)
		}
		if found.Seq == seq {
			return found, nil
		}
		break
	}
	return journal.Entry{}, fmt.Errorf("failed to read the journal of %q: %w: entry %d is missing", uid, journal.ErrDamaged, seq)
}

// setIdentity sets the names, the requester, About and the Session of the Turn from the first entry of its journal.
func (e *Engine) setIdentity(ctx context.Context, in *Input, first journal.Entry) error {
	if first.Kind != journal.RunStarted {
		return nil
	}
	if err := journal.LoadPayload(ctx, e.Journal, in.UID, &first); err != nil {
		return err
	}
	var s started
	if err := json.Unmarshal(first.Payload, &s); err != nil {
		return fmt.Errorf("failed to read entry %d (%q) of the journal of %q: %w: %w",
			first.Seq, first.Kind, in.UID, journal.ErrDamaged, err)
	}
	in.Namespace, in.Name, in.Requester, in.About = s.Namespace, s.Name, s.Requester, s.About
	if session := s.Session; session != nil {
		in.Session = &Session{UID: session.UID, Name: session.Name}
	}
	return nil
}

// Charge ends the Turn in its journal as cancelled, unless the Turn has ended. It adds the Turn to the history of its
// Session, unless the history already has the Turn, and returns the place of the Turn in the history. It returns nil if
// s is not the Turn's Session or if the history cannot be read. It returns journal.ErrSequence or journal.ErrFenced if
// another process writes the journal at the same time: the caller must then read the journal again. It returns a
// *PanicError if the engine panicked.
func (a *ChargeableTurn) Charge(s Session) (place *SessionPosition, err error) {
	defer recoverPanic(&place, &err) // because a bug that one Turn triggers must not stop the leader
	r := a.run
	r.in.Session = &s
	if r.replayed.result == nil {
		if err := r.endAsCancelled(deletedTurn); err != nil {
			return nil, err
		}
	}
	result, err := r.addToSession(r.replayed.result)
	if err != nil {
		return nil, err
	}
	return result.Session, nil
}

// ChargeKnown adds a Turn whose own journal cannot be used to the history of its Session, unless the history already
// has the Turn. It returns the place of the Turn in the history. counted is true if the known totals of the Session
// include the Turn. ChargeKnown returns journal.ErrDamaged or journal.ErrNewer for a history that this build cannot
// read.
func (e *Engine) ChargeKnown(ctx context.Context, s Session, t session.Turn, counted bool) (*SessionPosition, error) {
	since := session.ExternalState{Known: s.Known}
	if counted {
		since.Number = s.Known.Turns
	}
	place, err := session.Add(ctx, s.UID, t, since, journal.Options{Journal: e.Journal, Now: e.Now, Patience: e.Patience})
	if err != nil {
		return nil, fmt.Errorf("failed to add the turn to the history of session %q: %w", s.Name, err)
	}
	return &SessionPosition{
		UID: s.UID, Name: s.Name, Number: place.Number, Last: place.Last,
		Totals: place.Totals.CombinedWith(s.Known),
	}, nil
}

// deletedTurn is the message of a Turn that was deleted.
const deletedTurn = "the turn was deleted before its end"

// endAsCancelled records the end of a Turn that no run continues.
func (r *run) endAsCancelled(message string) error {
	result, err := r.finalize(StopCancelled, message)
	if err != nil {
		return err
	}
	return r.end(result)
}
