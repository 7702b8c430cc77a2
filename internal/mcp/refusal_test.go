package mcp_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/capstan-dev/capstan/internal/mcp"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// TestRefusalsOfCalls has a server refuse a call in a session. It must not be sent again where the server may have dealt with it.
func TestRefusalsOfCalls(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		status int
		body   string // with the number of the request for %s
		sent   int32
		class  tool.Class
		want   string
	}{
		"400, answered":         {"the tool speaks of a session of its own", 400, `{"id":%s,"error":{"code":-32000,"message":"the shopping session is over"}}`, 1, tool.Failed, "the shopping session is over"},
		"400, of the session":   {"an answer is one whatever it says", 400, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32000,"message":"Session not found"}}`, 1, tool.Failed, "Session not found"},
		"404, answered":         {"the server has no such thing, and knows the session", 404, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32000,"message":"no such order"}}`, 1, tool.Failed, "no such order"},
		"404, number as a text": {"some servers write it so", 404, `{"id":"%s","error":{"code":-32000,"message":"no such order"}}`, 1, tool.Failed, "no such order"},
		"404, odd error":        {"it is about this call", 404, `{"id":%s,"error":"no such order"}`, 1, tool.Failed, "no such order"},
		"404, long":             {"an answer has no length of its own", 404, `{"id":%s,"error":{"code":-32000,"message":"` + strings.Repeat("x", 20<<10) + `"}}`, 1, tool.Failed, "xxx"},
		"400, invalid":          {"", 400, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32602,"message":"bad"}}`, 1, tool.InvalidArguments, "bad"},
		"400, session word":     {"that is no session of the protocol", 400, `{"id":null,"error":{"code":-32000,"message":"the shopping session is over"}}`, 1, tool.Failed, "HTTP 400"},
		"400, no session":       {"it was not taken", 400, `{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"Bad Request: No valid session ID provided"}}`, 2, tool.Unavailable, "the server has ended the session"},
		"404, no session":       {"it was not taken", 404, `{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"Session not found"}}`, 2, tool.Unavailable, "the server has ended the session"},
		"404, another's":        {"it is about nothing that was asked", 404, `{"jsonrpc":"2.0","id":"server-error","error":{"code":-32600,"message":"Session not found"}}`, 2, tool.Unavailable, "the server has ended the session"},
		"500, not found":        {"who knows how far it got", 500, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no"}}`, 1, tool.OutcomeUnknown, "HTTP 500"},
	} {
		for _, kind := range []string{jsonType, "text/plain"} {
			t.Run(name+", "+kind, func(t *testing.T) {
				var sent atomic.Int32
				s := serve(t, nil, says("hello", "hi"))
				s.tamper(func(w http.ResponseWriter, r *http.Request, m message) bool {
					if m.Method != "tools/call" {
						return false
					}
					sent.Add(1)
					body := tc.body
					if strings.Contains(body, "%s") {
						body = fmt.Sprintf(body, m.ID)
					}
					answer(tc.status, kind, body)(w, r)
					return true
				})
				c := client(t, s.URL)
				e := failure(t, c, "hello")
				if e.Class != tc.class || !strings.Contains(e.Error(), tc.want) || sent.Load() != tc.sent {
					t.Errorf("Call = %s %.200q, sent %d times; want %s with %q, sent %d times: %s", e.Class, e.Error(), sent.Load(), tc.class, tc.want, tc.sent, tc.reason)
				}
				s.tamper(nil)
				if got, err := call(patient(t), c, "hello", `{}`); err != nil || got != "hi" {
					t.Errorf("the next call = %q, %v; want its result", got, err)
				}
			})
		}
	}
}

// TestHeadersOfTheProtocolAreTheClients has headers configured that would change what the client says.
func TestHeadersOfTheProtocolAreTheClients(t *testing.T) {
	s := serve(t, nil, says("hello", "hi"))
	c := client(t, s.URL, func(cfg *mcp.Config) {
		for _, name := range []string{"mcp-session-id", "Mcp-Protocol-Version", "last-event-id", "Accept", "content-type", "X-Mine"} {
			cfg.Headers = append(cfg.Headers, mcp.Header{Name: name, Value: "forged"})
		}
	})
	if got, err := call(patient(t), c, "hello", `{}`); err != nil || got != "hi" {
		t.Fatalf("Call = %q, %v", got, err)
	}
	for _, r := range s.requests() {
		for name, values := range r.Header {
			if (values[0] == "forged") != (name == "X-Mine") {
				t.Errorf("%s has the header %s: %v", r.Method, name, values)
			}
		}
	}
}
