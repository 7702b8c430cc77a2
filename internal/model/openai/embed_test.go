package openai_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capstan-dev/capstan/internal/model/anthropic"
	"github.com/capstan-dev/capstan/internal/model/endpoint"
	"github.com/capstan-dev/capstan/internal/model/openai"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// embed returns a request for the vectors of texts.
func embed(texts ...string) *model.Request {
	return &model.Request{ID: "turn/1", Model: "small/1", Embed: &model.Embed{Texts: texts}, Facts: &model.Facts{}}
}

func TestRequestForVectors(t *testing.T) {
	for name, tc := range map[string]struct {
		dialect    openai.Dialect
		dimensions int
		path, body string
		header     string
	}{
		"plain": {
			openai.Dialect{Extra: []model.ExtraField{{Name: "top_k", Value: "3"}}},
			0, "/v1/embeddings",
			`{"model":"small/1","input":["a","b"],"encoding_format":"float"}`, "Authorization",
		},
		"with dimensions": {
			openai.Dialect{},
			256, "/v1/embeddings",
			`{"model":"small/1","input":["a","b"],"encoding_format":"float","dimensions":256}`, "Authorization",
		},
		"with dimensions, Mistral": {
			openai.DialectOf("Mistral", ""),
			256, "/v1/embeddings",
			`{"model":"small/1","input":["a","b"],"encoding_format":"float","output_dimension":256}`, "Authorization",
		},
		"with dimensions, Voyage": {
			openai.DialectOf("", "https://api.voyageai.com/v1"),
			256, "/v1/embeddings",
			`{"model":"small/1","input":["a","b"],"encoding_format":"float","output_dimension":256}`, "Authorization",
		},
		"a deployment of Azure": {
			openai.Dialect{APIVersion: "2024-10-21"},
			0, "/v1/deployments/small%2F1/embeddings?api-version=2024-10-21",
			`{"model":"small/1","input":["a","b"],"encoding_format":"float"}`, "Api-Key",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var path, body string
			url := serve(t, func(w http.ResponseWriter, r *http.Request) {
				data, err := io.ReadAll(r.Body)
				if err != nil || !strings.Contains(r.Header.Get(tc.header), key) || r.Header.Get("X-Client-Request-Id") != "turn/1" {
					t.Errorf("the headers are %v (error %v), want the key in %s and the ID", r.Header, err, tc.header)
				}
				path, body = r.URL.RequestURI(), string(data)
				_, _ = io.WriteString(w, `{"model":"large","data":[{"embedding":[2,0]},{"embedding":[0,2]}],"usage":{"prompt_tokens":4}}`)
			})
			req := embed("a", "b")
			req.Embed.Dimensions = tc.dimensions
			got, err := provider(t, url, withDialect(tc.dialect)).Generate(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			want := &model.Reply{
				Vectors: [][]float32{{1, 0}, {0, 1}}, Usage: model.Usage{InputTokens: 4}, FinishReason: model.FinishStop,
			}
			if diff := cmp.Diff(want, got); diff != "" || req.Facts.Model != "large" {
				t.Errorf("the model is %q; the reply differs: -want +got:\n%s", req.Facts.Model, diff)
			}
			if path != tc.path || body != tc.body {
				t.Errorf("the request is %s %s, want %s %s", path, body, tc.path, tc.body)
			}
		})
	}
}

// TestAnswersWithVectorsAreBounded checks that an answer of the maximum length is read, and that a longer one fails.
func TestAnswersWithVectorsAreBounded(t *testing.T) {
	answer := func(dimensions int) string {
		one := "[" + strings.Repeat("-0.0069292834959924221,        ", dimensions-1) + "1]"
		return `{"data":[` + strings.Repeat(`{"embedding":`+one+`},`, model.MaxEmbedTexts-1) + `{"embedding":` + one + `}]}`
	}
	texts := strings.Split(strings.Repeat("x", model.MaxEmbedTexts), "")
	got, err := provider(t, serve(t, respond(http.StatusOK, answer(model.MaxDimensions)))).Generate(t.Context(), embed(texts...))
	if err != nil || len(got.Vectors) != model.MaxEmbedTexts || len(got.Vectors[15]) != model.MaxDimensions {
		t.Fatalf("the longest answer gives %v", err)
	}
	url := serve(t, respond(http.StatusOK, answer(2*model.MaxDimensions)))
	_, err = provider(t, url).Generate(t.Context(), embed(texts...))
	if e := model.AsError(err); e == nil || e.Kind != model.ReplyTooLong {
		t.Errorf("a longer answer gives %v, want ReplyTooLong", err)
	}
	url = serve(t, respond(http.StatusOK, `{"data":[{"embedding":[`+strings.Repeat("1,", model.MaxDimensions)+`1]}]}`))
	if _, err = provider(t, url).Generate(t.Context(), embed("x")); err == nil || model.AsError(err).Kind != model.Malformed {
		t.Errorf("a vector that is too long gives %v, want Malformed", err)
	}
}

// TestErrorsOfEmbeddingsHaveNoSecrets checks that an endpoint that repeats the key does not reveal it.
func TestErrorsOfEmbeddingsHaveNoSecrets(t *testing.T) {
	for name, body := range map[string]string{
		"an error":   fmt.Sprintf(`{"error":"wrong key %s"}`, key),
		"no JSON":    "wrong key " + key,
		"no vectors": fmt.Sprintf(`{"data":[],"model":%q}`, key),
	} {
		req := embed("x")
		_, err := provider(t, serve(t, respond(http.StatusOK, body))).Generate(t.Context(), req)
		data, _ := json.Marshal(err)
		if e := model.AsError(err); err == nil || strings.Contains(string(data)+e.RemoteMessage+e.Message+req.Facts.Model, key) {
			t.Errorf("%s gives %s, want an error without the key", name, data)
		}
	}
}

// TestAnthropicHasNoEmbeddings checks that nothing is sent in a protocol without embeddings.
func TestAnthropicHasNoEmbeddings(t *testing.T) {
	url := serve(t, func(http.ResponseWriter, *http.Request) { t.Error("a request was sent") })
	p := anthropic.New(anthropic.Config{Config: endpoint.Config{Name: "claude", BaseURL: url}})
	t.Cleanup(p.Close)
	_, err := p.Generate(t.Context(), embed("x"))
	e := model.AsError(err)
	if err == nil || e.Kind != model.InvalidRequest || !e.Unsent || !strings.Contains(e.Message, "has no embeddings") {
		t.Errorf("the error is %v, want an InvalidRequest that was not sent, because the protocol has no embeddings", err)
	}
}
