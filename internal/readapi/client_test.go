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

func TestResponsesOfServers(t *testing.T) {
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
			"blank lines are beats",
			lines("\n" + oneLine + "\n\n" + strings.Replace(oneLine, `"seq":1`, `"seq":2`, 1)), 2, false, 0, "",
		},
		"nothing": {"a Turn may have no journal yet", lines(""), 0, false, 0, ""},
		"broken off": {"a transfer that is not ended is not the end", func(w http.ResponseWriter, r *http.Request) {
			lines(oneLine)(w, r)
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}, 1, true, 0, "the connection broke"},
		"within a line": {"nor is half a line", lines(oneLine + `{"seq":`), 1, true, 0, "the connection broke"},
		"an error": {
			"what follows could not be read",
			lines(oneLine + `{"status":503,"error":"the store is away"}` + "\n"), 1, false, 503, "the store is away",
		},
		"a refusal": {"it says what to do", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusForbidden)
			_, _ = io.WriteString(w, `{"status":403,"error":"you may not"}`)
		}, 0, false, 403, "you may not"},
		"a proxy": {"something else listens there", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusBadGateway)
			_, _ = io.WriteString(w, "<html>")
		}, 0, false, 0, `answered "502 Bad Gateway" instead of a journal`},
		"a page": {"a page is no journal", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			_, _ = io.WriteString(w, "<html>")
		}, 0, false, 0, `answered "200 OK" instead of a journal`},
		"another place": {"a token goes to the server that was named, and no other", func(w http.ResponseWriter, r *http.Request) {
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
				t.Errorf("%s: want %d entries, broken %t; have %d, %v", tc.reason, tc.entries, tc.broken, n, failure)
			}
			if e, ok := errors.AsType[*readapi.Error](failure); ok != (tc.status != 0) || (ok && e.Status != tc.status) {
				t.Errorf("%s: want status %d, have %v", tc.reason, tc.status, failure)
			}
		})
	}
}

func TestRequestsToServers(t *testing.T) {
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
		t.Errorf("want %s, have %s", want, got)
	}
}
