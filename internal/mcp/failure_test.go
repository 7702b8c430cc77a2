package mcp_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/capstan-dev/capstan/internal/mcp"
	"github.com/capstan-dev/capstan/internal/netpolicy"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// calls returns a function for tamper that handles the calls of tools with f, and no other requests.
func calls(f func(http.ResponseWriter, *http.Request)) func(http.ResponseWriter, *http.Request, message) bool {
	return func(w http.ResponseWriter, r *http.Request, m message) bool {
		if m.Method != "tools/call" {
			return false
		}
		f(w, r)
		return true
	}
}

func answer(status int, contentType, body string) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body)) // if the client has gone, the test notices it
	}
}

const (
	jsonType = "application/json"
	events   = "text/event-stream"
)

// moved redirects to another path.
func moved(status int) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", status) }
}

// hangUp closes the connection without a response.
func hangUp(w http.ResponseWriter, _ *http.Request) {
	if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
		_ = conn.Close() // the connection must break
	}
}

// TestFailedCalls checks the errors of calls to which a server responds in all kinds of wrong ways, and that the next
// call succeeds.
func TestFailedCalls(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		handle func(http.ResponseWriter, *http.Request)
		class  tool.Class
		want   string
	}{
		"401": {
			"another attempt would use the same credentials", answer(401, "text/plain", "bad token "+token),
			tool.Denied, `the server refused the credentials (HTTP 401): check key "token" of Secret "demo": bad token [redacted]`,
		},
		"403": {
			"another attempt would have the same permissions",
			answer(403, jsonType, `{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"no"}}`),
			tool.Denied, "HTTP 403",
		},
		"404": {
			"a faulty server may send this after it has made the call", answer(404, "text/plain", "gone"),
			tool.OutcomeUnknown, "the server has ended the session, and may have made the call: gone",
		},
		"403, with the advice at the end": {
			"the advice is kept", answer(403, "text/plain", strings.Repeat("policy ", 100)+"Ask for the role writer."),
			tool.Denied, "policy Ask for the role writer.",
		},
		"403, long": {
			"the length of the server's text is limited", answer(403, "text/plain", strings.Repeat("ü", 5000)),
			tool.Denied, ": " + strings.Repeat("ü", 900) + "...",
		},
		"429": {"the call was refused before it was made", answer(429, "text/plain", ""), tool.Unavailable, "HTTP 429"},
		"500": {
			"the server may have made the call", answer(500, "text/html", "<h1>Oops</h1>"), tool.OutcomeUnknown,
			"the server failed (HTTP 500): <h1>Oops</h1>",
		},
		"503": {"a gateway may have forwarded the call", answer(503, "text/plain", ""), tool.OutcomeUnknown, "HTTP 503"},
		"refused": {
			"an error without a request ID may belong to any request",
			answer(400, jsonType, `{"jsonrpc":"2.0","id":null,"error":{"code":-32602,"message":"bad `+token+`"}}`),
			tool.Failed, "the server refused the request (HTTP 400)",
		},
		"504, JSON": {
			"the error of a gateway is not an error of the protocol",
			answer(504, jsonType, `{"error":{"code":504,"message":"upstream"}}`), tool.OutcomeUnknown, "the server failed (HTTP 504)",
		},
		"408": {
			"the error of a gateway that did not get the whole request is not an error of the protocol",
			answer(408, jsonType, `{"error":{"code":1,"message":"late"}}`), tool.OutcomeUnknown, "HTTP 408",
		},
		"302": {
			"the call may have been made, with its result at the other address", moved(302), tool.OutcomeUnknown,
			"the server redirects elsewhere, and may have dealt with the request: set mcp.url to the final one",
		},
		"303": {
			"the call was made, with its result at the other address", moved(303), tool.OutcomeUnknown,
			"the server redirects elsewhere, and may have dealt with the request",
		},
		"303, without an address": {
			"the call was made, with its result at an unknown address", answer(303, "", ""),
			tool.OutcomeUnknown, "HTTP 303",
		},
		"307": {
			"the server asks for the call at another address, and has not made it", moved(307), tool.Unavailable,
			"the server redirects elsewhere, and the call was not made: set mcp.url to the final one",
		},
		"hung up": {
			"the server received the request", hangUp, tool.OutcomeUnknown,
			"the connection broke before the response arrived",
		},
		"half an event": {
			"the response is incomplete", answer(200, events, "data: {\"jsonrpc\":"), tool.OutcomeUnknown,
			"the connection broke",
		},
		"no event": {"the stream ends without a response", answer(200, events, ""), tool.OutcomeUnknown, "the connection broke"},
		"bad event": {
			"the event is not a message", answer(200, events, "data: hello\n\n"), tool.OutcomeUnknown,
			"does not follow the Model Context Protocol",
		},
		"other response": {
			"the response belongs to another request",
			answer(200, events, "data: {\"jsonrpc\":\"2.0\",\"id\":4711,\"result\":{}}\n\n"), tool.OutcomeUnknown, "the connection broke",
		},
		"HTML": {
			"a login page is not a response", answer(200, "text/html", "<html>"), tool.OutcomeUnknown,
			"does not follow the Model Context Protocol",
		},
		"bad JSON": {
			"half a message is not a response", answer(200, jsonType, `{"jsonrpc":"2.0","id":3,"result":`),
			tool.OutcomeUnknown, "does not follow the Model Context Protocol",
		},
		"a list": {
			"a list of messages is not a response", answer(200, jsonType, `[]`),
			tool.OutcomeUnknown, "does not follow the Model Context Protocol",
		},
		"202": {
			"the server may still make the call, but will not respond", answer(202, "", ""), tool.OutcomeUnknown,
			"the server accepted the request without a response to it (HTTP 202): check the path of mcp.url",
		},
		"202, events": {
			"a response with this status has no stream", answer(202, events, "data: {}\n\n"), tool.OutcomeUnknown, "HTTP 202",
		},
		"201": {
			"the server has made the call", answer(201, jsonType, `{"order":7}`), tool.OutcomeUnknown,
			`(HTTP 201): check the path of mcp.url: {"order":7}`,
		},
		"204": {"the server has made the call, which has no result", answer(204, "", ""), tool.OutcomeUnknown, "HTTP 204"},
		"huge": {"the response is too long", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", jsonType)
			for chunk := bytes.Repeat([]byte("x"), 1<<20); ; {
				if _, err := w.Write(chunk); err != nil {
					return
				}
			}
		}, tool.OutcomeUnknown, "the response exceeds 8 MiB"},
		"huge event": {"the event is too long", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", events)
			for chunk := []byte("data: " + strings.Repeat("x", 1<<20)); ; {
				if _, err := w.Write(chunk); err != nil {
					return
				}
			}
		}, tool.OutcomeUnknown, "the response exceeds 8 MiB"},
		"endless heartbeats": {"the events together are too long", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", events)
			for chunk := strings.Repeat("data: {\"type\":\"heartbeat\"}\n\n", 10_000); ; {
				if _, err := w.Write([]byte(chunk)); err != nil {
					return
				}
			}
		}, tool.OutcomeUnknown, "the response exceeds 8 MiB"},
		"endless events": {"the events together are too long", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", events)
			event := "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{\"x\":\"" +
				strings.Repeat("x", 1<<18) + "\"}}\n\n"
			for {
				if _, err := w.Write([]byte(event)); err != nil {
					return
				}
			}
		}, tool.OutcomeUnknown, "the response exceeds 8 MiB"},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, nil, says("hello", "hi"))
			c := client(t, s.URL)
			if _, err := c.Discover(patient(t)); err != nil {
				t.Fatal(err)
			}
			s.tamper(calls(tc.handle))
			e := failure(t, c, "hello")
			if e.Class != tc.class || !strings.Contains(e.Error(), tc.want) || !strings.HasPrefix(e.Error(), `tool server "demo": `) {
				t.Errorf("Call = %s %q; want %s with %q: %s", e.Class, e.Error(), tc.class, tc.want, tc.reason)
			}
			s.tamper(nil)
			if got, err := call(patient(t), c, "hello", `{}`); err != nil || got != "hi" {
				t.Errorf("the next call = %q, %v; want its result", got, err)
			}
		})
	}
}

// TestOtherEventsBesideAResponse checks that events that are not messages of the protocol do not end a call. The
// response comes after them.
func TestOtherEventsBesideAResponse(t *testing.T) {
	for name, before := range map[string]string{
		"a heartbeat":       `data: {"type":"heartbeat","timestamp":"2025-10-31T11:30:41.100Z"}`, // PhilflowIO/dav-mcp#31
		"a text":            "data: keepalive",
		"an empty object":   "event: message\ndata: {}",
		"a counter":         `data: {"type":"heartbeat","id":%s}`,
		"a large text":      "data: " + strings.Repeat("x", 100<<10),
		"a list":            "data: []",
		"many events":       strings.Repeat("data: keepalive\n\n", 1000) + "data: keepalive",
		"an error event":    "event: error\ndata: the database is slow",
		"an error, no JSON": `event: error` + "\n" + `data: {"error":"the database is slow"}`,
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, nil, says("hello", ""))
			s.tamper(func(w http.ResponseWriter, r *http.Request, m message) bool {
				if m.Method != "tools/call" {
					return false
				}
				stream := strings.ReplaceAll(before, "%s", string(m.ID)) + "\n\ndata: " + scripted(m, "").Body + "\n\n"
				answer(200, events, stream)(w, r)
				return true
			})
			if got, err := call(patient(t), client(t, s.URL), "hello", `{}`); err != nil || got != "hi" {
				t.Errorf("Call = %q, %v; want its result", got, err)
			}
		})
	}
}

// TestBrokenResponseInStream checks that a call ends at once if its response is not a message of the protocol, although
// the server keeps the stream open.
func TestBrokenResponseInStream(t *testing.T) {
	s := serve(t, nil, says("hello", ""))
	s.tamper(func(w http.ResponseWriter, r *http.Request, m message) bool {
		if m.Method != "tools/call" {
			return false
		}
		answer(200, events, fmt.Sprintf("data: {\"id\":%s,\"result\":{\"content\":[]}}\n\n", m.ID))(w, r)
		_ = http.NewResponseController(w).Flush() // if it fails, the test notices it
		<-r.Context().Done()
		return true
	})
	if e := failure(t, client(t, s.URL), "hello"); e.Class != tool.OutcomeUnknown ||
		!strings.Contains(e.Error(), "does not follow the Model Context Protocol") {
		t.Errorf("Call = %s %q, want an unknown outcome with the reason", e.Class, e)
	}
}

// TestManyPartsOfAResult checks that a result with a million empty parts is refused, and the next result is read.
func TestManyPartsOfAResult(t *testing.T) {
	s := serve(t, nil, says("hello", "hi"))
	c := client(t, s.URL)
	s.tamper(func(w http.ResponseWriter, r *http.Request, m message) bool {
		if m.Method != "tools/call" {
			return false
		}
		parts := strings.Repeat("{},", 1<<20) // each takes 120 bytes of memory
		answer(200, jsonType, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"content":[%s{}]}}`, m.ID, parts))(w, r)
		return true
	})
	if e := failure(t, c, "hello"); e.Class != tool.OutcomeUnknown ||
		!strings.Contains(e.Error(), "a list in the response has more than 10000 elements") {
		t.Errorf("Call = %s %q, want an unknown outcome with the reason", e.Class, e)
	}
	s.tamper(nil)
	if got, err := call(patient(t), c, "hello", `{}`); err != nil || got != "hi" {
		t.Errorf("the next call = %q, %v; want its result", got, err)
	}
}

// TestCallIsSentOnce checks that a call is not sent again if the server closes a reused connection during the call.
// net/http would repeat such a request if a header says that this is harmless.
func TestCallIsSentOnce(t *testing.T) {
	for name, header := range map[string]mcp.Header{
		"no such header": {Name: "X-Team", Value: "blue"}, "the header": {Name: "Idempotency-Key", Value: "k"},
		"older name of the header": {Name: "x-idempotency-key", Value: "k"},
		"empty header":             {Name: "Idempotency-Key"},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, &sdk.StreamableHTTPOptions{JSONResponse: true}, says("hello", "hi"))
			c := client(t, s.URL, func(cfg *mcp.Config) { cfg.Headers = []mcp.Header{header} })
			// A connection can be reused only a moment after its response. Until then, a call gets a new connection.
			eventually(t, "a call on a connection that was used before", func() bool {
				s.tamper(nil)
				if got, err := call(patient(t), c, "hello", `{}`); err != nil || got != "hi" {
					t.Fatalf("Call = %q, %v", got, err)
				}
				used := map[string]bool{}
				for _, r := range s.requests() {
					used[r.RemoteAddr] = true
				}
				addresses := make(chan string, 10)
				s.tamper(calls(func(w http.ResponseWriter, r *http.Request) {
					addresses <- r.RemoteAddr
					hangUp(w, r)
				}))
				if e := failure(t, c, "hello"); e.Class != tool.OutcomeUnknown {
					t.Errorf("Call = %s %q, want an unknown outcome", e.Class, e.Error())
				}
				if n := len(addresses); n != 1 {
					t.Fatalf("the call was sent %d times, want once", n)
				}
				return used[<-addresses]
			})
		})
	}
}

// TestSlowServerDoesNotBlockOthers checks that large responses of other servers arrive while a server has begun large
// responses and then stopped sending.
func TestSlowServerDoesNotBlockOthers(t *testing.T) {
	for name, tc := range map[string]struct{ kind, length, begin string }{
		"events":               {events, "", "data: "},
		"JSON":                 {jsonType, "", ""},
		"JSON of known length": {jsonType, "8000000", ""},
	} {
		t.Run(name, func(t *testing.T) {
			begun := make(chan struct{}, 8)
			slow := serve(t, nil, says("hello", ""))
			slow.tamper(calls(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", tc.kind)
				if tc.length != "" {
					w.Header().Set("Content-Length", tc.length)
				}
				// If the client has gone, the test notices it
				_, _ = w.Write([]byte(tc.begin + strings.Repeat("x", 300<<10)))
				_ = http.NewResponseController(w).Flush()
				begun <- struct{}{}
				<-r.Context().Done()
			}))
			ctx, leave := context.WithCancel(patient(t))
			var all sync.WaitGroup
			defer all.Wait()
			defer leave()
			stuck := client(t, slow.URL)
			for range cap(begun) {
				all.Go(func() { _, _ = call(ctx, stuck, "hello", `{}`) }) // the call ends with the test
			}
			for range cap(begun) {
				<-begun
			}
			want := strings.Repeat("y", 1<<20)
			other := serve(t, nil, says("big", want))
			if got, err := call(patient(t), client(t, other.URL), "big", `{}`); err != nil || got != want {
				t.Errorf("a large response of another server = %d bytes, %v; want it immediately", len(got), err)
			}
		})
	}
}

// TestBrokenCallDoesNotAffectOthers checks that a call that fails does not break another call in the same session.
func TestBrokenCallDoesNotAffectOthers(t *testing.T) {
	for name, handle := range map[string]func(http.ResponseWriter, *http.Request){
		"hung up": hangUp, "401": answer(401, "", ""), "405": answer(405, "", ""), "500": answer(500, "", ""), "302": answer(302, "", ""),
		"HTML": answer(200, "text/html", "<html>"), "bad JSON": answer(200, jsonType, "{"), "bad event": answer(200, events, "data: {\n\n"),
		"404": answer(404, "", ""),
	} {
		t.Run(name, func(t *testing.T) {
			begun, release := make(chan struct{}), make(chan struct{})
			s := serve(t, nil, plain("wait", func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
				close(begun)
				<-release
				return text("done"), nil
			}), says("hello", "hi"))
			s.tamper(func(w http.ResponseWriter, r *http.Request, m message) bool {
				if m.Params.Name != "hello" {
					return false
				}
				handle(w, r)
				return true
			})
			c := client(t, s.URL)
			got := make(chan string, 1)
			go func() {
				result, err := call(patient(t), c, "wait", `{}`)
				got <- fmt.Sprint(result, err)
			}()
			<-begun
			_ = failure(t, c, "hello") // only the failure matters
			close(release)
			if g := <-got; g != "done<nil>" {
				t.Errorf("the other call gave %s, want its result", g)
			}
		})
	}
}

func TestEndedSessionIsReplacedAndCallRepeatedOnce(t *testing.T) {
	for name, options := range map[string]*sdk.StreamableHTTPOptions{"events": nil, "JSON": {JSONResponse: true}} {
		t.Run(name, func(t *testing.T) {
			var made atomic.Int32
			s := serve(t, options, plain("count", func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
				return text(fmt.Sprint(made.Add(1))), nil
			}))
			c := client(t, s.URL)
			for want := range 3 {
				if got, err := call(patient(t), c, "count", `{}`); err != nil || got != fmt.Sprint(want+1) {
					t.Fatalf("call %d = %q, %v; want each call to be made once", want+1, got, err)
				}
				for session := range s.Sessions() {
					_ = session.Close() // as if the server had restarted
				}
			}
			if _, err := c.Discover(patient(t)); err != nil {
				t.Errorf("Discover = %v, want success in a new session", err)
			}
		})
	}
}

// otherDenials are answers to a request in a session that a server does not know. None is the one that the protocol
// requires.
var otherDenials = map[string]func(http.ResponseWriter, *http.Request){
	"401": answer(401, "text/plain", "Unauthorized: Session not found"),
	"403": answer(403, "text/plain", ""),
	"409": answer(409, "text/plain", "no such session"),
	"410": answer(410, "text/plain", ""),
	"400": answer(400, jsonType, `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"unknown"}}`),
	"not initialized": answer(400, jsonType,
		`{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"Bad Request: Server not initialized"}}`),
}

// restarted returns a function for tamper. After the function end was called, it answers with deny to all requests
// of the sessions that began before. It counts the sessions and the pings.
func restarted(deny func(http.ResponseWriter, *http.Request)) (
	before func(http.ResponseWriter, *http.Request, message) bool, end func(), sessions, pings *atomic.Int32,
) {
	var mu sync.Mutex
	known, over := map[string]bool{}, map[string]bool{}
	sessions, pings = &atomic.Int32{}, &atomic.Int32{}
	before = func(w http.ResponseWriter, r *http.Request, m message) bool {
		mu.Lock()
		defer mu.Unlock()
		id := r.Header.Get("Mcp-Session-Id")
		switch m.Method {
		case "initialize":
			sessions.Add(1)
		case "ping":
			pings.Add(1)
		}
		if id == "" {
			return false
		}
		if known[id] = true; over[id] {
			deny(w, r)
		}
		return over[id]
	}
	return before, func() {
		mu.Lock()
		defer mu.Unlock()
		for id := range known {
			over[id] = true
		}
	}, sessions, pings
}

// TestSessionThatServerDeniesIsReplaced checks that a list of tools needs no second attempt if the server has
// restarted, however it answers requests of the old session.
func TestSessionThatServerDeniesIsReplaced(t *testing.T) {
	denials := maps.Clone(otherDenials)
	denials["422"] = answer(422, "text/plain", "")
	denials["500"] = answer(500, "text/plain", "the session is closed")
	for name, deny := range denials {
		t.Run(name, func(t *testing.T) {
			s := serve(t, nil, says("hello", "hi"))
			before, end, sessions, _ := restarted(deny)
			s.tamper(before)
			c := client(t, s.URL)
			for range 2 {
				if _, err := c.Discover(patient(t)); err != nil {
					t.Fatalf("Discover = %v, want success in a new session", err)
				}
				if got, err := call(patient(t), c, "hello", `{}`); err != nil || got != "hi" {
					t.Fatalf("Call = %q, %v; want its result", got, err)
				}
				end()
			}
			if sessions.Load() != 2 {
				t.Errorf("%d sessions were begun, want two", sessions.Load())
			}
		})
	}
}

// TestRefusedListKeepsSession checks that each Discover asks for the list of tools once more in a new session if it
// fails, and that calls continue in the old session.
func TestRefusedListKeepsSession(t *testing.T) {
	for name, refuse := range map[string]func(message) func(http.ResponseWriter, *http.Request){
		"403": func(message) func(http.ResponseWriter, *http.Request) { return answer(403, "", "") },
		"500": func(message) func(http.ResponseWriter, *http.Request) { return answer(500, "", "") },
		"error": func(m message) func(http.ResponseWriter, *http.Request) {
			return answer(200, jsonType, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32000,"message":"no list today"}}`, m.ID))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, nil, says("hello", "hi"))
			c := client(t, s.URL)
			if _, err := c.Discover(patient(t)); err != nil {
				t.Fatal(err)
			}
			var sessions atomic.Int32
			s.tamper(func(w http.ResponseWriter, r *http.Request, m message) bool {
				if m.Method == "initialize" {
					sessions.Add(1)
				}
				if m.Method == "tools/list" {
					refuse(m)(w, r)
				}
				return m.Method == "tools/list"
			})
			for want := range int32(2) {
				if _, err := c.Discover(patient(t)); err == nil {
					t.Fatal("Discover succeeded, want the error of the server")
				}
				if sessions.Load() != want+1 {
					t.Fatalf("%d sessions were begun, want %d", sessions.Load(), want+1)
				}
				if got, err := call(patient(t), c, "hello", `{}`); err != nil || got != "hi" {
					t.Errorf("Call = %q, %v; want its result", got, err)
				}
			}
			if sessions.Load() != 2 {
				t.Errorf("%d sessions were begun, want none for the calls", sessions.Load())
			}
		})
	}
}

// clock is a clock that the test advances.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) read() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func TestUnreachableServerIsRetriedAfterPause(t *testing.T) {
	s := serve(t, nil, says("hello", "hi"))
	var attempts atomic.Int32
	unreachable := func(w http.ResponseWriter, r *http.Request, _ message) bool {
		attempts.Add(1)
		hangUp(w, r)
		return true
	}
	s.tamper(unreachable)
	fakeClock := &clock{now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	c := client(t, s.URL, func(cfg *mcp.Config) { cfg.Now = fakeClock.read })
	for round := range 12 {
		before := attempts.Load()
		if e := failure(t, c, "hello"); e.Class != tool.Unavailable {
			t.Fatalf("Call = %s %q, want Unavailable: it was not made", e.Class, e.Error())
		}
		tried := attempts.Load()
		if tried == before {
			t.Fatalf("round %d: the server was not tried again", round)
		}
		for range 5 {
			_ = failure(t, c, "hello") // only the failure matters
		}
		if attempts.Load() != tried {
			t.Fatalf("round %d: the server was tried again immediately, want a pause", round)
		}
		fakeClock.advance(30 * time.Second) // the longest pause
	}
	s.tamper(nil)
	if got, err := call(patient(t), c, "hello", `{}`); err != nil || got != "hi" {
		t.Errorf("Call = %q, %v; want success, because the server can be reached again", got, err)
	}
	s.tamper(unreachable)
	s.web.CloseClientConnections()
	fakeClock.advance(time.Hour)
	_ = failure(t, c, "hello") // only the failure matters
	s.tamper(nil)
	if _, err := c.Discover(patient(t)); err != nil {
		t.Errorf("Discover = %v; want success, because Discover does not wait for the pause", err)
	}
}

func TestConnecting(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	reached := make(chan struct{}, 10)
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached <- struct{}{} }))
	t.Cleanup(elsewhere.Close)
	serving := func(f func(http.ResponseWriter, *http.Request)) string {
		web := httptest.NewServer(http.HandlerFunc(f))
		t.Cleanup(web.Close)
		return web.URL
	}
	for name, tc := range map[string]struct {
		reason string
		url    string
		policy *netpolicy.Policy
		kind   mcp.Kind
		want   string
	}{
		"loopback": {
			"an object of the cluster must not make the manager connect to itself", elsewhere.URL, nil, mcp.Unreachable,
			"connections to 127.0.0.1 are refused: it is a loopback address; the manager's --tool-allow-cidrs=127.0.0.1/32 would allow it",
		},
		"metadata": {
			"the cloud serves the manager's credentials at this address", "http://169.254.169.254/mcp", netpolicy.NewLocalPolicy(),
			mcp.Unreachable,
			"connections to 169.254.169.254 are refused",
		},
		"closed": {
			"no server listens", "http://127.0.0.1:1/mcp", netpolicy.NewLocalPolicy(), mcp.Unreachable,
			"the connection to the server failed: connection refused",
		},
		"no name": {
			"the host does not exist", "http://nowhere.invalid/mcp", netpolicy.NewLocalPolicy(), mcp.Unreachable,
			"the connection to the server failed: lookup nowhere.invalid",
		},
		"silent": {
			"the server does not reply", "http://" + silent.Addr().String(), netpolicy.NewLocalPolicy(),
			mcp.Unreachable, "no answer within 1s",
		},
		"redirect": {"following the redirect would send the token to another host", serving(func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.URL, http.StatusTemporaryRedirect)
		}), netpolicy.NewLocalPolicy(), mcp.Protocol, "the server redirects to another address: set mcp.url to the final one"},
		"401": {
			"the server does not accept the token", serving(answer(401, "", token)), netpolicy.NewLocalPolicy(), mcp.Refused,
			`the server refused the credentials (HTTP 401): check key "token" of Secret "demo": [redacted]`,
		},
		"421": {
			"the SDK for Python checks the header Host", serving(answer(421, "text/plain", "Invalid Host header")),
			netpolicy.NewLocalPolicy(), mcp.Protocol, "the server does not accept the host name of mcp.url (HTTP 421): allow it",
		},
		"403, host": {
			"so does the one for TypeScript",
			serving(answer(403, jsonType, `{"jsonrpc":"2.0","error":{"code":-32000,"message":"Invalid Host: x"},"id":null}`)),
			netpolicy.NewLocalPolicy(), mcp.Protocol, "the server does not accept the host name of mcp.url (HTTP 403): allow it",
		},
		"404": {
			"the path is wrong", serving(answer(404, "text/plain", "no such page")), netpolicy.NewLocalPolicy(),
			mcp.Protocol, "the server refused the request (HTTP 404): check the path of mcp.url: no such page",
		},
		"202": {
			"the server accepts everything, and responds to nothing", serving(answer(202, "", "")), netpolicy.NewLocalPolicy(),
			mcp.Protocol,
			"the server accepted the request without a response to it (HTTP 202): check the path of mcp.url",
		},
		"502": {
			"the server behind a gateway failed", serving(answer(502, "text/plain", "")), netpolicy.NewLocalPolicy(), mcp.Unreachable,
			"the server failed (HTTP 502)",
		},
		"banner": {
			"the server does not speak HTTP", banner(t), netpolicy.NewLocalPolicy(), mcp.Unreachable,
			"the connection to the server failed: ",
		},
		"a website": {
			"the server is a website", serving(answer(200, "text/html", "<html>")), netpolicy.NewLocalPolicy(),
			mcp.Protocol, "the endpoint at mcp.url is not an MCP server over streamable HTTP",
		},
		"no MCP": {
			"the server speaks another protocol", serving(answer(200, jsonType, "{}")), netpolicy.NewLocalPolicy(), mcp.Protocol,
			"the endpoint at mcp.url is not an MCP server over streamable HTTP",
		},
		"certificate": {
			"the server is not trusted", tlsSite(t).URL, netpolicy.NewLocalPolicy(), mcp.Unreachable,
			"the server's certificate is not trusted: x509: certificate signed by unknown authority",
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := client(t, tc.url, func(cfg *mcp.Config) {
				if cfg.Policy = tc.policy; strings.HasSuffix(tc.want, "within 1s") {
					cfg.ConnectTimeout = time.Second
				}
			})
			_, err := c.Discover(patient(t))
			e, ok := errors.AsType[*mcp.Error](err)
			if !ok {
				t.Fatalf("Discover = %v, want an *mcp.Error", err)
			}
			if e.Kind != tc.kind || !strings.HasPrefix(e.Error(), tc.want) || strings.Contains(e.Error(), token) {
				t.Errorf("Discover = %s %q; want %s %q: %s", e.Kind, e.Error(), tc.kind, tc.want, tc.reason)
			}
			if strings.Contains(e.Message, "no such page") || strings.Contains(e.Message, "SSH-2.0") {
				t.Errorf("the message is %q, want only Capstan's text, because a status shows it", e.Message)
			}
			class := tool.Unavailable
			if tc.kind == mcp.Refused {
				class = tool.Denied
			}
			if e := failure(t, c, "hello"); e.Class != class {
				t.Errorf("Call = %s %q, want %s: the call was not made", e.Class, e.Error(), class)
			}
		})
	}
	select {
	case <-reached:
		t.Error("the other host was reached, and may have received the credentials")
	default:
	}
}

// TestVersionsThatServerNames checks that the client uses the newest version that the server names when it refuses the
// first one, and that it connects at most twice.
func TestVersionsThatServerNames(t *testing.T) {
	for name, tc := range map[string]struct {
		code     int
		data     string
		asked    []string
		accepted string // the version of the list, or "" if the server cannot be used
	}{
		"one": {
			-32602, `{"supported":["2024-11-05"],"requested":"2025-11-25"}`, []string{"2025-11-25", "2024-11-05"}, "2024-11-05",
		},
		"several": {
			-32022, `{"supported":["2024-11-05","1.0","2025-06-18","2025-03-26"]}`, []string{"2025-11-25", "2025-06-18"}, "2025-06-18",
		},
		"newer":      {-32022, `{"supported":["2025-06-18","2026-07-28"]}`, []string{"2025-11-25"}, "2026-07-28"},
		"unknown":    {-32602, `{"supported":["1.0"]}`, []string{"2025-11-25"}, ""},
		"none":       {-32602, `{"supported":[]}`, []string{"2025-11-25"}, ""},
		"the same":   {-32602, `{"supported":["2025-11-25"]}`, []string{"2025-11-25"}, ""},
		"other data": {-32602, `"no"`, []string{"2025-11-25"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, &sdk.StreamableHTTPOptions{Stateless: true}, says("hello", "hi"))
			var mu sync.Mutex
			var asked []string
			s.tamper(func(w http.ResponseWriter, r *http.Request, m message) bool {
				if m.Method != "initialize" {
					return false
				}
				mu.Lock()
				defer mu.Unlock()
				if asked = append(asked, m.Params.Version); m.Params.Version == tc.accepted {
					return false
				}
				const refusal = `{"jsonrpc":"2.0","id":%s,"error":{"code":%d,"message":"Unsupported protocol version","data":%s}}`
				answer(400, jsonType, fmt.Sprintf(refusal, m.ID, tc.code, tc.data))(w, r)
				return true
			})
			c := client(t, s.URL)
			l, err := c.Discover(patient(t))
			if tc.accepted == "" {
				if err == nil {
					t.Errorf("Discover succeeded with version %s, want the error of the server", l.ProtocolVersion)
				}
			} else if err != nil || l.ProtocolVersion != tc.accepted {
				t.Errorf("Discover = %+v, %v; want version %s", l, err, tc.accepted)
			} else if got, err := call(patient(t), c, "hello", `{}`); err != nil || got != "hi" {
				t.Errorf("Call = %q, %v; want its result", got, err)
			}
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(asked, tc.asked) {
				t.Errorf("the client asked for the versions %q, want %q", asked, tc.asked)
			}
		})
	}
}

// banner starts a server that does not speak HTTP.
func banner(t *testing.T) string {
	t.Helper()
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = conn.Write([]byte("SSH-2.0-OpenSSH\r\n")) // the error of the client shows whether it arrived
		_ = conn.Close()
	}))
	t.Cleanup(web.Close)
	return web.URL
}

// tlsSite starts a server with a certificate that no system trusts.
func tlsSite(t *testing.T) *httptest.Server {
	t.Helper()
	server := sdk.NewServer(&sdk.Implementation{Name: "site", Version: "1"}, nil)
	says("hello", "hi")(server)
	web := httptest.NewUnstartedServer(sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server },
		&sdk.StreamableHTTPOptions{Stateless: true}))
	web.Config.ErrorLog = discard
	web.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	web.StartTLS()
	t.Cleanup(web.Close)
	return web
}

func TestOwnCertificateAuthority(t *testing.T) {
	web := tlsSite(t)
	own := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: web.Certificate().Raw})
	certificates, err := netpolicy.Certificates{Authorities: string(own)}.TLS()
	if err != nil {
		t.Fatal(err)
	}
	c := client(t, web.URL, func(cfg *mcp.Config) { cfg.TLS = certificates })
	if got, err := call(patient(t), c, "hello", `{}`); err != nil || got != "hi" {
		t.Errorf("Call = %q, %v", got, err)
	}
}
