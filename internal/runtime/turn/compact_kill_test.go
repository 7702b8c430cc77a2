//go:build unix

package turn_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// biller is a model that bills each request on arrival, whether or not the reply is received. It calls a tool three
// times, which makes the conversation long enough for a summary, and then answers.
type biller struct {
	billed    int64
	requests  int
	summaries int
	// killAt is the number of the request that kills the process, from 1. 0 means that no request kills it.
	killAt int
	kill   func()
}

// Generate bills one token for every six characters. The engine's estimate for a request without a reply is at
// least as high.
func (b *biller) Generate(ctx context.Context, r *model.Request) (*model.Reply, error) {
	b.requests++
	chars, looked := 0, 0
	for _, m := range r.Messages {
		chars += len(m.Content)
		looked += strings.Count(m.Content, "I look.")
		looked += strings.Count(m.Content, "It looked once.") * 2 // a summary counts as two replies
	}
	usage := model.Usage{InputTokens: int64(chars / 6), OutputTokens: 5}
	b.billed += usage.InputTokens
	if b.requests == b.killAt {
		b.kill()
		<-ctx.Done()
		return nil, &model.Error{Kind: model.Cancelled, Message: "killed", Err: ctx.Err()}
	}
	switch {
	case r.Messages[0].Name == "compaction":
		b.summaries++
		return &model.Reply{Text: "It looked once.", FinishReason: model.FinishStop, Usage: usage}, nil
	case looked < 3:
		return &model.Reply{
			Text: "I look.", FinishReason: model.FinishToolCalls, Usage: usage,
			ToolCalls: []model.ToolCall{{ID: "c" + fmt.Sprint(looked), Name: "find", Arguments: fmt.Sprintf(`{"n":%d}`, looked)}},
		}, nil
	}
	return &model.Reply{Text: "Done.", FinishReason: model.FinishStop, Usage: usage}, nil
}

// summarized runs a Turn with a summary in two processes. The first process is killed at an append or within a request,
// and the second continues the Turn. summarized returns the number of input tokens that the Turn reports, and the
// number of appends of the first process. at is the number of the append that kills the first process, or -1. If after
// is true, this append takes effect.
func summarized(t *testing.T, j journal.Journal, b *biller, at int, after bool) (reported int64, appends int) {
	t.Helper()
	in := input(loop.Candidate{ProviderName: "p0", Model: "m", Provider: b, Retry: loop.Retry{MaxAttempts: 1}, ContextWindow: 2000})
	in.Context = loop.ContextPolicy{Compact: true, CompactPercent: 80}
	find := named("find", tool.ReadOnly, saying(strings.Repeat("long ", 700)))
	find.Schema = json.RawMessage(`{"type":"object"}`)
	in.Tools = []tool.Tool{find}
	life, kill := context.WithCancelCause(t.Context())
	defer kill(nil)
	process := &mortal{Journal: j, kill: kill, left: at, after: after}
	b.kill = func() {
		process.dead = true
		kill(errKilled)
	}
	result, err := engine(process).Run(life, new(in))
	if err != nil {
		if !errors.Is(err, errKilled) {
			t.Fatal(err)
		}
		in.Epoch = 2
		result = mustRun(t, j, in)
	}
	if result.Counts.Compactions == 0 {
		t.Fatalf("%+v: nothing was summarized", result.Counts)
	}
	return result.Record.Usage.InputTokens, process.appends
}

// TestUsageAfterAKillAroundACompaction kills the process at every append and within every request. All billed tokens
// must be reported.
func TestUsageAfterAKillAroundACompaction(t *testing.T) {
	alive := &biller{}
	reported, appends := summarized(t, &journaltest.Store{}, alive, -1, false)
	if reported != alive.billed || alive.summaries == 0 {
		t.Fatalf("%d tokens are reported and %d billed, with %d summaries", reported, alive.billed, alive.summaries)
	}
	check := func(name string, b *biller, at int, after bool) {
		t.Helper()
		if reported, _ := summarized(t, &journaltest.Store{}, b, at, after); reported < b.billed {
			t.Errorf("%s: %d input tokens are reported, and %d were billed in %d requests", name, reported, b.billed, b.requests)
		}
	}
	for at := 1; at <= appends; at++ {
		for _, after := range []bool{false, true} {
			check(fmt.Sprintf("killed at append %d, after it %t", at, after), &biller{}, at, after)
		}
	}
	for request := 1; request <= alive.requests; request++ {
		check(fmt.Sprintf("killed within request %d", request), &biller{killAt: request}, -1, false)
	}
}
