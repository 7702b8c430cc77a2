package turn_test

import (
	"context"
	"encoding/json"
	"sync"
	"testing"
	"time"

	"github.com/shopspring/decimal"
	"go.uber.org/goleak"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/runtime/turncontext"
	"github.com/capstan-dev/capstan/internal/store/sqlite/sqlitetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// at is the current time of the engine in these tests.
var at = time.Date(2026, 6, 11, 15, 4, 5, 0, time.UTC)

// script is a model that answers each request with the next of its answers, and then repeats the last one.
type script struct {
	mu       sync.Mutex
	answers  []answer
	requests []model.Request
}

// answer is a scripted answer. It is returned after a delay, unless the context of the request ends first.
type answer struct {
	after time.Duration
	reply model.Reply
	err   error
}

// result returns the results of Generate.
func (a answer) result() (*model.Reply, error) {
	if a.err != nil {
		return nil, a.err
	}
	return &a.reply, nil
}

// Generate returns the next answer.
func (s *script) Generate(ctx context.Context, req *model.Request) (*model.Reply, error) {
	s.mu.Lock()
	a := s.answers[min(len(s.requests), len(s.answers)-1)]
	s.requests = append(s.requests, *req)
	s.mu.Unlock()
	if a.after == 0 {
		return a.result()
	}
	select {
	case <-time.After(a.after):
		return a.result()
	case <-ctx.Done():
		return nil, &model.Error{Kind: model.Cancelled, Message: "the request was cancelled"}
	}
}

// modelFunc is a model that is a function.
type modelFunc func(context.Context, *model.Request) (*model.Reply, error)

// Generate calls the function.
func (f modelFunc) Generate(ctx context.Context, r *model.Request) (*model.Reply, error) {
	return f(ctx, r)
}

func (s *script) asked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.requests)
}

func says(text string) answer {
	return answer{reply: model.Reply{Text: text, FinishReason: model.FinishStop, Usage: model.Usage{InputTokens: 1000, OutputTokens: 100}}}
}

func fails(kind model.ErrorKind) answer {
	return answer{err: &model.Error{Kind: kind, Message: "it is " + string(kind), Usage: model.Usage{InputTokens: 10}}}
}

// notSent is the failure of a request that the gate of an endpoint has refused.
func notSent() answer {
	return answer{err: &model.Error{Kind: model.RateLimited, Message: "no request was sent", Unsent: true}}
}

// candidate returns a model that costs 1 USD for a million input tokens and 10 USD for a million output tokens.
func candidate(name string, attempts int, answers ...answer) (loop.Candidate, *script) {
	s := &script{answers: answers}
	return loop.Candidate{
		ProviderName: name, Model: "m", Provider: s,
		Retry: loop.Retry{MaxAttempts: attempts, InitialBackoff: time.Millisecond, MaxBackoff: time.Millisecond},
		Pricing: &model.Pricing{
			Currency: "USD", Input: decimal.NewFromInt(1), Output: decimal.NewFromInt(10),
			CacheRead: decimal.NewFromInt(1),
		},
	}, s
}

func input(chain ...loop.Candidate) turn.Input {
	return turn.Input{
		UID: "uid", Epoch: 1, Timeout: time.Minute, Limit: time.Minute, ShowCitations: true, DecisionKey: "support.chat.turn",
		Preparation: preparationOf(),
		Config:      loop.Config{Chain: chain, Limits: loop.Limits{MaxSteps: 6, MaxToolCalls: 25, MaxDescendants: 25}},
	}
}

// material returns the input for the messages in these tests.
func material() prepare.Input {
	return prepare.Input{
		Agent: prepare.Agent{Name: "helper"}, Now: at,
		Profile: prepare.Profile{
			Name: "support", ID: "support.default", Version: "1.0.0", Identity: &turncontext.Identity{SystemPrompt: "Be brief."},
		},
		Turn: prepare.Turn{
			Name: "first", Message: "What is new?", Facts: []turncontext.Fact{{ID: "a", Text: "One.", Source: "notes/a.md"}},
		},
	}
}

// preparationOf returns a preparation that returns the material after the changes.
func preparationOf(change ...func(*prepare.Input)) func(context.Context) (prepare.Input, error) {
	return func(context.Context) (prepare.Input, error) {
		in := material()
		for _, c := range change {
			c(&in)
		}
		return in, nil
	}
}

func engine(j journal.Journal) *turn.Engine {
	return &turn.Engine{Journal: j, Now: func() time.Time { return at }}
}

// controls abandon, cancel or interrupt a run.
type controls struct {
	abandon    context.CancelCauseFunc
	end        context.CancelFunc
	interrupts chan struct{}
}

func (c *controls) cancel()    { c.end() }
func (c *controls) interrupt() { close(c.interrupts) }

// cancelled returns the signal of a Turn that was cancelled.
func cancelled() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// interrupted returns the signal of a run that is interrupted from the start. It prepares the Turn, and asks no model.
func interrupted() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// control connects controls to the input of a run, and returns the lifetime of the run.
func control(t *testing.T, in *turn.Input) (context.Context, *controls) {
	t.Helper()
	ctx, abandon := context.WithCancelCause(t.Context())
	t.Cleanup(func() { abandon(nil) })
	c := &controls{abandon: abandon, interrupts: make(chan struct{})}
	in.Cancel, c.end = context.WithCancel(t.Context())
	t.Cleanup(c.end)
	in.Interrupt = c.interrupts
	return ctx, c
}

// journals are the stores that the tests run against.
var journals = map[string]func(t *testing.T) journal.Journal{
	"memory": func(*testing.T) journal.Journal { return &journaltest.Store{} },
	"sqlite": func(t *testing.T) journal.Journal {
		t.Helper()
		return sqlitetest.Open(t)
	},
}

// entries returns the entries in the journal of a UID.
func entries(t testing.TB, j journal.Journal, uid string) []journal.Entry {
	t.Helper()
	all, err := journal.Collect(t.Context(), j, uid)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// kinds returns the kinds of the entries in the Turn's journal.
func kinds(t *testing.T, j journal.Journal) []journal.Kind {
	t.Helper()
	var all []journal.Kind
	for _, e := range entries(t, j, "uid") {
		all = append(all, e.Kind)
	}
	return all
}

// payloads returns the payloads of one kind in the Turn's journal.
func payloads[T any](t *testing.T, j journal.Journal, kind journal.Kind) []T {
	t.Helper()
	return payloadsOf[T](t, j, "uid", kind)
}

// payloadsOf is payloads for the journal of any Turn.
func payloadsOf[T any](t *testing.T, j journal.Journal, uid string, kind journal.Kind) []T {
	t.Helper()
	var all []T
	for _, e := range entries(t, j, uid) {
		if e.Kind != kind {
			continue
		}
		var v T
		if err := json.Unmarshal(e.Payload, &v); err != nil {
			t.Fatal(err)
		}
		all = append(all, v)
	}
	return all
}

// copyOf copies the first n entries of the Turn's journal, with their artifacts, to another journal, and returns the
// latter.
func copyOf(t testing.TB, from, to journal.Journal, n int) journal.Journal {
	t.Helper()
	copyTurn(t, from, to, "uid", n)
	return to
}

// copyTurn is copyOf for the journal of any Turn.
func copyTurn(t testing.TB, from, to journal.Journal, uid string, n int) {
	t.Helper()
	kept := entries(t, from, uid)[:n]
	for i := range kept {
		e := &kept[i]
		named, err := turn.ArtifactsOf(*e)
		if err != nil {
			t.Fatal(err)
		}
		if e.Artifact != "" { // the payload itself is an artifact
			named = append(named, turn.NamedArtifact{SHA256: e.Artifact})
			e.Payload = nil
		}
		for _, one := range named {
			a, err := from.Artifact(t.Context(), uid, one.SHA256)
			if err != nil {
				t.Fatal(err)
			}
			e.Artifacts = append(e.Artifacts, a)
		}
	}
	if err := to.Append(t.Context(), uid, kept...); err != nil {
		t.Fatal(err)
	}
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
