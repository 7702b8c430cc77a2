package server

import (
	"encoding/json"
	"net/http"
	"testing"
)

// TestEmbeddings checks that texts with the same words, or with words of the same meaning, have similar vectors.
func TestEmbeddings(t *testing.T) {
	m := serveRules(t, `
embeddings: {dimensions: 64, synonyms: [[printer, LaserJet]]}
rules:
- when: {contains: laserjet}
  reply: {text: "not for embeddings"}
- when: {embeddings: true, contains: broken}
  fault: {status: 503}
`)
	ask := func(body string) (status int, vectors [][]float64, tokens int) {
		resp := m.do(t, http.MethodPost, "/v1/embeddings", body)
		var answer struct {
			Data  []struct{ Embedding []float64 }
			Usage struct {
				Total int `json:"total_tokens"`
			}
		}
		if err := json.Unmarshal([]byte(resp.body), &answer); err != nil {
			t.Fatalf("%s: %v", resp.body, err)
		}
		for _, d := range answer.Data {
			vectors = append(vectors, d.Embedding)
		}
		return resp.status, vectors, answer.Usage.Total
	}
	status, v, tokens := ask(`{"model":"demo","input":["the printer","The LASERJET!","bicycles","?"]}`)
	if status != http.StatusOK || len(v) != 4 || len(v[0]) != 64 || tokens != 9 {
		t.Fatalf("status %d, %d vectors, %d tokens; want 200, 4 and 9", status, len(v), tokens)
	}
	product := func(a, b []float64) (sum float64) {
		for i := range a {
			sum += a[i] * b[i]
		}
		return sum
	}
	if got := product(v[0], v[1]); got < 0.99 {
		t.Errorf("the similarity of texts with the same meaning is %f, want at least 0.99", got)
	}
	if got := product(v[0], v[2]); got > 0.01 {
		t.Errorf("the similarity of texts without a common word is %f, want at most 0.01", got)
	}
	if status, v, _ := ask(`{"model":"demo","input":["x"],"dimensions":8}`); status != http.StatusOK || len(v[0]) != 8 {
		t.Errorf("status %d with %d vectors, want one of 8 dimensions", status, len(v))
	}
	for body, want := range map[string]int{
		`{"model":"demo","input":["it is broken"]}`: http.StatusServiceUnavailable,
		`{"model":"demo","input":[]}`:               http.StatusBadRequest,
		`{"model":"demo","input":[""]}`:             http.StatusBadRequest,
		`{"model":"demo","input":[1]}`:              http.StatusBadRequest,
	} {
		if status, _, _ := ask(body); status != want {
			t.Errorf("%s gives status %d, want %d", body, status, want)
		}
	}
	if s := m.Stats(); s.Billed != 2 || s.BilledInputTokens != 10 || s.BilledOutputTokens != 0 {
		t.Errorf("the bills are %+v, want 2 with 10 tokens", s)
	}
}
