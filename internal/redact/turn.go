package redact

import (
	"context"
	"maps"
	"sync"
)

// TurnRedactor redacts the texts of one Turn: it removes the credentials of the Turn's namespace and the matches of the
// rules of its Agent, and counts these matches. A nil *TurnRedactor removes nothing. TurnRedactor is safe for
// concurrent use.
type TurnRedactor struct {
	ctx               context.Context //nolint:containedctx // because it identifies the namespace for fairgate
	rules             *Rules
	removeCredentials func(text string) string

	mu    sync.Mutex
	found Matches
}

// NewTurnRedactor returns a TurnRedactor. Until ctx ends, the search of a large text alternates with the work of other
// namespaces: see fairgate. removeCredentials returns a text without credentials. It may be nil.
func NewTurnRedactor(ctx context.Context, rules *Rules, removeCredentials func(text string) string) *TurnRedactor {
	return &TurnRedactor{ctx: ctx, rules: rules, removeCredentials: removeCredentials, found: Matches{}}
}

// Redact returns a text from outside without credentials, and without the matches of the rules.
func (t *TurnRedactor) Redact(text string) string {
	if t != nil && t.removeCredentials != nil {
		text = t.removeCredentials(text)
	}
	return t.Remove(text)
}

// Remove returns a text without the matches of the rules.
func (t *TurnRedactor) Remove(text string) string {
	if t == nil || t.rules == nil {
		return text
	}
	found := Matches{}
	text = t.rules.Redact(t.ctx, text, found)
	if len(found) > 0 {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.found.add(found)
	}
	return text
}

// Take returns the number of matches of each rule since the last call.
func (t *TurnRedactor) Take() map[string]int64 {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	taken := maps.Clone(t.found)
	clear(t.found)
	return taken
}
