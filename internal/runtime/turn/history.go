package turn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/session"
)

// history refers to the part of a Session's journal that a Turn is shown. The journal of the Turn has the reference in the place
// of the messages: what was said is kept once, however many Turns are told it.
type history struct {
	// SessionUID is the UID under which the history is kept.
	SessionUID string `json:"sessionUID"`
	// First and Through are the positions of the first and the last entry. Through is 0 where the Turn is the first one.
	First   int64 `json:"first"`
	Through int64 `json:"through"`
	// SHA256 of the payloads of these entries, in hexadecimal: a run that goes on proves by it that it reads the same.
	SHA256 string `json:"sha256,omitempty"`
}

// leftOut says which messages of a prompt the journal does not repeat, because the journal of the Session has them.
type leftOut struct {
	history
	// At is the number of messages before them, and Messages is how many they are.
	At       int `json:"at"`
	Messages int `json:"messages,omitempty"`
}

// preparedRecord is a prompt as the journal keeps it.
type preparedRecord struct {
	*prepare.Prepared
	// History is nil where the prompt is whole.
	History *leftOut `json:"history,omitempty"`
}

// recordOf is a prompt as the journal keeps it: without the messages that the journal of the Session has.
func recordOf(p *prepare.Prepared, h *history) preparedRecord {
	if h == nil {
		return preparedRecord{Prepared: p}
	}
	short := *p
	at := slices.IndexFunc(p.Messages, isHistory)
	if at < 0 {
		return preparedRecord{Prepared: p, History: &leftOut{history: *h}}
	}
	short.Messages, short.Summary = slices.DeleteFunc(slices.Clone(p.Messages), isHistory), ""
	return preparedRecord{Prepared: &short, History: &leftOut{history: *h, At: at, Messages: len(p.Messages) - len(short.Messages)}}
}

// isHistory reports whether a message of a prompt was said before the Turn. They stand one after another.
func isHistory(m model.Message) bool {
	return m.Name == prepare.MessageHistory || m.Name == prepare.MessageSummary
}

// whole returns the prompt with the messages of a conversation.
func (r preparedRecord) whole(c *session.Conversation) (*prepare.Prepared, error) {
	said := prepare.HistoryMessages(c.Summary(), historyOf(c))
	if r.History.At > len(r.Messages) || len(said) != r.History.Messages {
		return nil, fmt.Errorf("%w: the prompt refers to %d messages and there are %d", session.ErrLost, r.History.Messages, len(said))
	}
	p := *r.Prepared
	p.Summary = c.Summary()
	p.Messages = slices.Insert(slices.Clone(p.Messages), r.History.At, said...)
	return &p, nil
}

// read reads what is referred to. It returns session.ErrLost where that is not there any more, or is not the same.
func (h history) read(ctx context.Context, j journal.Journal) (*session.Conversation, error) {
	c, err := session.Read(ctx, j, h.SessionUID, h.First, h.Through)
	if err == nil && c.SHA256 != h.SHA256 {
		err = fmt.Errorf("%w: entries %d to %d are not those that the turn has read", session.ErrLost, h.First, h.Through)
	}
	return c, err
}

// historyOf is what the messages are made of that show a conversation.
func historyOf(c *session.Conversation) []prepare.HistoryMessage {
	var all []prepare.HistoryMessage
	for _, m := range c.Messages() {
		all = append(all, prepare.HistoryMessage{Role: m.Role, Content: m.Content, ToolCalls: m.ToolCalls, ToolCallID: m.ToolCallID})
	}
	return all
}

// lostHistoryError is the end of a Turn whose prompt cannot be made again because the history of its Session is gone.
type lostHistoryError struct{ error }

// referenced reads the history that the Turn refers to.
func (r *run) referenced(ctx context.Context, h history) (*session.Conversation, error) {
	if c := r.conversation; c != nil {
		return c, nil
	}
	c, err := h.read(ctx, r.engine.Journal)
	switch {
	case errors.Is(err, session.ErrLost), errors.Is(err, journal.ErrDamaged):
		return nil, &lostHistoryError{fmt.Errorf("the turn cannot go on, because the history of its session is gone: %w; create a new Turn", err)}
	case err != nil:
		return nil, errors.Join(context.Cause(ctx), fmt.Errorf("failed to read the history of the session: %w", err))
	}
	r.conversation = c
	return c, nil
}

// complete puts the history back into the prompt that the journal has, once a run.
func (r *run) complete(ctx context.Context) error {
	p := &r.past
	if p.leftOut == nil || p.leftOut.Messages == 0 {
		return nil
	}
	c, err := r.referenced(ctx, p.leftOut.history)
	if err != nil {
		return err
	}
	whole, err := preparedRecord{p.prepared, p.leftOut}.whole(c)
	if err != nil {
		return &lostHistoryError{err}
	}
	p.prepared, p.leftOut.Messages = whole, 0
	r.conversation = nil // the prompt has it
	return nil
}

// reference is what the Turn refers to in its Session's journal; nil where it does not, as in a journal of an older version.
func (p *past) reference() *history {
	switch {
	case p.leftOut != nil:
		return &p.leftOut.history
	case p.input != nil:
		return p.input.History
	}
	return nil
}

// Expand returns an entry of a Turn's journal for readers: a prompt has all its messages, also those that the journal of the
// Session keeps. Where these are gone the entry stays as it is, and says what it refers to. The payload must be there.
func Expand(ctx context.Context, j journal.Journal, e journal.Entry) (journal.Entry, error) {
	if e.Kind != journal.Prepared {
		return e, nil
	}
	var r preparedRecord
	if json.Unmarshal(e.Payload, &r) != nil || r.Prepared == nil || r.History == nil || r.History.Messages == 0 {
		return e, nil //nolint:nilerr // because one that makes no sense is shown as it is
	}
	c, err := r.History.read(ctx, j)
	if err == nil {
		r.Prepared, err = r.whole(c)
	}
	switch {
	case errors.Is(err, session.ErrLost), errors.Is(err, journal.ErrDamaged), errors.Is(err, journal.ErrNewer):
		return e, nil // a reference is what there is to show then
	case err != nil:
		return e, err
	}
	r.History.Messages = 0
	e.Payload, err = json.Marshal(r)
	return e, err
}

// Refers reports whether an entry is a prompt that Expand would complete.
func Refers(e journal.Entry) bool {
	var r struct {
		History *leftOut `json:"history"`
	}
	return e.Kind == journal.Prepared && json.Unmarshal(e.Payload, &r) == nil && r.History != nil && r.History.Messages > 0
}
