//go:build unix

package openai_test

import (
	"context"
	"testing"
	"time"

	"github.com/capstan-dev/capstan/internal/netpolicy/shortagetest"
	"github.com/capstan-dev/capstan/internal/runtime/ask"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/memories"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// untilAttempt ends a shortage before an attempt with a number, counted from 1.
type untilAttempt struct {
	model.Provider
	number  int
	restore func()
}

// Generate sends a request.
func (u *untilAttempt) Generate(ctx context.Context, r *model.Request) (*model.Reply, error) {
	if u.number--; u.number == 0 {
		u.restore()
	}
	return u.Provider.Generate(ctx, r)
}

// TestEmbedWaitsForASocket checks that a request that was not sent, because this process had no free file descriptor,
// is no attempt. Memories that were stored without their vectors would have none until their owner learns again.
func TestEmbedWaitsForASocket(t *testing.T) {
	requests := 0
	c := embeddings(t, &requests, func(int, []string) *refusal { return nil })
	c.Retry = loop.Retry{MaxAttempts: 1, InitialBackoff: time.Millisecond, MaxBackoff: time.Millisecond}
	c.Provider = &untilAttempt{c.Provider, 4, shortagetest.NoFiles(t)}
	embedded, _, err := ask.Embed(t.Context(), c, "space", 0, []memories.Memory{{ID: "a", Text: "a"}}, nil)
	if err != nil || len(embedded) != 1 || requests != 1 {
		t.Errorf("Embed: %v after %d requests, %v; want the vector after one request", embedded, requests, err)
	}
}
