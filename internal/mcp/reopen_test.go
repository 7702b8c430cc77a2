package mcp

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/capstan-dev/capstan/internal/fairgate"
)

// scriptedServer responds to each request with the next response, and to all further requests with the last one.
type scriptedServer struct {
	responses []func() (status int, body io.ReadCloser)
	ids       []string
}

// RoundTrip returns the next response.
func (s *scriptedServer) RoundTrip(req *http.Request) (*http.Response, error) {
	var m struct {
		ID json.RawMessage `json:"id"`
	}
	if err := json.NewDecoder(req.Body).Decode(&m); err != nil {
		return nil, err
	}
	next := s.responses[min(len(s.ids), len(s.responses)-1)]
	s.ids = append(s.ids, string(m.ID))
	status, body := next()
	resp := reply(req, &http.Response{}, status, eventsType, nil)
	resp.Body = body
	return resp, nil
}

// listenTo reads the stream of notifications of a server for an hour. It returns how often a change was reported, and
// the time of the last report.
func listenTo(life context.Context, t *testing.T, server *scriptedServer) (changes int, last time.Duration) {
	t.Helper()
	began := time.Now()
	w := &wire{client: &http.Client{Transport: server}, url: "http://server", life: life}
	w.onChange = func() { changes, last = changes+1, time.Since(began) }
	ctx, cancel := context.WithCancel(context.WithoutCancel(life))
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	message := []byte(`{"jsonrpc":"2.0","id":2,"method":"subscriptions/listen"}`)
	resp := w.openStandingStream(req, message) //nolint:bodyclose // because the end of this function closes it
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			t.Errorf("the stream ends with %v", err)
		}
	}()
	time.Sleep(time.Hour)
	cancel()
	<-ended
	if err := resp.Body.Close(); err != nil {
		t.Error(err)
	}
	return changes, last
}

// ended returns a response with a body that ends.
func ended(status int, body string) func() (int, io.ReadCloser) {
	return func() (int, io.ReadCloser) { return status, io.NopCloser(strings.NewReader(body)) }
}

// TestReopenedStream checks how often the stream of notifications is requested, each time with another ID, and after
// which requests the tools are listed again.
func TestReopenedStream(t *testing.T) {
	const (
		acknowledged = `data: {"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged"}` + "\n\n"
		unknown      = `data: {"jsonrpc":"2.0","id":2,"error":{"code":-32601,"message":"unknown method"}}` + "\n\n"
		result       = `data: {"jsonrpc":"2.0","id":2,"result":{}}` + "\n\n"
	)
	refused := ended(http.StatusBadRequest, "")
	for name, tc := range map[string]struct {
		responses         []func() (int, io.ReadCloser)
		requests, changes int
	}{
		"an error":                           {[]func() (int, io.ReadCloser){ended(200, unknown)}, 1, 0},
		"an error after a failed attempt":    {[]func() (int, io.ReadCloser){ended(503, ""), ended(200, unknown)}, 2, 1},
		"an error in an acknowledged stream": {[]func() (int, io.ReadCloser){ended(200, acknowledged+unknown), refused}, 2, 0},
		"an end":                             {[]func() (int, io.ReadCloser){ended(200, result), ended(200, ""), refused}, 3, 1},
		"a stream at the second attempt":     {[]func() (int, io.ReadCloser){ended(503, ""), ended(200, acknowledged), refused}, 3, 1},
		"no stream":                          {[]func() (int, io.ReadCloser){ended(503, ""), refused}, 2, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := &scriptedServer{responses: tc.responses}
				changes, _ := listenTo(t.Context(), t, server)
				if len(server.ids) != tc.requests || changes != tc.changes {
					t.Errorf("%d requests and %d reports of a change, want %d and %d", len(server.ids), changes, tc.requests, tc.changes)
				}
				ids := slices.Sorted(slices.Values(server.ids))
				if len(slices.Compact(ids)) != len(server.ids) {
					t.Errorf("the requests have the IDs %s, want each once", server.ids)
				}
			})
		})
	}
}

// TestNotificationsTakeTurns checks that the stream of notifications takes its turn with other namespaces, although the
// context of its request is not that of the client.
func TestNotificationsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const many = 100_000
		change := `data: {"jsonrpc":"2.0","method":"notifications/tools/list_changed"}` + "\n\n"
		server := &scriptedServer{responses: []func() (int, io.ReadCloser){
			ended(200, strings.Repeat("data:\n\n", many)+change), ended(http.StatusBadRequest, ""),
		}}
		changes, last := listenTo(fairgate.NewProcessors(1).With(t.Context(), "team"), t, server)
		if changes != 1 || last == 0 {
			t.Errorf("%d reports of a change, the last one after %s; want one after a time in which others could work", changes, last)
		}
	})
}
