package turn_test

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/shopspring/decimal"
	"go.uber.org/goleak"

	"github.com/capstan-dev/capstan/internal/runtime/finalize"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/runtime/turncontext"
	"github.com/capstan-dev/capstan/internal/store/sqlite"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var at = time.Date(2026, 6, 11, 15, 4, 5, 0, time.UTC)

// script is a model that answers each request with the next of its answers, and with the last one from then on.
type script struct {
	mu       sync.Mutex
	answers  []answer
	requests []model.Request
}

// answer is what a scripted model says after a while, unless the request's context ends first.
type answer struct {
	after time.Duration
	reply model.Reply
	err   error
}

// Generate gives the next answer.
func (s *script) Generate(ctx context.Context, req model.Request) (model.Reply, error) {
	s.mu.Lock()
	a := s.answers[min(len(s.requests), len(s.answers)-1)]
	s.requests = append(s.requests, req)
	s.mu.Unlock()
	if a.after == 0 {
		return a.reply, a.err
	}
	select {
	case <-time.After(a.after):
		return a.reply, a.err
	case <-ctx.Done():
		return model.Reply{}, &model.Error{Kind: model.Cancelled, Message: "the request was cancelled"}
	}
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

// candidate is a model that costs 1 USD for a million tokens in and 10 for a million out.
func candidate(name string, attempts int, answers ...answer) (turn.Candidate, *script) {
	s := &script{answers: answers}
	return turn.Candidate{
		Candidate: loop.Candidate{
			ProviderName: name, Model: "m", Provider: s,
			Retry: loop.Retry{MaxAttempts: attempts, InitialBackoff: time.Millisecond, MaxBackoff: time.Millisecond},
		},
		Pricing: &finalize.Pricing{Currency: "USD", Input: decimal.NewFromInt(1), Output: decimal.NewFromInt(10), CacheRead: decimal.NewFromInt(1)},
	}, s
}

func input(chain ...turn.Candidate) turn.Input {
	return turn.Input{
		UID: "uid", Epoch: 1, Timeout: time.Minute, Limit: time.Minute, Chain: chain, ShowCitations: true, DecisionKey: "support.chat.turn",
		Preparation: making(),
	}
}

// material is what the messages of these tests are made of.
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

// making returns a preparation of the material, changed.
func making(change ...func(*prepare.Input)) func(context.Context) (prepare.Input, error) {
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

// journals are the stores that a test runs against.
var journals = map[string]func(t *testing.T) journal.Journal{
	"memory": func(*testing.T) journal.Journal { return &journaltest.Memory{} },
	"sqlite": func(t *testing.T) journal.Journal {
		t.Helper()
		s, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "journal.db"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
		return s
	},
}

var errBroken = errors.New("the disk is full")

// breaking is a journal of which one append fails: the n-th, from 1. If written is set, it fails only after the entries
// were written, as for a connection that breaks before the answer.
type breaking struct {
	journal.Journal
	n       int
	written bool
}

// Append fails if it is the one to fail.
func (b *breaking) Append(ctx context.Context, turnUID string, entries ...journal.Entry) error {
	b.n--
	if b.n != 0 {
		return b.Journal.Append(ctx, turnUID, entries...)
	}
	if b.written {
		if err := b.Journal.Append(ctx, turnUID, entries...); err != nil {
			return err
		}
	}
	return errBroken
}

// kinds are what the journal of the Turn holds.
func kinds(t *testing.T, j journal.Journal) []journal.Kind {
	t.Helper()
	entries, err := j.Load(t.Context(), "uid")
	if err != nil {
		t.Fatal(err)
	}
	var all []journal.Kind
	for _, e := range entries {
		all = append(all, e.Kind)
	}
	return all
}

// copyOf returns the first entries of a journal in another one.
func copyOf(t *testing.T, from, to journal.Journal, n int) journal.Journal {
	t.Helper()
	entries, err := from.Load(t.Context(), "uid")
	if err != nil {
		t.Fatal(err)
	}
	if err := to.Append(t.Context(), "uid", entries[:n]...); err != nil {
		t.Fatal(err)
	}
	return to
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
