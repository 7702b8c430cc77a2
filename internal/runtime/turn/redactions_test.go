package turn_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/redact"
	"github.com/capstan-dev/capstan/internal/runtime/attachment"
	"github.com/capstan-dev/capstan/internal/runtime/budget"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/ranking"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/runtime/turncontext"
	"github.com/capstan-dev/capstan/internal/runtime/vectors"
)

// address is a text that must be removed everywhere.
const address = "zoe@shop.example"

// TestRedactionsOfKilledTurns kills processes at each moment of a Turn whose model and tool repeat an address. The
// address must never be in the journal, the tool must receive the arguments in the journal, and each match must count
// once.
func TestRedactionsOfKilledTurns(t *testing.T) {
	var mu sync.Mutex
	var sent []string
	leaky := ending{
		limits: loop.Limits{MaxSteps: 3, MaxToolCalls: 3},
		change: func(p *process, in *turn.Input) {
			email := redact.PatternRule{Name: "email", Pattern: `[a-z]+@[a-z]+\.example`}
			rules, err := redact.NewRules("spec.redaction", []redact.PatternRule{email}, []string{"$..pin"})
			if err != nil {
				t.Fatal(err)
			}
			r := redact.NewTurnRedactor(p.life, rules, nil)
			in.Redact, in.Redactions = r.Redact, r.Take
			in.Tools = []tool.Tool{{
				Tool: prompt.Tool{Name: "send"}, Schema: []byte(`{"type":"object"}`), Effect: tool.Idempotent,
				Caller: tool.CallerFunc(func(_ context.Context, c tool.Call) (tool.Result, error) {
					if !p.alive() {
						return tool.Result{}, errKilled
					}
					mu.Lock()
					sent = append(sent, string(c.Arguments))
					mu.Unlock()
					if !p.alive() {
						return tool.Result{}, errKilled
					}
					return tool.Result{Content: `{"to":"` + address + `","pin":998877665544}`}, nil
				}),
			}}
		},
		reply: func(step int, _ loop.Purpose) model.Reply {
			if step == 1 {
				return calls("I write to "+address+".", model.ToolCall{ID: "s1", Name: "send", Arguments: `{"to":"` + address + `"}`})
			}
			return says("I wrote to z\u200boe@shop.example.").reply
		},
	}
	want := []turn.Redaction{{Rule: "$..pin", Matches: 1}, {Rule: "email", Matches: 4}}
	for moment := 0; ; moment++ {
		w := newWorld(t, &journaltest.Store{}, "uid", leaky)
		_, result, deaths := survive(t, w, moment)
		if diff := cmp.Diff(want, result.Redactions); diff != "" {
			t.Errorf("matches: -want +got:\n%s", diff)
		}
		if result.Text != "I wrote to [redacted:email]." {
			t.Errorf("the answer is %q, want it without the address", result.Text)
		}
		for _, e := range entries(t, w.journal, "uid") {
			if text := string(e.Payload); strings.Contains(text, "shop.example") || strings.Contains(text, "998877665544") {
				t.Errorf("the entry %s has a text that must be removed: %s", e.Kind, text)
			}
			if e.Kind == journal.ToolIntended && string(decoded[loop.Intent](t, e).Arguments) != `{"to":"[redacted:email]"}` {
				t.Errorf("the intent has the arguments %s, want them without the address", decoded[loop.Intent](t, e).Arguments)
			}
		}
		for _, arguments := range sent {
			if arguments != `{"to":"[redacted:email]"}` {
				t.Errorf("the tool received %s, want the arguments in the journal", arguments)
			}
		}
		if t.Failed() {
			t.Fatalf("when killed at %d", moment)
		}
		if moment > 0 && deaths == 0 {
			return // the process lived to the end
		}
	}
}

// refusing is a journal whose budgets refuse the first request once.
type refusing struct {
	journal.Journal
	refused bool
}

// Append refuses the first request.
func (r *refusing) Append(ctx context.Context, uid string, all ...journal.Entry) error {
	isRequest := func(e journal.Entry) bool { return e.Kind == journal.ModelRequested }
	if !r.refused && slices.ContainsFunc(all, isRequest) {
		r.refused = true
		return &budget.Refusal{}
	}
	return r.Journal.Append(ctx, uid, all...)
}

// TestRedactionsOfARefusedWrite checks that the matches of a write that a budget refuses are in the next write.
func TestRedactionsOfARefusedWrite(t *testing.T) {
	j := &refusing{Journal: &journaltest.Store{}}
	in := limitedTo("uid", 1, 1_000_000, &script{answers: []answer{says("Done.")}})
	var taken int64
	in.Redactions = func() map[string]int64 { taken++; return map[string]int64{"email": 1} }
	result, err := engine(j).Run(t.Context(), in)
	if err != nil || !j.refused {
		t.Fatalf("Run: %v, refused %t; want a Turn whose request was refused once", err, j.refused)
	}
	if want := []turn.Redaction{{Rule: "email", Matches: taken}}; !slices.Equal(result.Redactions, want) {
		t.Errorf("redactions %v, want %v", result.Redactions, want)
	}
}

// TestRedactionsOfAnInputThatIsReadAgain checks that the matches in the input for the messages count once if a run is
// killed between the request for vectors, or the call of a context pack, and the write of this input. Of the memories,
// only the matches in the last selection count.
func TestRedactionsOfAnInputThatIsReadAgain(t *testing.T) {
	for name, tc := range map[string]struct {
		reason      string
		kill        journal.Kind // the kind of entry whose write ends the first run
		prepareOnly bool
		want        int64
	}{
		"not killed": {"each text counts once", "", false, 1 + 20 + 100 + 1000},
		"killed after the request for the vector": {
			"the second run selects memories by words", journal.ToolsExposed, false, 1 + 10 + 100 + 1000,
		},
		"killed with the facts in the journal": {
			"the context pack is not called again", journal.PreparationInput, false, 1 + 10 + 100 + 1000,
		},
		"killed before the messages": {"a run that only prepares has no other write", journal.Prepared, true, 1 + 10 + 100},
	} {
		t.Run(name, func(t *testing.T) {
			life, kill := context.WithCancel(t.Context())
			defer kill()
			j := &killing{Journal: &journaltest.Store{}, kind: tc.kill, kill: kill}
			result, err := (*turn.Result)(nil), error(nil)
			for epoch := int64(1); epoch <= 2 && result == nil; epoch++ {
				found := map[string]int64{}
				redacted := func(n int64) { found["email"] += n }
				in := embedding(&embedder{}, &vectors.Cache{}, new([]*model.Error))
				in.Epoch, in.PrepareOnly = epoch, tc.prepareOnly
				in.Redactions = func() map[string]int64 { all := maps.Clone(found); clear(found); return all }
				in.Preparation = preparationOf(func(*prepare.Input) { redacted(1) })
				in.Recall = func(_ context.Context, _ string, v ranking.Vector) (turn.Recalled, error) {
					n := int64(10)
					if v.Given() {
						n = 20
					}
					redacted(n)
					return turn.Recalled{More: true, Memories: []turncontext.Memory{{ID: "m", Text: "x", Learned: true}}}, nil
				}
				in.Attach = func(context.Context) ([]attachment.Content, error) { redacted(100); return nil, nil }
				in.Toolbox = packs(tool.ReadOnly, func(context.Context, tool.Call) (tool.Result, error) {
					redacted(1000)
					return tool.Result{Content: "A fact."}, nil
				})
				result, err = engine(j).Run(life, &in)
				life = t.Context()
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]turn.Redaction{{Rule: "email", Matches: tc.want}}, result.Redactions); diff != "" {
				t.Errorf("%s: -want +got:\n%s", tc.reason, diff)
			}
		})
	}
}

// killing is a journal that kills the first run when it writes an entry of a kind.
type killing struct {
	journal.Journal
	kind journal.Kind
	kill func()
}

// Append fails for the entry at which the first run is killed.
func (k *killing) Append(ctx context.Context, uid string, all ...journal.Entry) error {
	if slices.ContainsFunc(all, func(e journal.Entry) bool { return e.Epoch == 1 && e.Kind == k.kind }) {
		k.kill()
		return errKilled
	}
	return k.Journal.Append(ctx, uid, all...)
}

// TestRedactionsOfATurnThatCannotBePrepared checks that the result has the matches in an input from which no messages
// can be made.
func TestRedactionsOfATurnThatCannotBePrepared(t *testing.T) {
	c, _ := candidate("p0", 1, says("Done."))
	in := input(c)
	in.Preparation = preparationOf(func(p *prepare.Input) { p.Turn.Message = " " })
	left := map[string]int64{"email": 3}
	in.Redactions = func() map[string]int64 { all := maps.Clone(left); clear(left); return all }
	result := mustRun(t, &journaltest.Store{}, in)
	if want := []turn.Redaction{{Rule: "email", Matches: 3}}; !slices.Equal(result.Redactions, want) {
		t.Errorf("redactions %v, want %v", result.Redactions, want)
	}
}
