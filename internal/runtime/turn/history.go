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

// history refers to the part of a Session's journal that a Turn receives. The journal of the Turn has this
// reference instead of the messages, so each message is stored once, however many Turns receive it.
type history struct {
	// SessionUID is the UID of the Session, and the key of its journal.
	SessionUID string `json:"sessionUID"`
	// First and Through are the sequence numbers of the first and the last entry. Through is 0 for the first Turn
	// of the Session.
	First   int64 `json:"first"`
	Through int64 `json:"through"`
	// SHA256 is the digest of the payloads of these entries, in hexadecimal. A run that continues the Turn uses it to
	// check that it reads the same entries.
	SHA256 string `json:"sha256,omitempty"`
}

// leftOut describes the messages of a prompt that the Turn's journal omits, because the journal of the Session has
// them.
type leftOut struct {
	history
	// At is the number of messages before the omitted ones. Messages is the number of omitted messages.
	At       int `json:"at"`
	Messages int `json:"messages,omitempty"`
}

// preparedRecord is the payload of the entry for a prompt.
type preparedRecord struct {
	*prepare.Prepared
	// History is nil if the entry has the whole prompt.
	History *leftOut `json:"history,omitempty"`
}

// readPrepared reads the payload of the entry for a prompt.
func readPrepared(e journal.Entry) (*preparedRecord, error) {
	var r preparedRecord
	if err := json.Unmarshal(e.Payload, &r); err != nil {
		return nil, err
	}
	if r.Prepared == nil || len(r.Messages) == 0 {
		return nil, errors.New("the prompt has no messages")
	}
	return &r, nil
}

// recordOf returns the payload for a prompt, without the messages that the journal of the Session has.
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

// isHistory reports whether a message of a prompt belongs to the history. All such messages are adjacent.
func isHistory(m model.Message) bool {
	return m.Name == prepare.MessageHistory || m.Name == prepare.MessageSummary
}

// insert inserts the messages of the conversation into a prompt. If it fails, the prompt is unchanged.
func (l *leftOut) insert(c *session.Conversation, p *prepare.Prompt) error {
	messages := prepare.HistoryMessages(c.Summary(), historyOf(c))
	if l.At > len(p.Messages) || len(messages) != l.Messages {
		return fmt.Errorf("%w: the prompt refers to %d messages, but the history has %d", session.ErrLost, l.Messages, len(messages))
	}
	p.Summary = c.Summary()
	p.Messages = slices.Insert(slices.Clone(p.Messages), l.At, messages...)
	l.Messages = 0
	return nil
}

// read returns the conversation that h refers to. It returns session.ErrLost if the entries are gone or have
// changed.
func (h history) read(ctx context.Context, j journal.Journal, admit session.Admit) (*session.Conversation, error) {
	return h.verify(session.Read(ctx, j, h.SessionUID, h.First, h.Through, admit))
}

// verify returns a conversation and the error of reading it. The error is session.ErrLost if the conversation has
// changed since the Turn read it.
func (h history) verify(c *session.Conversation, err error) (*session.Conversation, error) {
	if err == nil && c.SHA256 != h.SHA256 {
		err = fmt.Errorf("%w: entries %d to %d have changed since the turn read them", session.ErrLost, h.First, h.Through)
	}
	return c, err
}

// historyOf converts a conversation into the history of a preparation.
func historyOf(c *session.Conversation) []prepare.HistoryMessage {
	var all []prepare.HistoryMessage
	for _, m := range c.Messages() {
		all = append(all, prepare.HistoryMessage{
			Role: m.Role, Content: m.Content, ToolCalls: m.ToolCalls, ToolCallID: m.ToolCallID, ProviderData: m.ProviderData,
		})
	}
	return all
}

// lostHistoryError ends a Turn whose prompt cannot be completed because the history of its Session is gone.
type lostHistoryError struct{ error }

// referenced returns the history that the Turn refers to. It reads the history only if the run does not hold it.
func (r *run) referenced(ctx context.Context, h history) (*session.Conversation, error) {
	if c := r.conversation; c != nil {
		return c, nil
	}
	c, err := h.read(ctx, r.engine.Journal, r.memory.admitHistory)
	switch {
	case errors.Is(err, session.ErrLost), errors.Is(err, journal.ErrDamaged):
		return nil, &lostHistoryError{fmt.Errorf(
			"the turn cannot continue, because the history of its session is gone: %w; create a new Turn", err)}
	case err != nil:
		return nil, errors.Join(context.Cause(ctx), fmt.Errorf("failed to read the history of the session: %w", err))
	}
	r.conversation = c
	return c, nil
}

// complete inserts the history into the prompt that was read from the journal, unless it was inserted before.
func (r *run) complete(ctx context.Context) error {
	p := &r.replayed
	if p.leftOut == nil || p.leftOut.Messages == 0 {
		return nil
	}
	c, err := r.referenced(ctx, p.leftOut.history)
	if err != nil {
		return err
	}
	if err := p.leftOut.insert(c, p.prompt); err != nil {
		return &lostHistoryError{err}
	}
	r.conversation = nil // the prompt now has the messages of the conversation
	return nil
}

// reference returns the Turn's reference to the journal of its Session. It returns nil if there is none, as in a
// journal of an older version.
func (p *replayed) reference() *history {
	switch {
	case p.leftOut != nil:
		return &p.leftOut.history
	case p.input != nil:
		return p.input.History
	}
	return nil
}

// Expand inserts the messages that the journal of the Session keeps into a prompt of a Turn's journal. If these
// messages are gone, or if e is not a prompt, Expand returns e unchanged. The payload of e must be filled.
func Expand(ctx context.Context, j journal.Journal, e journal.Entry) (journal.Entry, error) {
	if e.Kind != journal.Prepared {
		return e, nil
	}
	var r preparedRecord
	if json.Unmarshal(e.Payload, &r) != nil || r.Prepared == nil || r.History == nil || r.History.Messages == 0 {
		return e, nil //nolint:nilerr // because a malformed entry is shown unchanged
	}
	c, err := r.History.read(ctx, j, nil)
	if err == nil {
		err = r.History.insert(c, &r.Prompt)
	}
	switch {
	case errors.Is(err, session.ErrLost), errors.Is(err, journal.ErrDamaged), errors.Is(err, journal.ErrNewer):
		return e, nil // the reference is all that can be shown
	case err != nil:
		return e, err
	}
	e.Payload, err = json.Marshal(r)
	return e, err
}

// NeedsExpand reports whether an entry is a prompt that Expand would complete.
func NeedsExpand(e journal.Entry) bool {
	var r struct {
		History *leftOut `json:"history"`
	}
	return e.Kind == journal.Prepared && json.Unmarshal(e.Payload, &r) == nil && r.History != nil && r.History.Messages > 0
}
