package turn_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/shopspring/decimal"

	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/journal/journaltest"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/ranking"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/runtime/turncontext"
	"github.com/capstan-dev/capstan/internal/runtime/vectors"
)

// embedder is a model for embeddings. A text that contains one of the words has the vector (1, 0), any other (0, 1).
type embedder struct {
	words []string
	err   error
	hangs bool
	// refuses reports whether a request is refused, and breaks whether it makes the endpoint fail. They may be nil.
	refuses, breaks func(texts []string) bool
	// shortages is the number of first requests for which the process has no socket.
	shortages int
	// zeros is the number of zeros at the end of each vector.
	zeros int

	mu    sync.Mutex
	asked [][]string
}

// Generate returns the vectors, and counts 7 tokens for each text.
func (e *embedder) Generate(ctx context.Context, r *model.Request) (*model.Reply, error) {
	e.mu.Lock()
	e.asked = append(e.asked, r.Embed.Texts)
	short := len(e.asked) <= e.shortages
	e.mu.Unlock()
	if short {
		return nil, &model.Error{Kind: model.Network, Message: "raise the limit", Unsent: true, Err: model.ErrOwnShortage}
	}
	if e.hangs {
		<-ctx.Done()
		return nil, &model.Error{Kind: model.Cancelled, Message: "the request was cancelled", MayBeBilled: true}
	}
	if e.err != nil {
		return nil, e.err
	}
	if e.refuses != nil && e.refuses(r.Embed.Texts) {
		return nil, &model.Error{Kind: model.InvalidRequest, Message: "refused"}
	}
	if e.breaks != nil && e.breaks(r.Embed.Texts) {
		return nil, &model.Error{Kind: model.Overloaded, Message: "failed", Internal: true}
	}
	reply := &model.Reply{FinishReason: model.FinishStop, Usage: model.Usage{InputTokens: 7 * int64(len(r.Embed.Texts))}}
	for _, text := range r.Embed.Texts {
		v := []float32{0, 1}
		for _, word := range e.words {
			if strings.Contains(text, word) {
				v = []float32{1, 0}
			}
		}
		reply.Vectors = append(reply.Vectors, append(v, make([]float32, e.zeros)...))
	}
	return reply, nil
}

// embedding returns the input of a Turn that may call one of three tools, and has a model for embeddings.
func embedding(e *embedder, known *vectors.Cache, failed *[]*model.Error) turn.Input {
	c, _ := candidate("main", 1, says("well"))
	in := input(c)
	in.Toolbox = server("desk", remote("alpha", "", tool.ReadOnly),
		remote("beta", "", tool.ReadOnly), remote("zeta", "", tool.ReadOnly))
	in.Selection = tool.Selection{Most: 1, Semantic: true}
	price := decimal.NewFromInt(1)
	in.Embeddings = &turn.Embeddings{
		Model: loop.Candidate{
			ProviderName: "vectors", Model: "e", Provider: e, Embeds: true,
			Pricing: &model.Pricing{Currency: "USD", Input: price, Output: price},
		},
		Space: "vectors e",
	}
	in.Embeddings.Vectors = known.Of("default")
	in.NotEmbedded = func(f *model.Error) { *failed = append(*failed, f) }
	return in
}

func TestToolsAreSelectedByMeaning(t *testing.T) {
	for name, tc := range map[string]struct {
		e      *embedder
		change func(*turn.Input)
		// want is the tool, usage the tokens of the Turn, and requests the number of requests for vectors.
		want     string
		usage    int64
		requests int
		failure  model.ErrorKind
	}{
		"with vectors": {&embedder{words: []string{"new", "zeta"}}, nil, "zeta", 1000 + 7 + 21, 2, ""},
		"the endpoint fails": {
			&embedder{err: &model.Error{Kind: model.Overloaded, Message: "down"}}, nil, "alpha", 1000, 1, model.Overloaded,
		},
		"the process has no socket for a moment": {
			&embedder{words: []string{"new", "zeta"}, shortages: 3}, nil, "zeta", 1000 + 7 + 21, 3 + 2, "",
		},
		"the process has no socket":    {&embedder{shortages: 100}, nil, "alpha", 1000, 8, model.Network},
		"the endpoint does not answer": {&embedder{hangs: true}, nil, "alpha", 1000 + 4, 1, model.Timeout},
		"the endpoint panics": {
			&embedder{}, func(in *turn.Input) { in.Embeddings.Model.Provider = nil }, "alpha", 1000, 0, model.InvalidRequest,
		},
		"over the token limit": {
			&embedder{}, func(in *turn.Input) { in.Limits.MaxTokens = 3 }, "alpha", 0, 0, model.OverBudget,
		},
		"all tools are offered": {&embedder{}, func(in *turn.Input) { in.Selection.Most = 3 }, "alpha beta zeta", 1000, 0, ""},
		"by order":              {&embedder{}, func(in *turn.Input) { in.Selection.Semantic = false }, "alpha", 1000, 0, ""},
		"only prepared":         {&embedder{}, func(in *turn.Input) { in.PrepareOnly = true }, "alpha", 0, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var failed []*model.Error
				in := embedding(tc.e, &vectors.Cache{}, &failed)
				if tc.change != nil {
					tc.change(&in)
				}
				j := &journaltest.Store{}
				result, err := engine(j).Run(t.Context(), &in)
				if err != nil {
					t.Fatal(err)
				}
				if got := toolsOf(t, j); got != tc.want {
					t.Errorf("the tools are %q, want %q", got, tc.want)
				}
				if got := result.Record.Usage.InputTokens; got != tc.usage {
					t.Errorf("the Turn used %d tokens, want %d", got, tc.usage)
				}
				if len(tc.e.asked) != tc.requests {
					t.Errorf("the requests for vectors are %v, want %d", tc.e.asked, tc.requests)
				}
				if len(failed) > 1 || (tc.failure != "") != (len(failed) == 1) || tc.failure != "" && failed[0].Kind != tc.failure {
					t.Errorf("the failures are %v, want %q", failed, tc.failure)
				}
			})
		})
	}
	e, known := &embedder{words: []string{"new", "zeta"}}, &vectors.Cache{}
	for range 2 {
		in := embedding(e, known, new([]*model.Error))
		if _, err := engine(&journaltest.Store{}).Run(t.Context(), &in); err != nil {
			t.Fatal(err)
		}
	}
	if len(e.asked) != 3 {
		t.Errorf("two Turns sent the requests %v, want two for the messages and one for the tools", e.asked)
	}
}

// TestVectorsOfToolsAreRequestedAgain checks that the vectors of tools are requested once more if the model returns
// vectors of another length.
func TestVectorsOfToolsAreRequestedAgain(t *testing.T) {
	e, known := &embedder{words: []string{"new", "zeta"}}, &vectors.Cache{}
	for i, want := range []int{2, 1, 2, 1} {
		if i == 2 {
			e.zeros = 1
		}
		e.asked = nil
		in := embedding(e, known, new([]*model.Error))
		j := &journaltest.Store{}
		if _, err := engine(j).Run(t.Context(), &in); err != nil {
			t.Fatal(err)
		}
		if tools := toolsOf(t, j); tools != "zeta" || len(e.asked) != want {
			t.Errorf("Turn %d sent the requests %v and has the tools %q, want %d requests, and zeta", i+1, e.asked, tools, want)
		}
	}
}

// TestVectorsOfADeletedTurnAreCharged checks that a Turn that was deleted during its preparation is charged for the
// vectors that it has requested.
func TestVectorsOfADeletedTurnAreCharged(t *testing.T) {
	in := embedding(&embedder{}, nil, nil)
	in.UID, in.Namespace, in.Session = "a", "helpdesk", &turn.Session{UID: "talk-uid", Name: "talk"}
	in.Recall = func(context.Context, string, ranking.Vector) (turn.Recalled, error) {
		return turn.Recalled{More: true}, nil
	}
	broken := *in.Toolbox.(*box)
	broken.err = errors.New("the process is gone")
	in.Toolbox = &broken
	j := &journaltest.Store{}
	if _, err := engine(j).Run(t.Context(), &in); err == nil {
		t.Fatal("the run ended the Turn")
	}
	for range 2 {
		if place := charge(t, j); place == nil || place.Number != 1 || place.Totals.Turns != 1 || place.Totals.Usage.InputTokens != 7 {
			t.Errorf("the place in the Session is %+v, want number 1 with 7 tokens", place)
		}
	}
	if got := recordOf(t, j); got.Session != "talk" {
		t.Errorf("the record names the Session %q, want %q", got.Session, "talk")
	}
}

// toolsOf returns the names of the tools in a journal.
func toolsOf(t *testing.T, j *journaltest.Store) string {
	t.Helper()
	var names []string
	for e, err := range j.Read(t.Context(), "uid", 0) {
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, exposedIn(t, e)...)
	}
	return strings.Join(names, " ")
}

// TestMemoriesAreRecalledByMeaning checks that the vector of the message is requested only if there are more memories
// than fit into the prompt.
func TestMemoriesAreRecalledByMeaning(t *testing.T) {
	for name, tc := range map[string]struct {
		more     bool
		fails    error
		requests int
		want     string
	}{
		"all are in the prompt": {false, nil, 0, "by words"},
		"there are more":        {true, nil, 1, "by meaning"},
		"there is no socket":    {true, nil, 2, "by meaning"},
		"the endpoint fails":    {true, &model.Error{Kind: model.Auth, Message: "no key"}, 1, "by words"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e, failed := &embedder{err: tc.fails, shortages: max(0, tc.requests-1)}, []*model.Error{}
				in := embedding(e, &vectors.Cache{}, &failed)
				in.Toolbox, in.Preparation = nil, preparationOf(func(p *prepare.Input) { p.Agent.MaxMemories = 5 })
				in.Recall = func(_ context.Context, _ string, v ranking.Vector) (turn.Recalled, error) {
					text := "by words"
					if v.Given() {
						text = "by meaning"
					}
					m := turncontext.Memory{ID: "m", Text: text, Relevance: 1, Learned: true}
					return turn.Recalled{More: tc.more, Memories: []turncontext.Memory{m}}, nil
				}
				j := &journaltest.Store{}
				if _, err := engine(j).Run(t.Context(), &in); err != nil {
					t.Fatal(err)
				}
				asked := in.Chain[0].Provider.(*script).requests
				var prompt strings.Builder
				for _, m := range asked[0].Messages {
					prompt.WriteString(m.Content)
				}
				if !strings.Contains(prompt.String(), tc.want) || len(e.asked) != tc.requests {
					t.Errorf("the requests for vectors are %v, and the prompt is %q; want %d requests, and %q in the prompt",
						e.asked, prompt.String(), tc.requests, tc.want)
				}
			})
		})
	}
}

// TestVectorsAreNotRequestedTwice checks that a run does not request the vectors that a killed run has paid for.
func TestVectorsAreNotRequestedTwice(t *testing.T) {
	e, failed := &embedder{words: []string{"new"}}, []*model.Error{}
	j := &journaltest.Store{}
	in := embedding(e, &vectors.Cache{}, &failed)
	in.Recall = func(context.Context, string, ranking.Vector) (turn.Recalled, error) {
		return turn.Recalled{More: true}, nil
	}
	broken := *in.Toolbox.(*box)
	broken.err = errors.New("the process is gone")
	in.Toolbox = &broken
	if _, err := engine(j).Run(t.Context(), &in); err == nil {
		t.Fatal("the first run ended the Turn")
	}
	broken.err, in.Epoch = nil, 2
	result, err := engine(j).Run(t.Context(), &in)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([][]string{{"What is new?"}}, e.asked); diff != "" {
		t.Errorf("the requests of both runs: -want +got:\n%s", diff)
	}
	if got := result.Record.Usage.InputTokens; got != 1007 {
		t.Errorf("the Turn used %d tokens, want 1007", got)
	}
}

// exposedIn returns the names of the tools that an entry exposes.
func exposedIn(t *testing.T, e journal.Entry) (names []string) {
	t.Helper()
	if e.Kind != journal.ToolsExposed {
		return nil
	}
	var x tool.Exposure
	if err := json.Unmarshal(e.Payload, &x); err != nil {
		t.Fatal(err)
	}
	for _, one := range x.Tools {
		names = append(names, one.Name)
	}
	return names
}

// TestRefusedTexts checks that other texts get their vectors although the model refuses one text, and that the refused
// text is not requested again by later Turns.
func TestRefusedTexts(t *testing.T) {
	for name, tc := range map[string]struct {
		refuses func(texts []string) bool
		tools   int
		// turns is the number of Turns after which all vectors are known.
		turns int
	}{
		"one text": {func(texts []string) bool {
			return slices.ContainsFunc(texts, func(s string) bool { return strings.Contains(s, "tool-00") })
		}, 3, 1},
		"one of many texts": {func(texts []string) bool {
			return slices.ContainsFunc(texts, func(s string) bool { return strings.Contains(s, "tool-00") })
		}, 40, 3},
		"several texts at a time": {func(texts []string) bool { return len(texts) > 1 }, 40, 7},
	} {
		t.Run(name, func(t *testing.T) {
			known := &vectors.Cache{}
			e := &embedder{words: []string{"new", fmt.Sprintf("tool-%02d", tc.tools-1)}, refuses: tc.refuses}
			run := func() (requests int, tools string) { return runWithTools(t, e, known, tc.tools) }
			for range tc.turns {
				if n, _ := run(); n > 1+8 {
					t.Errorf("a Turn sent %d requests for vectors, want one for its message and at most 8 for tools", n)
				}
			}
			n, tools := run()
			if want := fmt.Sprintf("tool-%02d", tc.tools-1); n != 1 || tools != want {
				t.Errorf("a later Turn sent the requests %v and has the tools %s, want only the request for its message, and %s",
					e.asked, tools, want)
			}
		})
	}
}

// runWithTools runs a Turn with a number of tools. It returns the number of requests for vectors, and the tools that
// the model has received.
func runWithTools(t *testing.T, e *embedder, known *vectors.Cache, number int) (requests int, tools string) {
	t.Helper()
	e.asked = nil
	in := embedding(e, known, &[]*model.Error{})
	var all []tool.Tool
	for i := range number {
		all = append(all, remote(fmt.Sprintf("tool-%02d", i), "", tool.ReadOnly))
	}
	in.Toolbox = server("desk", all...)
	j := &journaltest.Store{}
	if _, err := engine(j).Run(t.Context(), &in); err != nil {
		t.Fatal(err)
	}
	return len(e.asked), toolsOf(t, j)
}

// TestTextsThatBreakTheEndpoint checks that other tools get their vectors although the endpoint fails for one tool, and
// that an endpoint that fails for all tools receives few requests.
func TestTextsThatBreakTheEndpoint(t *testing.T) {
	for name, tc := range map[string]struct {
		breaks func(text string) bool
		tools  int
		// requests are the numbers of requests of the Turns, and want is the tool of the last one.
		requests []int
		want     string
	}{
		"one text": {
			func(s string) bool { return strings.Contains(s, "tool-01") }, 3, []int{1 + 5, 1}, "tool-02",
		},
		"one of many texts": {
			func(s string) bool { return strings.Contains(s, "tool-00") }, 40, []int{1 + 8, 1 + 5, 1}, "tool-39",
		},
		"all tools": {
			func(s string) bool { return strings.Contains(s, "tool-") }, 40, []int{1 + 3, 1 + 3}, "tool-00",
		},
	} {
		t.Run(name, func(t *testing.T) {
			known := &vectors.Cache{}
			e := &embedder{words: []string{"new", tc.want}, breaks: func(texts []string) bool {
				return slices.ContainsFunc(texts, tc.breaks)
			}}
			var requests []int
			tools := ""
			for range tc.requests {
				var n int
				n, tools = runWithTools(t, e, known, tc.tools)
				requests = append(requests, n)
			}
			if !slices.Equal(requests, tc.requests) || tools != tc.want {
				t.Errorf("the Turns sent %v requests, and the last one has the tools %s; want %v, and %s",
					requests, tools, tc.requests, tc.want)
			}
		})
	}
}

// TestLongMessageInChinese checks that a model that accepts few tokens, which are single characters in Chinese, makes
// the vector of a long message.
func TestLongMessageInChinese(t *testing.T) {
	failed := []*model.Error{}
	e := &embedder{words: []string{"新", "zeta"}, refuses: func(texts []string) bool {
		return slices.ContainsFunc(texts, func(s string) bool { return utf8.RuneCountInString(s) > 510 })
	}}
	in := embedding(e, &vectors.Cache{}, &failed)
	in.Preparation = preparationOf(func(in *prepare.Input) { in.Turn.Message = strings.Repeat("字", 700) + "新" })
	j := &journaltest.Store{}
	if _, err := engine(j).Run(t.Context(), &in); err != nil {
		t.Fatal(err)
	}
	if tools := toolsOf(t, j); tools != "zeta" || len(failed) > 0 {
		t.Errorf("the Turn has the tools %s and the failures %v, want zeta, and no failures", tools, failed)
	}
}
