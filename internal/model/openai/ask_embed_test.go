package openai_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/runtime/ask"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/memories"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// refusal is an answer of an endpoint that refuses a request.
type refusal struct {
	status  int
	message string
}

// The refusals of the tests.
var (
	invalid  = &refusal{http.StatusBadRequest, `{"error":{"message":"Invalid input."}}`}
	tooLong  = &refusal{http.StatusBadRequest, `{"error":{"message":"Too long.","code":"context_length_exceeded"}}`}
	filtered = &refusal{http.StatusBadRequest, `{"error":{"message":"No.","code":"content_filter"}}`}
	unknown  = &refusal{http.StatusNotFound, `{"error":{"message":"There is no such model."}}`}
	limited  = &refusal{http.StatusTooManyRequests, `{"error":{"message":"Slow down."}}`}
	broken   = &refusal{http.StatusInternalServerError, `{"error":{"message":"Failed."}}`}
	// unavailable is an error of a gateway without a backend.
	unavailable = &refusal{http.StatusServiceUnavailable, `{"error":{"message":"No backend."}}`}
	// tooLarge is an error of llama.cpp about a single text: github.com/canonical/inference-snaps/issues/344.
	tooLarge = &refusal{http.StatusInternalServerError, `{"error":{"code":500,"message":"input (1400 tokens) is too large to process. ` +
		`increase the physical batch size (current batch size: 512)","type":"server_error"}}`}
	// silent is no answer: the endpoint waits until the client has dropped the request.
	silent = &refusal{}
)

// withoutMeaning is a text whose vector has only zeros.
const withoutMeaning = "..."

// embeddings starts an endpoint for embeddings, and returns it as a model. answer returns nil if the endpoint accepts
// the texts of the request with this number, counted from 1. requests counts the requests.
func embeddings(t *testing.T, requests *int, answer func(number int, texts []string) *refusal) *loop.Candidate {
	t.Helper()
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		var body struct{ Input []string }
		data, err := io.ReadAll(r.Body)
		if err == nil {
			err = json.Unmarshal(data, &body)
		}
		if err != nil {
			t.Errorf("the request is %q (error %v)", data, err)
		}
		*requests++ // they are sent one after another
		refused := answer(*requests, body.Input)
		if refused == silent {
			<-r.Context().Done()
			return
		}
		if refused != nil {
			w.WriteHeader(refused.status)
			_, _ = io.WriteString(w, refused.message)
			return
		}
		var all []string
		for _, text := range body.Input {
			values := "[0,1]"
			if text == withoutMeaning {
				values = "[0,0]"
			}
			all = append(all, `{"embedding":`+values+`}`)
		}
		_, _ = io.WriteString(w, `{"data":[`+strings.Join(all, ",")+`],"usage":{"prompt_tokens":1}}`)
	})
	return &loop.Candidate{ProviderName: "vectors", Model: "e", Provider: provider(t, url), Embeds: true, Retry: loop.Retry{MaxAttempts: 1}}
}

// TestEmbedMarksUnusableVectors checks that a text without a usable vector is marked, so that it is not requested
// again.
func TestEmbedMarksUnusableVectors(t *testing.T) {
	requests := 0
	c := embeddings(t, &requests, func(int, []string) *refusal { return nil })
	all := []memories.Memory{{ID: "a", Text: "a"}, {ID: "b", Text: withoutMeaning}}
	embedded, _, err := ask.Embed(t.Context(), c, "space", 0, all, nil)
	if len(embedded) != 2 || !embedded[0].Vector.Given() || embedded[1].Vector.Given() || embedded[1].Vector.Space != "space" ||
		err != nil {
		t.Errorf("the vectors are %+v, %v; want a vector for a, and a mark for b", embedded, err)
	}
}

// TestEmbedMemories checks that a text that the model refuses does not keep the others from their vectors, that it is
// marked, and that no text is marked because of a failure of the endpoint.
func TestEmbedMemories(t *testing.T) {
	when := func(refused *refusal, words ...string) func(int, []string) *refusal {
		return func(_ int, texts []string) *refusal {
			for _, word := range words {
				if slices.Contains(texts, word) {
					return refused
				}
			}
			return nil
		}
	}
	always := func(refused *refusal) func(int, []string) *refusal {
		return func(int, []string) *refusal { return refused }
	}
	for name, tc := range map[string]struct {
		texts  int
		answer func(number int, texts []string) *refusal
		// vectors is the number of texts with a vector, marked the texts that get none, and requests the number of
		// requests.
		vectors  int
		marked   []string
		requests int
		kind     model.ErrorKind
	}{
		"all":                    {20, always(nil), 20, nil, 2, ""},
		"none":                   {0, always(nil), 0, nil, 0, ""},
		"an invalid text":        {20, when(invalid, "t03"), 19, []string{"t03"}, 2 + 16, model.InvalidRequest},
		"the newest are invalid": {6, when(invalid, "t00", "t01"), 4, []string{"t00", "t01"}, 1 + 6, model.InvalidRequest},
		"a text is too long":     {3, when(tooLong, "t01"), 2, []string{"t01"}, 1 + 3, model.ContextLength},
		"a filtered text":        {3, when(filtered, "t02"), 2, []string{"t02"}, 1 + 3, model.ContentFiltered},
		"all texts are filtered": {5, always(filtered), 0, []string{"t00", "t01", "t02", "t03", "t04"}, 1 + 5, model.ContentFiltered},
		"only a filtered text":   {1, always(filtered), 0, []string{"t00"}, 1, model.ContentFiltered},
		"only an invalid text":   {1, always(invalid), 0, nil, 1, model.InvalidRequest},
		"a text that breaks the server": {
			20, when(broken, "t03"), 19, []string{"t03"}, 2 + 2*4 + 1, model.Overloaded,
		},
		"two texts that break it": {
			16, when(broken, "t03", "t05"), 14, []string{"t03", "t05"}, 1 + 2 + 2 + 4 + 4 + 2, model.Overloaded,
		},
		"only a text that breaks the server": {1, always(broken), 0, nil, 1, model.Overloaded},
		"the server fails once": {16, func(number int, _ []string) *refusal {
			if number == 1 {
				return broken
			}
			return nil
		}, 16, nil, 3, ""},
		"the server fails twice for one text": {2, func(number int, _ []string) *refusal {
			return []*refusal{broken, broken, nil, nil}[number-1]
		}, 2, nil, 4, ""},
		"the gateway fails":        {20, always(unavailable), 0, nil, 1, model.Overloaded},
		"an unknown model":         {20, always(unknown), 0, nil, 2 + 3, model.InvalidRequest},
		"the endpoint has a limit": {20, always(limited), 0, nil, 1, model.RateLimited},
		"the endpoint fails":       {40, always(broken), 0, nil, 3, model.Overloaded},
		"a short list fails":       {2, always(broken), 0, nil, 3, model.Overloaded},
		"a text is too large":      {3, when(tooLarge, "t01"), 2, []string{"t01"}, 1 + 3, model.ContextLength},
		"one text at a time": {40, func(_ int, texts []string) *refusal {
			if len(texts) > 1 {
				return invalid
			}
			return nil
		}, 40, nil, 3 + 40, ""},
		"the endpoint fails after a refusal": {5, func(number int, _ []string) *refusal {
			return []*refusal{invalid, nil, invalid, broken, broken, broken}[number-1]
		}, 1, []string{"t01"}, 6, model.Overloaded},
		"the endpoint has a limit after a refusal": {5, func(number int, _ []string) *refusal {
			return []*refusal{invalid, nil, invalid, limited}[number-1]
		}, 1, []string{"t01"}, 4, model.RateLimited},
	} {
		t.Run(name, func(t *testing.T) {
			var all []memories.Memory
			for i := range tc.texts {
				text := fmt.Sprintf("t%02d", i)
				all = append(all, memories.Memory{ID: text, Text: text})
			}
			requests := 0
			c := embeddings(t, &requests, tc.answer)
			embedded, used, err := ask.Embed(t.Context(), c, "space", 0, all, nil)
			vectors := map[string]bool{}
			var marked []string
			for _, e := range embedded {
				if e.Vector.Space != "space" {
					t.Errorf("the vector of %s has the space %q", e.ID, e.Vector.Space)
				}
				if vectors[e.ID] = e.Vector.Given(); !vectors[e.ID] {
					marked = append(marked, e.ID)
				}
			}
			if len(vectors) != len(embedded) || len(vectors)-len(marked) != tc.vectors {
				t.Errorf("%d vectors of %d texts, want %d", len(embedded)-len(marked), len(vectors), tc.vectors)
			}
			if slices.Sort(marked); !cmp.Equal(tc.marked, marked) {
				t.Errorf("the texts %v are marked, want %v", marked, tc.marked)
			}
			if requests != tc.requests {
				t.Errorf("%d requests, want %d", requests, tc.requests)
			}
			if kind := kindOf(err); kind != tc.kind {
				t.Errorf("the error is %v, want the kind %q", err, tc.kind)
			}
			if (used.Usage.InputTokens > 0) != (tc.vectors > 0) {
				t.Errorf("the usage is %+v", used.Usage)
			}
		})
	}
}

// kindOf returns the kind of a failure, or an empty kind if there is none.
func kindOf(err error) model.ErrorKind {
	if err == nil {
		return ""
	}
	return model.AsError(err).Kind
}

// TestEmbedMemoriesIsCancelled checks that no text is marked because its request was cancelled.
func TestEmbedMemoriesIsCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	requests := 0
	c := embeddings(t, &requests, func(number int, _ []string) *refusal {
		if number == 1 {
			return invalid
		}
		if number == 3 {
			cancel()
			return silent // an answer could arrive before the client notices that the request was cancelled
		}
		return nil
	})
	all := []memories.Memory{{ID: "a", Text: "a"}, {ID: "b", Text: "b"}, {ID: "c", Text: "c"}}
	embedded, _, err := ask.Embed(ctx, c, "space", 0, all, nil)
	if len(embedded) != 1 || embedded[0].ID != "a" || !embedded[0].Vector.Given() || kindOf(err) != model.Cancelled {
		t.Errorf("%+v, %v; want the vector of the first text, and an error", embedded, err)
	}
}
