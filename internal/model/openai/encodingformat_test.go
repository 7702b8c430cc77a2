package openai_test

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// TestServersThatRefuseTheEncoding checks that an endpoint that refuses encoding_format makes vectors, and that later
// requests lack the field. An endpoint that refuses requests for other reasons receives each only once.
func TestServersThatRefuseTheEncoding(t *testing.T) {
	const field = `,"encoding_format":"float"`
	for name, tc := range map[string]struct {
		status  int
		refusal string
		// always is true if the endpoint refuses all requests.
		always bool
		// sent says of each request of the test whether it has the field.
		sent []bool
	}{
		// github.com/1Panel-dev/MaxKB/issues/2639
		"Jina": {
			http.StatusBadRequest, `{"detail":"extra fields not permitted: ['encoding_format']"}`,
			false,
			[]bool{true, false, false},
		},
		// github.com/labring/FastGPT/issues/6820
		"Voyage": {
			http.StatusBadRequest,
			`{"detail":"Value 'float' supplied for argument 'encoding_format' is not valid -- accepted values are 'base64'"}`,
			false,
			[]bool{true, false, false},
		},
		"as a list": {
			http.StatusUnprocessableEntity,
			`{"detail":[{"type":"extra_forbidden","loc":["body","encoding_format"],"msg":"Extra inputs are not permitted"}]}`,
			false,
			[]bool{true, false, false},
		},
		"no vectors at all": {http.StatusBadRequest, `{"detail":"encoding_format is unknown"}`, true, []bool{true, false, true, false}},
		"another reason":    {http.StatusBadRequest, `{"detail":"input is too short"}`, true, []bool{true, true}},
		"the key":           {http.StatusUnauthorized, `{"detail":"no key for encoding_format"}`, true, []bool{true, true}},
	} {
		t.Run(name, func(t *testing.T) {
			var sent []bool
			p := provider(t, serve(t, func(w http.ResponseWriter, r *http.Request) {
				body, err := io.ReadAll(r.Body)
				if err != nil {
					t.Error(err)
				}
				sent = append(sent, strings.Contains(string(body), field))
				if tc.always || sent[len(sent)-1] {
					w.WriteHeader(tc.status)
					_, _ = io.WriteString(w, tc.refusal)
					return
				}
				_, _ = io.WriteString(w, `{"data":[{"embedding":[1,0]}],"usage":{"total_tokens":4}}`)
			}))
			for range 2 {
				got, err := p.Generate(t.Context(), embed("a"))
				if tc.always != (err != nil) || err == nil && (len(got.Vectors) != 1 || got.Usage != model.Usage{InputTokens: 4}) {
					t.Errorf("got %+v, error %v", got, err)
				}
			}
			if !slices.Equal(sent, tc.sent) {
				t.Errorf("the requests have the field: %v, want %v", sent, tc.sent)
			}
		})
	}
}
