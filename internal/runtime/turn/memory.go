package turn

import (
	"errors"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
)

// memory counts the bytes of a run's conversation, and reserves memory for them. It never waits: if Input.Hold returns
// an error, the run ends and releases all its memory, and the Turn waits without a run. memory is not safe for
// concurrent use.
type memory struct {
	in *Input
	// recorded is the size of the journal's payloads, without those that the run has dropped. It includes input, the
	// size of the input for the messages.
	recorded, input int64
	// planned is the estimated size of a prompt that the journal does not have yet.
	planned int64
	// attached is the size of the attachments in the body of a request.
	attached int64
	// history is the size of the history of the Session. The run holds it for as long as its prompt.
	history int64
	// kept is true while Input.Keep has the memory of the newest reply.
	kept bool
}

// TooLargeError means that a conversation has more bytes than one Turn may hold.
type TooLargeError struct {
	// Message describes the problem and its remedy.
	Message string
}

// Error returns the message.
func (e *TooLargeError) Error() string { return e.Message }

// hold reserves memory for the conversation and for a number of additional bytes.
func (m *memory) hold(additional int64) error {
	if m.in.Hold == nil {
		return nil
	}
	return m.in.Hold(m.recorded + m.planned + m.attached + m.history + additional)
}

// admit returns an error if the run may not read this number of bytes of its journal. A conversation that is too
// large is read nevertheless, so that the run can end the Turn.
func (m *memory) admit(bytes int64) error {
	err := m.hold(bytes)
	if _, tooLarge := errors.AsType[*TooLargeError](err); tooLarge {
		return nil
	}
	return err
}

// admitHistory counts the bytes of the history of the Session. It returns an error if the run may not read the history.
func (m *memory) admitHistory(bytes int64) error {
	m.history = bytes
	err := m.hold(0)
	if err != nil {
		m.history = 0 // the history is not read
	}
	if large, ok := errors.AsType[*TooLargeError](err); ok {
		return &TooLargeError{Message: "the history of the session is too long for this turn: create a new Session; " + large.Message}
	}
	return err
}

// add counts an entry of the journal.
func (m *memory) add(e journal.Entry) {
	size := int64(len(e.Payload))
	m.recorded += size
	if e.Kind == journal.PreparationInput {
		m.input = size
	}
}

// dropInput counts only the given number of bytes of the input for the messages, because the run drops the rest.
func (m *memory) dropInput(kept int64) {
	if m.input > 0 {
		m.recorded, m.input = m.recorded-m.input+kept, 0
	}
}

// countPrompt counts a recorded prompt by its size in the journal, no longer by its planned size.
func (m *memory) countPrompt() error {
	m.planned = 0
	return m.hold(0)
}

// keepReply keeps the memory of a recorded reply until the next record or wait counts it. If calls follow, the reply is
// counted immediately, because the calls need memory, too.
func (m *memory) keepReply(release func(), calls bool) error {
	if m.in.Keep == nil {
		release()
		return nil
	}
	m.in.Keep(release)
	m.kept = true
	if calls {
		return m.countReply()
	}
	return nil
}

// countReply counts the newest reply as part of the conversation and releases its kept memory. It does nothing if
// no memory is kept.
func (m *memory) countReply() error {
	if !m.kept {
		return nil
	}
	m.kept = false
	err := m.hold(0)
	m.in.Keep(nil)
	return err
}
