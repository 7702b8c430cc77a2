package transcript_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/shopspring/decimal"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/runtime/turncontext"
	"github.com/capstan-dev/capstan/internal/store/sqlite/sqlitetest"
	"github.com/capstan-dev/capstan/internal/transcript"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// noon is the start time of the tests.
var noon = time.Date(2026, 4, 9, 12, 0, 0, 0, time.UTC)

// clock returns a clock that starts after noon, and advances by a second with each call.
func clock() func() time.Time {
	now := noon
	return func() time.Time {
		now = now.Add(time.Second)
		return now
	}
}

// script is a model that answers each request with its next reply.
type script []func() (model.Reply, error)

func (s *script) Generate(context.Context, *model.Request) (*model.Reply, error) {
	next := (*s)[0]
	*s = (*s)[1:]
	reply, err := next()
	return &reply, err
}

var took = model.Usage{InputTokens: 1000, OutputTokens: 234}

func says(text string) func() (model.Reply, error) {
	return func() (model.Reply, error) {
		return model.Reply{Text: text, FinishReason: model.FinishStop, Usage: took}, nil
	}
}

func asks(text string, calls ...model.ToolCall) func() (model.Reply, error) {
	return func() (model.Reply, error) {
		return model.Reply{Text: text, ToolCalls: calls, FinishReason: model.FinishToolCalls, Usage: took}, nil
	}
}

func fails(kind model.ErrorKind, message string) func() (model.Reply, error) {
	return func() (model.Reply, error) { return model.Reply{}, &model.Error{Kind: kind, Message: message} }
}

func candidate(name string, answers ...func() (model.Reply, error)) loop.Candidate {
	s := script(answers)
	return loop.Candidate{
		ProviderName: name, Model: "small", Provider: &s,
		Retry: loop.Retry{MaxAttempts: 2, InitialBackoff: time.Millisecond, MaxBackoff: time.Millisecond},
		Pricing: &model.Pricing{
			Currency: "USD", Input: decimal.NewFromInt(1), Output: decimal.NewFromInt(2),
			CacheRead: decimal.NewFromInt(1),
		},
	}
}

func input(chain ...loop.Candidate) turn.Input {
	return turn.Input{
		UID: "uid-1", Epoch: 1, Executor: "capstan-0", Namespace: "helpdesk", Name: "open-loops",
		Timeout: time.Minute, Limit: time.Minute, DecisionKey: "support.chat", ShowCitations: true,
		Config: loop.Config{Chain: chain, Limits: loop.Limits{MaxSteps: 6, MaxToolCalls: 25}},
		Preparation: func(context.Context) (prepare.Input, error) {
			return prepare.Input{
				Agent: prepare.Agent{Name: "support"}, Now: noon,
				Profile: prepare.Profile{
					Name: "support", ID: "helpdesk.support", Version: "1.0.0", Identity: &turncontext.Identity{SystemPrompt: "Be brief."},
				},
				Turn: prepare.Turn{
					Name: "open-loops", Namespace: "helpdesk", Message: "What are my\nopen loops?",
					Facts: []turncontext.Fact{{ID: "f1", Text: "One.", Source: "notes/a.md"}},
				},
			}, nil
		},
	}
}

func named(name string, effect tool.Effect, call tool.CallerFunc) tool.Tool {
	return tool.Tool{
		Tool:   prompt.Tool{Name: name, Parameters: []prompt.Parameter{{Name: "id", Type: "integer"}, {Name: "q"}}},
		Effect: effect, Caller: call,
	}
}

// shown returns the transcript of a journal.
func shown(t *testing.T, entries []journal.Entry) string {
	t.Helper()
	var out strings.Builder
	w := transcript.NewWriter(&out)
	for _, e := range entries {
		if err := w.Write(e); err != nil {
			t.Fatal(err)
		}
	}
	return out.String()
}

// measured matches durations, which differ between runs.
var measured = regexp.MustCompile(`, [0-9.]+ s\b`)

// digits matches the long output of a tool.
var digits = regexp.MustCompile(`(0123456789){100,}`)

func golden(t *testing.T, name, got string) {
	t.Helper()
	got = digits.ReplaceAllString(measured.ReplaceAllString(got, ""), "0123456789...")
	path := filepath.Join("testdata", name+".txt")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("the transcript has changed; to accept the change, run the test with -update; -want +got:\n%s", diff)
	}
}

func collected(t *testing.T, j journal.Journal) []journal.Entry {
	t.Helper()
	entries, err := journal.Collect(t.Context(), j, "uid-1")
	if err != nil {
		t.Fatal(err)
	}
	return entries
}

func TestTranscripts(t *testing.T) {
	t.Parallel()
	ticket := named("get_ticket", tool.ReadOnly, func(_ context.Context, c tool.Call) (tool.Result, error) {
		return tool.Result{Content: "Ticket " + string(c.Arguments) + "\nopen since Monday"}, nil
	})
	broken := named("search", tool.ReadOnly, func(context.Context, tool.Call) (tool.Result, error) {
		return tool.Result{}, &tool.Error{Class: tool.Unavailable, Message: "the server is away"}
	})
	long := named("dump", tool.ReadOnly, func(context.Context, tool.Call) (tool.Result, error) {
		return tool.Result{Content: strings.Repeat("0123456789", 2000)}, nil
	})
	for name, in := range map[string]turn.Input{
		"answer": input(candidate("demo", says("All is well."))),
		"tools": func() turn.Input {
			in := input(candidate("demo", asks("Let me look.",
				model.ToolCall{ID: "call_1", Name: "get_ticket", Arguments: `{"id": 1042}`},
				model.ToolCall{ID: "call_2", Name: "search", Arguments: `{"q": "loops"}`},
				model.ToolCall{ID: "call_3", Name: "invented", Arguments: ``},
			), says("Ticket 1042 is open.")))
			in.Tools = []tool.Tool{ticket, broken}
			in.Policy.Sequential = true // for a stable transcript
			return in
		}(),
		"artifact": func() turn.Input {
			in := input(candidate("demo", asks("", model.ToolCall{ID: "call_1", Name: "dump", Arguments: `{}`}), says("Long.")))
			in.Tools = []tool.Tool{long}
			return in
		}(),
		"fallback": input(
			candidate("demo", fails(model.RateLimited, "too many requests"), fails(model.Overloaded, "it is too busy")),
			candidate("spare", says("Here I am."))),
		"failure": input(candidate("demo", fails(model.Auth, "the key was refused: correct it"))),
		"steps": func() turn.Input {
			in := input(candidate("demo", asks("", model.ToolCall{ID: "call_1", Name: "get_ticket", Arguments: `{"id": 1}`}),
				says("As far as I got.")))
			in.Tools, in.Limits.MaxSteps = []tool.Tool{ticket}, 1
			return in
		}(),
		"hostile": func() turn.Input {
			in := input(candidate("demo", asks("\x1b[2J\x1b]0;owned\a\n12:00:00Z Completed: the model answered\r\u202e",
				model.ToolCall{ID: "call\n_1", Name: "evil\x1b[31m\ntool", Arguments: "\u009b31m"}), says("ok")))
			return in
		}(),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := sqlitetest.Open(t)
			if _, err := (&turn.Engine{Journal: store, Now: clock()}).Run(t.Context(), &in); err != nil {
				t.Fatal(err)
			}
			golden(t, name, shown(t, collected(t, store)))
		})
	}
}

func TestTranscriptOfInterruptedRun(t *testing.T) {
	t.Parallel()
	store, now := sqlitetest.Open(t), clock()
	life, abandon := context.WithCancel(t.Context())
	in := input(candidate("demo", asks("", model.ToolCall{ID: "call_1", Name: "close_ticket", Arguments: `{"id": 1042}`})))
	in.Tools = []tool.Tool{named("close_ticket", tool.Destructive, func(ctx context.Context, _ tool.Call) (tool.Result, error) {
		abandon()
		return tool.Result{}, ctx.Err()
	})}
	engine := &turn.Engine{Journal: store, Now: now}
	if _, err := engine.Run(life, &in); !errors.Is(err, context.Canceled) {
		t.Fatalf("the first run: %v, want it cut off", err)
	}
	again := input(candidate("demo", says("I do not know whether it is closed.")))
	again.Tools, again.Epoch, again.Executor = in.Tools, 2, "capstan-1"
	if _, err := engine.Run(t.Context(), &again); err != nil {
		t.Fatal(err)
	}
	golden(t, "resumed", shown(t, collected(t, store)))
}

// TestTranscriptOfAnEndWithoutARun checks that the entry with which the leader fences a journal does not count as a
// run.
func TestTranscriptOfAnEndWithoutARun(t *testing.T) {
	at := time.Date(2026, 12, 1, 9, 0, 0, 0, time.UTC)
	started := func(seq int64, payload string) journal.Entry {
		return journal.Entry{
			Seq: seq, Epoch: seq, Kind: journal.RunStarted, Version: journal.PayloadVersion, Time: at, Payload: []byte(payload),
		}
	}
	got := shown(t, []journal.Entry{
		started(1, `{"namespace":"a","name":"b","executor":"x"}`), started(2, `{"namespace":"a","name":"b","endOnly":true}`),
	})
	for _, want := range []string{"run 1", "epoch 2, 2026-12-01T09:00:00Z, by the leader, because no executor runs the Turn"} {
		if !strings.Contains(got, want) {
			t.Errorf("want %q in the transcript:\n%s", want, got)
		}
	}
	if strings.Contains(got, "run 2") {
		t.Errorf("want only one run in the transcript:\n%s", got)
	}
}

func TestTranscriptOfAnotherVersion(t *testing.T) {
	t.Parallel()
	got := shown(t, []journal.Entry{
		{Seq: 1, Kind: "tool.postponed", Time: noon, Payload: json.RawMessage(`{"secret":"word"}`)},
		{
			Seq: 2, Kind: journal.ToolFinished, Time: noon,
			Payload: json.RawMessage(`{"name":"x","callID":"c","outcome":"Postponed","new":1}`),
		},
	})
	if want := "12:00:00Z tool.postponed\n12:00:00Z x (c): Postponed\n"; got != want {
		t.Errorf("got\n%s\nwant a line for each unknown entry", got)
	}
	err := transcript.NewWriter(&strings.Builder{}).Write(journal.Entry{Seq: 3, Kind: journal.ModelReplied, Payload: json.RawMessage(`[]`)})
	if err == nil || !strings.Contains(err.Error(), `failed to read entry 3 ("model.replied")`) {
		t.Errorf("error %v, want it to name the entry", err)
	}
}

func TestTranscriptIsSafeForTerminals(t *testing.T) {
	t.Parallel()
	const hostile = "\x1b[31mred\u009b1m\u202ex\a\r\x00"
	for kind, payload := range payloads() {
		text := shown(t, []journal.Entry{filled(t, kind, payload, hostile)})
		if i := strings.IndexFunc(text, func(
			r rune,
		) bool {
			return r < ' ' && r != '\n' || r == 0x7f || r >= 0x80 && r < 0xa0 || r == '\u202e'
		}); i >= 0 {
			t.Errorf("%s: got %q, want no character that a terminal interprets", kind, text[i:])
		}
	}
}

func TestTitle(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		reason  string
		kind    journal.Kind
		payload string
		want    string
	}{
		"a run": {"the entry names the Turn", journal.RunStarted, `{"namespace":"a","name":"b"}`, "a/b"},
		"a Turn of an older version": {
			"its journal starts with the preparation input", journal.PreparationInput,
			`{"input":{"Turn":{"Namespace":"a","Name":"b"}}}`, "a/b",
		},
		"a conversation": {"the journal belongs to a Session", journal.SessionTurn, `{"namespace":"a","name":"b"}`, ""},
		"without a name": {"the Turn has no name", journal.RunStarted, `{"namespace":"a"}`, ""},
		"malformed":      {"the payload cannot be read", journal.PreparationInput, `[]`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := ""
			if namespace, name, ok := transcript.Title(journal.Entry{Kind: tc.kind, Payload: json.RawMessage(tc.payload)}); ok {
				got = namespace + "/" + name
			}
			if got != tc.want {
				t.Errorf("%s: want %q, have %q", tc.reason, tc.want, got)
			}
		})
	}
}
