package readapi_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/capstan-dev/capstan/internal/readapi"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// clientOf returns a client of a server with this handler.
func clientOf(t *testing.T, answer http.HandlerFunc) *readapi.Client {
	t.Helper()
	server := httptest.NewServer(answer)
	t.Cleanup(server.Close)
	base := &http.Transport{}
	t.Cleanup(base.CloseIdleConnections)
	c, err := readapi.NewClient(server.URL, base)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func lines(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/jsonl; charset=utf-8")
		_, _ = io.WriteString(w, text)
	}
}

const oneLine = `{"seq":1,"epoch":1,"kind":"run.started","version":1,"time":"2026-04-09T12:00:00Z","payload":{"name":"first"}}` + "\n"

func TestClientReadsResponses(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		reason  string
		answer  http.HandlerFunc
		entries int
		broken  bool
		status  int
		want    string
	}{
		"a journal": {
			"blank lines only show that the connection works",
			lines("\n" + oneLine + "\n\n" + strings.Replace(oneLine, `"seq":1`, `"seq":2`, 1)), 2, false, 0, "",
		},
		"nothing": {"a Turn may have no journal yet", lines(""), 0, false, 0, ""},
		"interrupted": {"an incomplete transfer is not the end of the journal", func(w http.ResponseWriter, r *http.Request) {
			lines(oneLine)(w, r)
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}, 1, true, 0, "the connection broke"},
		"within a line": {
			"an incomplete line is not the end of the journal", lines(oneLine + `{"seq":`), 1, true, 0, "the connection broke",
		},
		"an error": {
			"the server could not read further entries",
			lines(oneLine + `{"status":503,"error":"the store is unreachable"}` + "\n"), 1, false, 503, "the store is unreachable",
		},
		"a refusal": {"the error of the server is returned", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusForbidden)
			_, _ = io.WriteString(w, `{"status":403,"error":"you may not"}`)
		}, 0, false, 403, "you may not"},
		"a proxy": {"its server may come back", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusBadGateway)
			_, _ = io.WriteString(w, "<html>")
		}, 0, true, 0, `answered "502 Bad Gateway" instead of a journal`},
		"another server": {"something else listens there", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, "<html>")
		}, 0, false, 0, `answered "404 Not Found" instead of a journal`},
		"a page": {"a page is not a journal", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			_, _ = io.WriteString(w, "<html>")
		}, 0, false, 0, `answered "200 OK" instead of a journal`},
		"a redirect": {"a token is sent only to the named server", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://192.0.2.1/", http.StatusFound)
		}, 0, false, 0, `answered "302 Found" instead of a journal`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := 0
			var failure error
			for _, err := range clientOf(t, tc.answer).Journal(t.Context(), readapi.Query{Namespace: "a", Name: "b"}) {
				if err != nil {
					failure = err
					break
				}
				n++
			}
			wanted(t, failure, tc.want, tc.reason)
			if n != tc.entries || errors.Is(failure, readapi.ErrBroken) != tc.broken {
				t.Errorf("%s: %d entries, error %v; want %d, broken %t", tc.reason, n, failure, tc.entries, tc.broken)
			}
			if e, ok := errors.AsType[*readapi.Error](failure); ok != (tc.status != 0) || (ok && e.Status != tc.status) {
				t.Errorf("%s: error = %v, want status %d", tc.reason, failure, tc.status)
			}
		})
	}
}

func TestClientEncodesRequests(t *testing.T) {
	t.Parallel()
	var got string
	c := clientOf(t, func(w http.ResponseWriter, r *http.Request) {
		got = r.URL.String()
		lines("")(w, r)
	})
	for _, err := range c.Journal(t.Context(), readapi.Query{Namespace: "help/desk", Name: "first", After: 7, Follow: true, Redact: true}) {
		t.Fatal(err)
	}
	if want := "/v1/namespaces/help%2Fdesk/turns/first/journal?after=7&follow=true&redact=true"; got != want {
		t.Errorf("the client requested %s, want %s", got, want)
	}
}
