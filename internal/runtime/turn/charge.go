package turn

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
)

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
func (e *Engine) Abandoned(ctx context.Context, uid string) (*Abandoned, error) {
	begin, epoch, err := e.bounds(ctx, uid)
	if err != nil || epoch == 0 || begin.Kind == journal.SessionTurn {
		return nil, err
	}
	// The epoch after the last one stops a run that has not heard of the deletion: its next append is refused.
	r := &run{engine: e, in: &Input{UID: uid, Epoch: epoch + 1}, life: ctx}
	if err := r.named(ctx, begin); err != nil {
		return nil, err
	}
	o := r.options()
	o.First = nil // this is no run
	if r.log, err = journal.Open(ctx, uid, r.in.Epoch, o); err != nil {
		return nil, err
	}
	h, f := r.past.reference(), r.past.input
	if h == nil || f == nil || f.Input.Turn.Session == nil || len(r.past.loop.Requests) == 0 {
		return nil, nil //nolint:nilnil // because "nothing" is an answer, not an error
	}
	r.resumes = max(0, r.past.resumes()-1)
	return &Abandoned{Namespace: r.in.Namespace, Session: Session{UID: h.SessionUID, Name: f.Input.Turn.Session.ID}, run: r}, nil
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

// deleted ends a Turn that was deleted.
func (r *run) deleted() error {
	result, err := r.finalize(StopCancelled, "the turn was deleted before its end")
	if err != nil {
		return err
	}
	return r.end(result)
}
