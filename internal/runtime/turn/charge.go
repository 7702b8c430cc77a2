package turn

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/shopspring/decimal"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/session"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// Gone is the object of a Turn that is gone, as its journal names it.
type Gone struct{ UID, Namespace, Name string }

// Children returns what the Turn of a call of a sub-agent took that a Turn whose object is gone has made, or a *tool.Pending while that
// Turn has not ended. uid is the UID of the child, empty where it is not known.
type Children func(ctx context.Context, parent Gone, call loop.Intent, uid string) (tool.Result, error)

// Abandoned is the journal of a Turn whose object is gone, and which has asked a model in the name of a Session.
type Abandoned struct {
	// Namespace of the Turn and of its Session, and Session as the Turn knew it.
	Namespace string
	Session   Session

	run *run
}

// Abandoned reads the journal of a Turn whose object is gone. It returns nil if there is nothing to charge: the journal is empty or
// is a Session's, or the Turn has no Session or has asked no model. It returns journal.ErrDamaged or journal.ErrNewer for a journal
// that this build cannot read.
func (e *Engine) Abandoned(ctx context.Context, uid string, children Children) (*Abandoned, error) {
	r, err := e.gone(ctx, uid, children)
	if err != nil || r == nil {
		return nil, err
	}
	h, f := r.past.reference(), r.past.input
	if h == nil || f == nil || f.toldOf().session == nil || len(r.past.loop.Requests) == 0 {
		return nil, nil //nolint:nilnil // because "nothing" is an answer, not an error
	}
	return &Abandoned{Namespace: r.in.Namespace, Session: Session{UID: h.SessionUID, Name: f.toldOf().session.ID}, run: r}, nil
}

// Spent ends a Turn of a sub-agent whose object is gone in its journal, unless it has ended before, and returns what it took with the
// Turns of its own sub-agents. A run of it that has not heard of the deletion buys nothing after that. It returns a *loop.Parked while
// one of these Turns has not ended, and nil for a journal without entries.
func (e *Engine) Spent(ctx context.Context, uid string, children Children) (*tool.Spent, error) {
	r, err := e.gone(ctx, uid, children)
	if err != nil || r == nil {
		return nil, err
	}
	if r.past.result == nil {
		if err := r.deleted(); err != nil {
			return nil, err
		}
	}
	t := r.said()
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

// gone opens the journal of a Turn whose object is gone; nil for one without entries, and for a Session's.
func (e *Engine) gone(ctx context.Context, uid string, children Children) (*run, error) {
	begin, epoch, err := e.bounds(ctx, uid)
	if err != nil || epoch == 0 || begin.Kind == journal.SessionTurn {
		return nil, err
	}
	// The epoch after the last one stops a run that has not heard of the deletion: its next append is refused.
	r := &run{engine: e, in: &Input{UID: uid, Epoch: epoch + 1}, life: ctx, gone: true}
	if err := r.named(ctx, begin); err != nil {
		return nil, err
	}
	r.in.Child = func(ctx context.Context, call loop.Intent, child string) (tool.Result, error) {
		return children(ctx, Gone{UID: uid, Namespace: r.in.Namespace, Name: r.in.Name}, call, child)
	}
	o := r.options()
	o.First = nil // this is no run
	if r.log, err = journal.Open(ctx, uid, r.in.Epoch, o); err != nil {
		return nil, err
	}
	r.resumes = max(0, r.past.resumes()-1)
	return r, nil
}

// bounds returns the first entry of a journal and the epoch of the last one, 0 for a journal without entries.
func (e *Engine) bounds(ctx context.Context, uid string) (first journal.Entry, epoch int64, err error) {
	last, err := e.Journal.Last(ctx, uid)
	if err != nil || last == 0 {
		return first, 0, err
	}
	first, err = e.entry(ctx, uid, 1)
	if err != nil {
		return first, 0, err
	}
	newest, err := e.entry(ctx, uid, last)
	return first, newest.Epoch, err
}

// entry returns one entry of a journal.
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

// named takes the namespace and the name of the Turn from the first entry of its journal.
func (r *run) named(ctx context.Context, first journal.Entry) error {
	if first.Kind != journal.RunStarted {
		return nil
	}
	if err := journal.Fill(ctx, r.engine.Journal, r.in.UID, &first); err != nil {
		return err
	}
	var s started
	if err := json.Unmarshal(first.Payload, &s); err != nil {
		return fmt.Errorf("failed to read entry %d (%q) of the journal of %q: %w: %w", first.Seq, first.Kind, r.in.UID, journal.ErrDamaged, err)
	}
	r.in.Namespace, r.in.Name = s.Namespace, s.Name
	return nil
}

// Charge ends the Turn as a cancelled one in its journal, unless it has ended before, and adds it to the history of its Session,
// unless that has it. It returns the place of the Turn there, and nil if s is another Session than the Turn's or has a history that
// cannot be read. It returns journal.ErrSequence or journal.ErrFenced if somebody else writes the journal at the same time:
// read it again then.
func (a *Abandoned) Charge(s Session) (*Place, error) {
	r := a.run
	r.in.Session = &s
	if r.past.result == nil {
		if err := r.deleted(); err != nil {
			return nil, err
		}
	}
	result, err := r.remembered()
	if err != nil {
		return nil, err
	}
	return result.Session, nil
}

// ChargeKnown adds a Turn whose own journal cannot be used to the history of its Session, unless that has it, and returns its place
// there. counted is true where the totals that are known of the Session have the Turn. It returns journal.ErrDamaged or
// journal.ErrNewer for a history that this build cannot read.
func (e *Engine) ChargeKnown(ctx context.Context, s Session, t session.Turn, counted bool) (*Place, error) {
	since := session.Since{Known: s.Known}
	if counted {
		since.Number = s.Known.Turns
	}
	place, err := session.Add(ctx, s.UID, t, since, journal.Options{Journal: e.Journal, Now: e.Now, Patience: e.Patience})
	if err != nil {
		return nil, fmt.Errorf("failed to keep the turn in the history of session %q: %w", s.Name, err)
	}
	return &Place{UID: s.UID, Name: s.Name, Number: place.Number, Last: place.Last, Totals: place.Totals.Whole(s.Known)}, nil
}

// deleted ends a Turn that was deleted.
func (r *run) deleted() error {
	result, err := r.finalize(StopCancelled, "the turn was deleted before its end")
	if err != nil {
		return err
	}
	return r.end(result)
}
