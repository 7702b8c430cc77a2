package memories

import (
	"context"
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/ranking"
	"github.com/capstan-dev/capstan/internal/runtime/turncontext"
)

// Finder finds memories; see store.Memories.
type Finder interface {
	FindMemories(ctx context.Context, owners []Owner, s Search, now time.Time) ([]Memory, error)
}

// Recall returns the memories of owners that match a message best, at most limit. vector is the vector of the message;
// if it is empty, only words are compared. redact removes texts that must not be in the prompt. more is true if the
// owners may have other memories.
func Recall(
	ctx context.Context, f Finder, owners []Owner, message string, vector ranking.Vector, now time.Time, limit int,
	redact func(string) string,
) (all []turncontext.Memory, more bool, err error) {
	if len(owners) == 0 || limit <= 0 {
		return nil, false, nil
	}
	found, err := f.FindMemories(ctx, owners, Search{Query(message), vector}, now)
	if err != nil {
		return nil, false, err
	}
	for _, m := range Rank(found, message, now, limit) {
		all = append(all, turncontext.Memory{
			ID: m.ID, Text: redact(m.Text), Scope: string(m.Scope),
			Freshness: freshness(now.Sub(m.Learned)), Relevance: m.Relevance, Learned: true,
		})
	}
	return all, len(found) > limit || len(found) >= MaxNewest, nil
}

// freshness returns the freshness of a memory of this age, as the API names it.
func freshness(age time.Duration) string {
	switch {
	case age < 24*time.Hour:
		return "Current"
	case age < halfLife:
		return "Recent"
	}
	return "Stale"
}
