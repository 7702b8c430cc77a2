package memories

import (
	"context"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/turncontext"
)

// Finder finds memories: see store.Memories.
type Finder interface {
	FindMemories(ctx context.Context, owners []Owner, words []string, now time.Time) ([]Memory, error)
}

// Recall returns the memories of owners that fit a message best, at most limit, for the prompt. redact returns a text
// without what must not be in it.
func Recall(
	ctx context.Context, f Finder, owners []Owner, message string, now time.Time, limit int, redact func(string) string,
) ([]turncontext.Memory, error) {
	if len(owners) == 0 || limit <= 0 {
		return nil, nil
	}
	found, err := f.FindMemories(ctx, owners, Query(message), now)
	if err != nil {
		return nil, err
	}
	var all []turncontext.Memory
	for _, m := range Rank(found, message, now, limit) {
		all = append(all, turncontext.Memory{
			ID: m.ID, Text: redact(m.Text), Scope: string(m.Scope),
			Freshness: freshness(now.Sub(m.Learned)), Relevance: m.Relevance, Learned: true,
		})
	}
	return all, nil
}

// freshness returns the age of a memory in the words of the API.
func freshness(age time.Duration) string {
	switch {
	case age < 24*time.Hour:
		return "Current"
	case age < halfLife:
		return "Recent"
	}
	return "Stale"
}
