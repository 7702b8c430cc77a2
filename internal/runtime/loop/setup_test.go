package loop_test

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/runtime/untrusted"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// scriptedModel is a model that answers each request with its next answer, and repeats the last one. It records the
// requests and their times.
type scriptedModel struct {
	answers  []answer
	asked    []time.Time
	requests []model.Request
}

// answer is the reply of a scripted model after a delay, unless the context of the request ends first.
type answer struct {
	after time.Duration
	reply model.Reply
	err   error
}

// result returns what a provider returns.
func (a answer) result() (*model.Reply, error) {
	if a.err != nil {
		return nil, a.err
	}
	return &a.reply, nil
}

// Generate returns the next answer.
func (s *scriptedModel) Generate(ctx context.Context, req *model.Request) (*model.Reply, error) {
	a := s.answers[min(len(s.asked), len(s.answers)-1)]
	s.asked, s.requests = append(s.asked, time.Now()), append(s.requests, *req)
	if a.after == 0 {
		return a.result()
	}
	select {
	case <-time.After(a.after):
		return a.result()
	case <-ctx.Done():
		return nil, &model.Error{Kind: model.Cancelled, Message: "the request was cancelled", Usage: a.reply.Usage}
	}
}

// prompt returns the system prompt of a request.
func (s *scriptedModel) prompt(i int) string { return s.requests[i].Messages[0].Content }

func fails(kind model.ErrorKind) answer {
	return answer{err: &model.Error{Kind: kind, Message: "it is " + string(kind), Usage: model.Usage{InputTokens: 7}}}
}

func says(text string) answer {
	return answer{reply: model.Reply{Text: text, FinishReason: model.FinishStop, Usage: model.Usage{InputTokens: 5, OutputTokens: 1}}}
}

// asksFor returns an answer that asks for tool calls.
func asksFor(text string, calls ...model.ToolCall) answer {
	return answer{reply: model.Reply{
		Text: text, ToolCalls: calls, FinishReason: model.FinishToolCalls, Usage: model.Usage{InputTokens: 5, OutputTokens: 1},
	}}
}

func call(id, name, arguments string) model.ToolCall {
	return model.ToolCall{ID: id, Name: name, Arguments: arguments}
}

func candidate(name string, attempts int, answers ...answer) (loop.Candidate, *scriptedModel) {
	s := &scriptedModel{answers: answers}
	return loop.Candidate{
		ProviderName: name, Model: "m", Provider: s,
		Retry: loop.Retry{MaxAttempts: attempts, InitialBackoff: time.Second, MaxBackoff: 4 * time.Second},
	}, s
}

// fakeToolServer implements a tool. It records its calls, answers each with its next result, and repeats the last one.
type fakeToolServer struct {
	mu      sync.Mutex
	results []result
	calls   []tool.Call
}

// result is the result of a call after a delay, unless the context of the call ends first. do runs before the
// delay.
type result struct {
	after      time.Duration
	content    string
	structured string
	err        error
	do         func()
}

// Call returns the next result.
func (s *fakeToolServer) Call(ctx context.Context, c tool.Call) (tool.Result, error) {
	s.mu.Lock()
	r := s.results[min(len(s.calls), len(s.results)-1)]
	s.calls = append(s.calls, c)
	s.mu.Unlock()
	if r.do != nil {
		r.do()
	}
	if r.after == 0 {
		return tool.Result{Content: r.content, Structured: r.structured}, r.err
	}
	select {
	case <-time.After(r.after):
		return tool.Result{Content: r.content, Structured: r.structured}, r.err
	case <-ctx.Done():
		return tool.Result{}, cmp.Or(r.err, ctx.Err())
	}
}

// keys returns the idempotency keys of the calls, in order.
func (s *fakeToolServer) keys() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []string
	for _, c := range s.calls {
		all = append(all, c.IdempotencyKey)
	}
	return all
}

// toolOf returns a trusted tool, so the model receives its output without a fence.
func toolOf(name string, effect tool.Effect, results ...result) (tool.Tool, *fakeToolServer) {
	s := &fakeToolServer{results: results}
	return tool.Tool{
		Tool:   prompt.Tool{Name: name, Description: "Does it.", Parameters: []prompt.Parameter{{Name: "n", Type: "integer"}}},
		Effect: effect, Caller: s, Trusted: true,
	}, s
}

// input returns the input of a run with this chain and a new journal.
func input(t *testing.T, chain ...loop.Candidate) loop.Input {
	t.Helper()
	return inputOf(t, &journaltest.Store{}, 1, chain...)
}

// inputOf returns the input of a run with this chain that continues a journal in an epoch.
func inputOf(t *testing.T, j journal.Journal, epoch int64, chain ...loop.Candidate) loop.Input {
	t.Helper()
	in := loop.Input{
		Config:  loop.Config{Chain: chain, Limits: loop.Limits{MaxSteps: 6, MaxToolCalls: 25}},
		TurnUID: "uid", State: &loop.State{},
		Abandoned: func() bool { return false }, Prepare: prepareWith(nil), Nonce: nonce, Now: time.Now,
	}
	log, err := journal.Open(t.Context(), "uid", epoch, journal.Options{Journal: j, Now: time.Now, Apply: in.State.Apply})
	if err != nil {
		t.Fatal(err)
	}
	in.NextSeq = log.Next
	in.Record = func(records ...journal.Record) error { return log.Append(t.Context(), records...) }
	return in
}

// withTools adds tools to a run and to its prompts.
func withTools(in loop.Input, tools ...tool.Tool) loop.Input {
	in.Tools = func() []tool.Tool { return tools }
	var offered []prompt.Tool
	for _, t := range tools {
		offered = append(offered, t.Tool)
	}
	in.Prepare = prepareWith(offered)
	return in
}

// prepareWith returns a Prepare function whose prompts name their candidate.
func prepareWith(offered []prompt.Tool) func(context.Context, loop.Candidate) (*prepare.Prompt, error) {
	return func(_ context.Context, c loop.Candidate) (*prepare.Prompt, error) {
		return &prepare.Prompt{Tools: offered, Messages: []model.Message{
			{Role: model.RoleSystem, Content: "for " + c.ProviderName}, {Role: model.RoleUser, Content: "What is new?"},
		}}, nil
	}
}

// nonce is the nonce of the Turns in these tests.
const nonce = "K7QZ5XWJ2N4M6P8R"

// keyOf returns the idempotency key that starts with the given text.
func keyOf(start string) string {
	return fmt.Sprintf("%s/%.8x", start, sha256.Sum256([]byte(nonce+"/"+start)))
}

// fenced returns a short output as the model receives it.
func fenced(output string) string { return untrusted.Tool(nonce, "", output) }

// transcript returns the messages of a request after the prompt, one line each.
func transcript(r model.Request) []string {
	var lines []string
	for _, m := range r.Messages[2:] {
		line := fmt.Sprintf("%s: %s", m.Role, m.Content)
		if m.ToolCallID != "" {
			line = fmt.Sprintf("%s %s: %s", m.Role, m.ToolCallID, m.Content)
		}
		for _, c := range m.ToolCalls {
			line += fmt.Sprintf(" [%s %s %s]", c.ID, c.Name, c.Arguments)
		}
		lines = append(lines, line)
	}
	return lines
}
