package server

import (
	"cmp"
	"encoding/json"
	"hash/fnv"
	"io"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

const (
	// defaultDimensions is the length of the vectors if neither the configuration nor the request sets it.
	// maxDimensions is the greatest length.
	defaultDimensions, maxDimensions = 256, 4096
	// maxInputs is the greatest number of texts in one request, the same as OpenAI's.
	maxInputs = 2048
)

// embeddingsRequest is the body of a request for embeddings. Input is a list of texts.
type embeddingsRequest struct {
	Model      string   `json:"model"`
	Input      []string `json:"input"`
	Dimensions int      `json:"dimensions"`
}

// wireEmbedding is the vector of one text.
type wireEmbedding struct {
	Object    string    `json:"object"`
	Index     int       `json:"index"`
	Embedding []float64 `json:"embedding"`
}

// embed answers POST /v1/embeddings. Rules with the condition embeddings apply.
func (s *Server) embed(w http.ResponseWriter, r *http.Request) {
	started := s.clock.Now()
	x := &exchange{server: s, w: w, r: r, rules: s.rules.Load(), embeds: &embeddingsRequest{}}
	body, readErr := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBodyBytes))
	if readErr != nil {
		body = nil // an incomplete body is useless
	}
	decodeErr := json.Unmarshal(body, x.embeds)
	asMessage, _ := json.Marshal(map[string]any{ // encoding strings cannot fail
		"model": x.embeds.Model, "messages": []map[string]string{{"role": "user", "content": strings.Join(x.embeds.Input, "\n")}},
	})
	if err := json.Unmarshal(asMessage, &x.req); err != nil && decodeErr == nil {
		decodeErr = err
	}
	x.entry = s.recorder.begin(newRequest(s.clock.Now(), r, body, &x.req, x.rules.authorized(r)))
	defer x.end(r.Context(), started)
	w.Header().Set("X-Request-Id", "req_fake_"+strconv.FormatInt(x.entry.request.Number, 10))
	if x.refuseInvalid(readErr, decodeErr) {
		return
	}
	if e := x.embeds.invalid(); e != nil {
		x.fail(OutcomeInvalidRequest, http.StatusBadRequest, *e)
		return
	}
	x.view = newView(x.entry.request.Number, &x.req)
	x.view.embeddings = true
	x.rule = x.rules.match(x.view)
	x.entry.setRule(x.rule.index)
	x.serve()
}

// invalid returns the error of a request, or nil.
func (r *embeddingsRequest) invalid() *wireError {
	switch {
	case len(r.Input) == 0:
		return missing("input")
	case len(r.Input) > maxInputs:
		return refuse("input", codeInvalid, "Invalid 'input': array too long. Expected an array with maximum length %d.", maxInputs)
	case r.Dimensions < 0 || r.Dimensions > maxDimensions:
		return refuse("dimensions", codeInvalid, "Invalid value for 'dimensions': it must be from 1 to %d.", maxDimensions)
	case slices.Contains(r.Input, ""):
		return refuse("input", codeInvalid, "Invalid 'input': input cannot be an empty string.")
	}
	return nil
}

// respondVectors sends the vectors.
func (x *exchange) respondVectors() {
	dimensions := cmp.Or(x.embeds.Dimensions, x.rules.cfg.Embeddings.Dimensions, defaultDimensions)
	data := make([]wireEmbedding, 0, len(x.embeds.Input))
	for i, text := range x.embeds.Input {
		data = append(data, wireEmbedding{"embedding", i, x.rules.vector(text, dimensions)})
	}
	if x.r.Context().Err() != nil {
		x.finish(OutcomeCancelled)
		return
	}
	x.finish(OutcomeAnswered)
	n := x.answer.usage.PromptTokens
	err := sendJSON(x.w, http.StatusOK, map[string]any{
		"object": "list", "data": data, "model": x.req.Model, "usage": map[string]int{"prompt_tokens": n, "total_tokens": n},
	})
	if err != nil {
		x.entry.setUndelivered()
	}
}

// vector returns the vector of a text, with the Euclidean length 1. Each word adds to one dimension, and synonyms add
// to the same dimension. A text without words has the vector of the empty word.
func (s *ruleset) vector(text string, dimensions int) []float64 {
	v := make([]float64, dimensions)
	words := strings.FieldsFunc(strings.ToLower(text), func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsNumber(r) })
	if len(words) == 0 {
		words = []string{""}
	}
	var squares float64
	for _, word := range words {
		h := fnv.New32a()
		_, _ = io.WriteString(h, cmp.Or(s.synonyms[word], word)) // a hash never fails
		v[int(h.Sum32()%uint32(dimensions))]++                   //nolint:gosec // because dimensions is at most 4096
	}
	for _, f := range v {
		squares += f * f
	}
	for i := range v {
		v[i] /= math.Sqrt(squares)
	}
	return v
}

// synonymsOf maps each word of the lists to the first word of its list.
func synonymsOf(lists [][]string) map[string]string {
	all := map[string]string{}
	for _, list := range lists {
		for _, word := range list {
			all[strings.ToLower(word)] = strings.ToLower(list[0])
		}
	}
	return all
}
