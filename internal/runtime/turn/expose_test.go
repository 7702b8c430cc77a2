package turn_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
)

// box is a toolbox with fixed offers. The result of each tool names its source and its arguments.
type box struct {
	offers []tool.Offer
	err    error
	asked  int
	// do replaces the calls of tools, by their names on the server. It may be nil.
	do map[string]tool.CallerFunc
	// effects are the current effects of tools, by their names on the server. Other tools keep their effects.
	effects map[string]tool.Effect
}

// Offers returns the offers.
func (b *box) Offers(context.Context) ([]tool.Offer, error) {
	b.asked++
	return b.offers, b.err
}

// Caller returns the Caller of a tool.
func (b *box) Caller(t tool.Tool) tool.Caller {
	s := t.Source
	if do := b.do[s.Name]; do != nil {
		return do
	}
	return tool.CallerFunc(func(_ context.Context, c tool.Call) (tool.Result, error) {
		return tool.Result{Content: fmt.Sprintf("%s/%s of %s: %s", s.Server, s.Name, c.IdempotencyKey, c.Arguments)}, nil
	})
}

// Effect returns the current effect of a tool.
func (b *box) Effect(_ context.Context, t tool.Tool) (tool.Effect, error) {
	if current, ok := b.effects[t.Source.Name]; ok {
		return current, nil
	}
	return t.Effect, nil
}

// server returns a toolbox with an offer of tools that accept any arguments.
func server(name string, tools ...tool.Tool) *box {
	return &box{offers: []tool.Offer{{Server: name, Tools: tools}}}
}

func remote(name, description string, effect tool.Effect) tool.Tool {
	return tool.Tool{Tool: prompt.Tool{Name: name, Description: description}, Effect: effect, Schema: json.RawMessage(`{"type":"object"}`)}
}

// offered returns the names of the tools that a request offers.
func offered(s *script, request int) []string {
	var names []string
	for _, t := range s.requests[request].Tools {
		names = append(names, t.Name)
	}
	return names
}

func TestToolsOfAToolbox(t *testing.T) {
	c, s := candidate("p0", 1, asks("web_find", `{"n":1}`), says("Done."))
	in := input(c)
	b := server("web",
		remote("find", "Finds.", tool.ReadOnly), remote("read.page", "Reads a page.", tool.ReadOnly),
		remote("news", "What is new in the world.", tool.ReadOnly))
	b.offers[0].Tools = append(b.offers[0].Tools, tool.Tool{Tool: prompt.Tool{Name: "odd"}, Schema: json.RawMessage(`7`)})
	in.Toolbox, in.Selection = b, tool.Selection{Most: 2, Semantic: true, Pinned: []string{"web_find"}}
	in.Tools = []tool.Tool{named("find", tool.ReadOnly, saying("never called"))}
	j := &journaltest.Store{}
	result, err := engine(j).Run(t.Context(), new(in))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"find", "web_find", "news", "read_artifact"}, offered(s, 0)); diff != "" {
		t.Errorf("the model must be offered the tools of the input, the pinned tool and the tool that matches the message: -want "+
			"+got:\n%s", diff)
	}
	if result.ToolsLeftOut != 1 || result.Preparation.ToolCount != 4 || b.asked != 1 {
		t.Errorf("%d tools left out, %d tools in the prompt, %d questions to the toolbox; want 1, 4 and 1",
			result.ToolsLeftOut, result.Preparation.ToolCount, b.asked)
	}
	messages := s.requests[1].Messages
	if got, want := messages[len(messages)-1].Content, fenced(t, j, "web/find of "+keyIn(t, j, "uid/1/c1")+`: {"n":1}`); got != want {
		t.Errorf("the model received %q, want %q", got, want)
	}
	x := payloads[tool.Exposure](t, j, journal.ToolsExposed)
	if len(x) != 1 || len(x[0].Nonce) < 20 || !cmp.Equal(x[0].Unusable, []string{"odd"}) || x[0].LeftOut != 1 {
		t.Errorf("the journal has %+v, want one entry with a nonce and the number of tools left out", x)
	}
	if !strings.Contains(s.requests[0].Messages[0].Content, "- news: What is new in the world.") {
		t.Errorf("the prompt does not describe the tool news:\n%s", s.requests[0].Messages[0].Content)
	}
}

// TestAResumedTurnHasTheSameTools continues a Turn after each entry of its journal from the prompt on. Meanwhile, the
// tools of its Agent have changed.
func TestAResumedTurnHasTheSameTools(t *testing.T) {
	from := &journaltest.Store{}
	c, first := candidate("p0", 1, asks("find", `{}`), says("Done."))
	in := input(c)
	in.Toolbox, in.Selection = server("web", remote("find", "Finds.", tool.ReadOnly), remote("other", "", "")), tool.Selection{Most: 9}
	whole := mustRun(t, from, in)
	nonce, key := payloads[tool.Exposure](t, from, journal.ToolsExposed)[0].Nonce, keyIn(t, from, "uid/1/c1")
	for n := 5; n < len(entries(t, from, "uid")); n++ {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			answers := []answer{asks("find", `{}`), says("Done.")}
			if n >= 7 {
				answers = answers[1:]
			}
			c, s := candidate("p0", 9, answers...)
			in.Chain, in.Epoch, in.Preparation = []loop.Candidate{c}, 2, mustNotPrepare(t)
			changed := server("web", remote("changed", "", ""))
			changed.do = map[string]tool.CallerFunc{"find": func(context.Context, tool.Call) (tool.Result, error) {
				return tool.Result{Content: "web/find of " + key + ": {}"}, nil
			}}
			in.Toolbox = changed
			j := copyOf(t, from, &journaltest.Store{}, n)
			result := mustRun(t, j, in)
			if result.Text != whole.Text || changed.asked != 0 {
				t.Errorf("the result is %+v and the toolbox was asked for offers %d times, want the result of the uninterrupted Turn, "+
					"and 0",
					result, changed.asked)
			}
			for i, r := range s.requests {
				if diff := cmp.Diff(first.requests[0].Tools, r.Tools); diff != "" {
					t.Errorf("request %d offers other tools: -first +resumed:\n%s", i, diff)
				}
				if last := r.Messages[len(r.Messages)-1].Content; strings.Contains(last, "web/find") && !strings.Contains(last, nonce) {
					t.Errorf("the output is fenced with another nonce: %s", last)
				}
			}
			if got := payloads[tool.Exposure](t, j, journal.ToolsExposed); len(got) != 1 {
				t.Errorf("tools were exposed %d times, want once", len(got))
			}
		})
	}
	in.Toolbox = nil
	c, s := candidate("p0", 1, says("Done."))
	in.Chain, in.Epoch = []loop.Candidate{c}, 2
	mustRun(t, copyOf(t, from, &journaltest.Store{}, 7), in)
	if messages := s.requests[0].Messages; !strings.HasPrefix(messages[len(messages)-1].Content, "error (unavailable): ") {
		t.Errorf("without a toolbox the model received %q, want the error of a tool that cannot be called",
			messages[len(messages)-1].Content)
	}
}

// TestEffectsOfAnOlderVersionAreNotTrusted continues a Turn whose tools an older version exposed. That version took
// some effects from hints of the servers, and its journal does not show which effects.
func TestEffectsOfAnOlderVersionAreNotTrusted(t *testing.T) {
	for name, tc := range map[string]struct {
		reason   string
		declared bool // the journal shows that the effects are declared
		readOnly bool
		cut      journal.Kind // the last entry that is kept
		calls    int
		unknown  int
		received string
	}{
		"open call": {
			"the call may have been made, so it is not repeated", false, false, journal.ToolIntended, 0, 1,
			"error (outcome_unknown): ",
		},
		"open call, declared": {
			"the call is declared to change nothing, so it is repeated", true, false, journal.ToolIntended, 1, 0,
			"web/find",
		},
		"next call": {"a call that was not yet made may be made", false, false, journal.ModelReplied, 1, 0, "web/find"},
		"read-only Turn": {
			"the tool is not known to be read-only", false, true, journal.ModelReplied, 0, 0,
			"error (denied): this turn may call only read-only tools",
		},
		"read-only Turn, declared": {"the tool is declared to be read-only", true, true, journal.ModelReplied, 1, 0, "web/find"},
	} {
		t.Run(name, func(t *testing.T) {
			from := &journaltest.Store{}
			c, _ := candidate("p0", 1, asks("find", `{}`), says("Done."))
			in := input(c)
			in.Toolbox = server("web", remote("find", "Finds.", tool.ReadOnly))
			mustRun(t, from, in)
			old := &journaltest.Store{}
			for _, e := range entries(t, from, "uid") {
				if e.Kind == journal.ToolsExposed && !tc.declared {
					e.Payload = bytes.Replace(e.Payload, []byte(`,"effectsDeclared":true`), nil, 1)
				}
				if err := old.Append(t.Context(), "uid", e); err != nil {
					t.Fatal(err)
				}
				if e.Kind == tc.cut {
					break
				}
			}
			made := 0
			b := server("web")
			b.do = map[string]tool.CallerFunc{"find": func(context.Context, tool.Call) (tool.Result, error) {
				made++
				return tool.Result{Content: "web/find"}, nil
			}}
			c, s := candidate("p0", 1, says("Done."))
			in.Chain, in.Epoch, in.Toolbox, in.Policy.ReadOnly = []loop.Candidate{c}, 2, b, tc.readOnly
			result := mustRun(t, old, in)
			messages := s.requests[0].Messages
			if got := messages[len(messages)-1].Content; made != tc.calls ||
				result.Counts.UnknownOutcomes != tc.unknown || !strings.Contains(got, tc.received) {
				t.Errorf("%d calls, %d of them unknown, and the model received %q; want %d, %d, %q: %s",
					made, result.Counts.UnknownOutcomes, got, tc.calls, tc.unknown, tc.received, tc.reason)
			}
		})
	}
}

// TestAStricterEffectHoldsForATurnThatHasBegun corrects a declaration while the Turn is not bound.
func TestAStricterEffectHoldsForATurnThatHasBegun(t *testing.T) {
	for name, tc := range map[string]struct {
		reason   string
		exposed  tool.Effect // the effect when the Turn began
		current  tool.Effect // the effect when the Turn continues
		readOnly bool
		cut      journal.Kind // the last entry that is kept
		calls    int
		unknown  int
		received string
	}{
		"open call, the same": {
			"a read-only call is repeated", tool.ReadOnly, tool.ReadOnly, false, journal.ToolIntended, 1, 0, "web/find",
		},
		"open call, idempotent": {
			"an idempotent call is repeated", tool.ReadOnly, tool.Idempotent, false, journal.ToolIntended, 1, 0, "web/find",
		},
		"open call, destructive": {
			"the call may have been made", tool.ReadOnly, tool.Destructive, false, journal.ToolIntended, 0, 1,
			"error (outcome_unknown): ",
		},
		"open call, not declared": {
			"the call may have been made", tool.Idempotent, "", false, journal.ToolIntended, 0, 1,
			"error (outcome_unknown): ",
		},
		"open call, less strict": {
			"the Turn began with the stricter effect", tool.Destructive, tool.ReadOnly, false, journal.ToolIntended, 0, 1,
			"error (outcome_unknown): ",
		},
		"read-only Turn, the same": {
			"the tool is read-only", tool.ReadOnly, tool.ReadOnly, true, journal.ModelReplied, 1, 0, "web/find",
		},
		"read-only Turn, idempotent": {
			"the tool may change something", tool.ReadOnly, tool.Idempotent, true, journal.ModelReplied, 0, 0,
			"error (denied): this turn may call only read-only tools",
		},
		"read-only Turn, destructive": {
			"the tool may change something", tool.ReadOnly, tool.Destructive, true, journal.ModelReplied, 0, 0,
			"error (denied): this turn may call only read-only tools",
		},
	} {
		t.Run(name, func(t *testing.T) {
			from := &journaltest.Store{}
			c, _ := candidate("p0", 1, asks("find", `{}`), says("Done."))
			in := input(c)
			in.Toolbox = server("web", remote("find", "Finds.", tc.exposed))
			mustRun(t, from, in)
			j := &journaltest.Store{}
			for _, e := range entries(t, from, "uid") {
				if err := j.Append(t.Context(), "uid", e); err != nil {
					t.Fatal(err)
				}
				if e.Kind == tc.cut {
					break
				}
			}
			made := 0
			b := server("web")
			b.effects = map[string]tool.Effect{"find": tc.current}
			b.do = map[string]tool.CallerFunc{"find": func(context.Context, tool.Call) (tool.Result, error) {
				made++
				return tool.Result{Content: "web/find"}, nil
			}}
			c, s := candidate("p0", 1, says("Done."))
			in.Chain, in.Epoch, in.Toolbox, in.Policy.ReadOnly = []loop.Candidate{c}, 2, b, tc.readOnly
			result := mustRun(t, j, in)
			messages := s.requests[0].Messages
			if got := messages[len(messages)-1].Content; made != tc.calls ||
				result.Counts.UnknownOutcomes != tc.unknown || !strings.Contains(got, tc.received) {
				t.Errorf("%d calls, %d of them unknown, and the model received %q; want %d, %d, %q: %s",
					made, result.Counts.UnknownOutcomes, got, tc.calls, tc.unknown, tc.received, tc.reason)
			}
		})
	}
}

// TestUnreachableServer checks that a Turn runs without the tools of an unreachable server. The journal and the result
// name the server, even after a restart.
func TestUnreachableServer(t *testing.T) {
	c, s := candidate("p0", 1, says("Done."))
	in := input(c)
	b := server("web", remote("find", "Finds.", tool.ReadOnly))
	b.offers = append(b.offers, tool.Offer{Server: "tickets", Missing: true})
	in.Toolbox, in.Selection = b, tool.Selection{Most: 9}
	j := &journaltest.Store{}
	result := mustRun(t, j, in)
	want := []string{"tickets"}
	if result.Stop != turn.StopCompleted || !cmp.Equal(result.ToolServersMissing, want) ||
		!cmp.Equal(offered(s, 0), []string{"find", "read_artifact"}) {
		t.Errorf("the Turn ended with %s without %v, and was offered %v", result.Stop, result.ToolServersMissing, offered(s, 0))
	}
	if x := payloads[tool.Exposure](t, j, journal.ToolsExposed); len(x) != 1 || !cmp.Equal(x[0].Missing, want) {
		t.Errorf("the journal has %+v, want one entry that names the server", x)
	}
	c, _ = candidate("p0", 1, says("Done."))
	in.Chain, in.Epoch, in.Toolbox = []loop.Candidate{c}, 2, server("tickets", remote("close", "", ""))
	if again := mustRun(t, copyOf(t, j, &journaltest.Store{}, 5), in); !cmp.Equal(again.ToolServersMissing, want) {
		t.Errorf("the resumed run says that %v are missing, want %v: its tools are the same", again.ToolServersMissing, want)
	}
}

func TestAToolboxThatFails(t *testing.T) {
	broken := errors.New("the API server is away")
	for _, only := range []bool{false, true} {
		c, s := candidate("p0", 1, says("never asked"))
		in := input(c)
		in.Toolbox, in.PrepareOnly = &box{err: broken}, only
		j := &journaltest.Store{}
		result, err := engine(j).Run(t.Context(), new(in))
		if result != nil || !errors.Is(err, broken) || s.asked() != 0 || len(kinds(t, j)) != 0 {
			t.Errorf("Run = %+v, %v with %v in the journal; want the error and nothing recorded: a later run may succeed",
				result, err, kinds(t, j))
		}
	}
}

// slowBox returns offers only when ctx ends.
type slowBox struct{ box }

func (*slowBox) Offers(ctx context.Context) ([]tool.Offer, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestAToolboxIsBoundedByTheTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := candidate("p0", 1, says("never asked"))
		in := input(c)
		in.Toolbox = &slowBox{}
		if result := mustRun(t, &journaltest.Store{}, in); result.Stop != turn.StopDeadline {
			t.Errorf("the Turn ended with %s, want %s", result.Stop, turn.StopDeadline)
		}
	})
}

// TestAPreparedTurnHasTools checks that a Turn that only prepares its prompt has the tools of a run, and calls no tool.
func TestAPreparedTurnHasTools(t *testing.T) {
	c, _ := candidate("p0", 1, says("never asked"))
	in := input(c)
	pack := remote("pack", "", tool.ReadOnly)
	pack.Role = tool.ContextPack
	b := server("web", remote("find", "Finds.", tool.ReadOnly), remote("more", "", ""), pack)
	b.do = map[string]tool.CallerFunc{"pack": func(context.Context, tool.Call) (tool.Result, error) {
		t.Error("the context pack was called")
		return tool.Result{}, nil
	}}
	in.PrepareOnly, in.Toolbox, in.Selection = true, b, tool.Selection{Most: 1}
	j := &journaltest.Store{}
	result := mustRun(t, j, in)
	if result.Stop != turn.StopPrepared || result.Preparation.ToolCount != 2 || result.ToolsLeftOut != 1 {
		t.Errorf("result %+v, want a prompt with one tool and read_artifact, and one tool left out", result)
	}
	in.Epoch, in.Toolbox, in.Preparation = 2, &box{err: errors.New("never asked")}, mustNotPrepare(t)
	if again := mustRun(t, copyOf(t, j, &journaltest.Store{}, 4), in); again.Preparation.RenderHash != result.Preparation.RenderHash ||
		again.ToolsLeftOut != 1 {
		t.Errorf("the resumed run prepared %+v, want the same", again)
	}
}

// TestPromptHashDependsOnTools checks that equal sets of tools have the same hash, and that different sets
// have different hashes.
func TestPromptHashDependsOnTools(t *testing.T) {
	hash := func(b turn.Toolbox) string {
		c, _ := candidate("p0", 1, says("Done."))
		in := input(c)
		in.Toolbox, in.Selection = b, tool.Selection{Most: 9}
		return mustRun(t, &journaltest.Store{}, in).Preparation.RenderHash
	}
	one := hash(server("a", remote("x", "Does it.", "")))
	if again := hash(server("a", remote("x", "Does it.", ""))); again != one {
		t.Errorf("two Turns with the same tools have the hashes %s and %s: no provider could cache the prompt", one, again)
	}
	if other := hash(server("a", remote("x", "Does it otherwise.", ""))); other == one {
		t.Error("a tool with another description has the same hash")
	}
}
