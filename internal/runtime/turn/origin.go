package turn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/session"
)

// Namespace returns the namespace of the Turn or the Session that a journal belongs to. It is empty if the journal
// does not name it: the journal has no entries, cannot be read, or was written by an older version.
func (e *Engine) Namespace(ctx context.Context, uid string) (string, error) {
	last, err := e.Journal.Last(ctx, uid)
	if err != nil || last == 0 {
		return "", err
	}
	found, err := e.entry(ctx, uid, 1)
	if err == nil && found.Kind == journal.SessionTurn {
		found, err = e.entry(ctx, uid, last) // the newest entry is the most complete one
	}
	if err == nil {
		err = journal.LoadPayload(ctx, e.Journal, uid, &found)
	}
	if isUnreadable(err) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	var payload struct {
		Namespace string `json:"namespace"`
	}
	if found.Kind != journal.RunStarted && found.Kind != journal.SessionTurn || json.Unmarshal(found.Payload, &payload) != nil {
		return "", nil //nolint:nilerr // because a malformed journal has no information
	}
	return payload.Namespace, nil
}

// Reference returns the UID of the Session whose history the prompt of a Turn refers to. It is empty if there is none,
// or if the journal is damaged. Reference returns journal.ErrNewer if only a newer version can read it. The entry that
// has it may be large, so Reference reserves memory for it while it reads it, unless reserve is nil.
func (e *Engine) Reference(ctx context.Context, uid string, reserve Reserve) (string, error) {
	for found, err := range e.Journal.Read(ctx, uid, 0) {
		if err != nil {
			return "", fmt.Errorf("failed to read the journal of %q: %w", uid, err)
		}
		if found.Kind != journal.PreparationInput && found.Kind != journal.Prepared {
			continue
		}
		return e.referenceIn(ctx, uid, found, reserve)
	}
	return "", nil
}

// referenceIn is Reference for the entry that has the inputs of the prompt.
func (e *Engine) referenceIn(ctx context.Context, uid string, found journal.Entry, reserve Reserve) (string, error) {
	release, err := loadPayload(ctx, e.Journal, uid, &found, reserve)
	defer release()
	if isUnreadable(err) && !errors.Is(err, journal.ErrNewer) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	var p struct {
		History *history `json:"history"`
	}
	if json.Unmarshal(found.Payload, &p) != nil || p.History == nil {
		return "", nil
	}
	return p.History.SessionUID, nil
}

// isUnreadable reports whether an error means that this build can never read a journal.
func isUnreadable(err error) bool {
	return errors.Is(err, journal.ErrDamaged) || errors.Is(err, journal.ErrNewer) || errors.Is(err, session.ErrLost)
}
