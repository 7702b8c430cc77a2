package mcp_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/capstan-dev/capstan/internal/mcp"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// TestRefusalsOfCalls checks how often a call is sent that the server refuses. A call that must not be repeated is sent
// once, whatever the server says about the session. A repeatable call is sent again if the session is over.
func TestRefusalsOfCalls(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		status int
		body   string // %s is replaced by the request's number
		sent   int32  // number of requests for a repeatable call
		class  tool.Class
		want   string
	}{
		"400, response": {
			"the tool means another kind of session", 400,
			`{"id":%s,"error":{"code":-32000,"message":"the shopping session is over"}}`, 1, tool.Failed, "the shopping session is over",
		},
		"400, response about a session": {
			"a message with the call's ID is its response, whatever the text is", 400,
			`{"jsonrpc":"2.0","id":%s,"error":{"code":-32000,"message":"Session not found"}}`, 1, tool.Failed, "Session not found",
		},
		"404, response": {
			"the tool does not find the order, and the session is valid", 404,
			`{"jsonrpc":"2.0","id":%s,"error":{"code":-32000,"message":"no such order"}}`, 1, tool.Failed, "no such order",
		},
		"404, ID as a text": {
			"some servers send the ID as a text", 404,
			`{"id":"%s","error":{"code":-32000,"message":"no such order"}}`, 1, tool.Failed, "no such order",
		},
		"404, error as text": {"the response is to this call", 404, `{"id":%s,"error":"no such order"}`, 1, tool.Failed, "no such order"},
		"404, long": {
			"a response may be longer than the text of an error status", 404,
			`{"id":%s,"error":{"code":-32000,"message":"` + strings.Repeat("x", 20<<10) + `"}}`, 1, tool.Failed, "xxx",
		},
		"400, invalid": {
			"", 400, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32602,"message":"bad"}}`, 1,
			tool.InvalidArguments, "bad",
		},
		"400, time-out of a gateway": {
			"the gateway gave up, and the tool may have acted", 400,
			`{"jsonrpc":"2.0","id":%s,"error":{"code":-32001,"message":"Request timed out"}}`, 1, tool.Timeout, "Request timed out",
		},
		"400, maximum time of a gateway": {
			"the same error with another message", 400,
			`{"jsonrpc":"2.0","id":%s,"error":{"code":-32001,"message":"Maximum total timeout exceeded"}}`, 1, tool.Timeout,
			"Maximum total timeout exceeded",
		},
		"400, time-out of a Python gateway": {
			"its client has another code", 400,
			`{"jsonrpc":"2.0","id":%s,"error":{"code":408,"message":"Timed out while waiting for response to CallToolRequest."}}`, 1,
			tool.Timeout, "Timed out while waiting for response to CallToolRequest.",
		},
		"400, HTTP status of a time-out": {
			"the code alone does not say that it is such an error", 400,
			`{"jsonrpc":"2.0","id":%s,"error":{"code":408,"message":"no such order"}}`, 1, tool.Failed, "no such order",
		},
		"400, connection of a gateway": {
			"the server behind the gateway may have made the call", 400,
			`{"jsonrpc":"2.0","id":%s,"error":{"code":-32000,"message":"Connection closed"}}`, 1, tool.OutcomeUnknown, "Connection closed",
		},
		"400, code of a time-out": {
			"servers use the code for other errors, too", 400,
			`{"jsonrpc":"2.0","id":%s,"error":{"code":-32001,"message":"Session not found"}}`, 1, tool.Failed, "Session not found",
		},
		"400, session word": {
			"the message is not about a session of the protocol", 400,
			`{"id":null,"error":{"code":-32000,"message":"the shopping session is over"}}`, 1, tool.Failed, "HTTP 400",
		},
		"400, no session": {
			"the answer does not prove that the server has not made the call", 400,
			`{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"Bad Request: No valid session ID provided"}}`,
			2, tool.OutcomeUnknown, "the server has ended the session, and may have made the call: ",
		},
		"400, not initialized": {
			"the reference server answers so after a restart", 400,
			`{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"Bad Request: Server not initialized"}}`,
			2, tool.OutcomeUnknown, "the server has ended the session, and may have made the call: ",
		},
		"404, no session": {
			"the answer does not prove that the server has not made the call", 404,
			`{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"Session not found"}}`, 2, tool.OutcomeUnknown,
			"the server has ended the session, and may have made the call: ",
		},
		"404, response to another request": {
			"its ID is not that of this call", 404,
			`{"jsonrpc":"2.0","id":"server-error","error":{"code":-32600,"message":"Session not found"}}`, 2,
			tool.OutcomeUnknown, "the server has ended the session, and may have made the call: ",
		},
		"404, other text": {
			"the server may have made the call", 404, "no such page", 2, tool.OutcomeUnknown,
			"the server has ended the session, and may have made the call: ",
		},
		"400, session of a shop": {
			"the text looks like one about the protocol's session, but the call was made", 400, "checkout session id 5 was already charged",
			2, tool.OutcomeUnknown, "the server has ended the session, and may have made the call: ",
		},
		"500, not found": {
			"the server may have made the call", 500,
			`{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no"}}`, 1, tool.OutcomeUnknown, "HTTP 500",
		},
	} {
		for i, kind := range []string{jsonType, "text/plain", jsonType, "text/plain"} {
			repeatable := i < 2
			t.Run(fmt.Sprintf("%s, %s, repeatable %t", name, kind, repeatable), func(t *testing.T) {
				wantSent, class, want := tc.sent, tc.class, tc.want
				if !repeatable {
					wantSent = 1
				}
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
				_, err := c.Call(patient(t), "hello", tool.Call{Repeatable: repeatable})
				e, ok := errors.AsType[*tool.Error](err)
				if !ok {
					t.Fatalf("Call = %v; want a *tool.Error", err)
				}
				if e.Class != class || !strings.Contains(e.Error(), want) || sent.Load() != wantSent {
					t.Errorf("Call = %s %.200q, sent %d times; want %s with %q, sent %d times: %s", e.Class, e.Error(),
						sent.Load(), class, want, wantSent, tc.reason)
				}
				s.tamper(nil)
				if got, err := call(patient(t), c, "hello", `{}`); err != nil || got != "hi" {
					t.Errorf("the next call = %q, %v; want its result", got, err)
				}
			})
		}
	}
}

// TestErrorsWithoutID checks that an error without an ID, as the only answer to a call, is the error of the call. Only
// the codes for requests that were not carried out say that the call had no effect: some servers leave the ID out of
// all errors (helidon-io/helidon-mcp#65), and a gateway may answer for a server that has made the call.
func TestErrorsWithoutID(t *testing.T) {
	const mayHaveActed = "it returned an error without the ID of the call, and may have made the call"
	for name, tc := range map[string]struct {
		reply string
		class tool.Class
		want  string
	}{
		"parse error":     {`{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"no JSON"}}`, tool.Failed, "call: no JSON"},
		"invalid request": {`{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"too old"}}`, tool.Failed, "call: too old"},
		"no ID":           {`{"jsonrpc":"2.0","error":{"code":-32600,"message":"too old"}}`, tool.Failed, "call: too old"},
		"no result": {
			`{"jsonrpc":"2.0","id":null,"result":null,"error":{"code":-32600,"message":"too old"}}`, tool.Failed, "call: too old",
		},
		"method not found": {
			`{"jsonrpc":"2.0","id":null,"error":{"code":-32601,"message":"no tools"}}`, tool.Unavailable, "no tools",
		},
		"invalid params": {
			`{"jsonrpc":"2.0","id":null,"error":{"code":-32602,"message":"city is required"}}`, tool.InvalidArguments,
			"city is required",
		},
		"internal error": {
			`{"jsonrpc":"2.0","id":null,"error":{"code":-32603,"message":"it broke"}}`, tool.OutcomeUnknown, mayHaveActed + ": it broke",
		},
		"time-out": {
			`{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"Request timed out"}}`, tool.Timeout, "call: Request timed out",
		},
		"other error": {
			`{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"bad ` + token + `"}}`, tool.OutcomeUnknown,
			mayHaveActed + ": bad [redacted]",
		},
		"a result without an ID": {
			`{"jsonrpc":"2.0","id":null,"result":{"content":[]}}`, tool.OutcomeUnknown, "does not follow the Model Context Protocol",
		},
	} {
		for kind, wrap := range map[string]string{jsonType: "%s", events: "event: message\ndata: %s\n\n"} {
			t.Run(name+", "+kind, func(t *testing.T) {
				var sent atomic.Int32
				s := serve(t, nil, says("hello", "hi"))
				s.tamper(calls(func(w http.ResponseWriter, r *http.Request) {
					sent.Add(1)
					answer(200, kind, fmt.Sprintf(wrap, tc.reply))(w, r)
				}))
				_, err := client(t, s.URL).Call(patient(t), "hello", tool.Call{Repeatable: true})
				e, ok := errors.AsType[*tool.Error](err)
				if !ok || e.Class != tc.class || !strings.HasSuffix(e.Error(), tc.want) || sent.Load() != 1 {
					t.Errorf("Call = %+v, sent %d times; want %s with %q, sent once", e, sent.Load(), tc.class, tc.want)
				}
			})
		}
	}
}

// TestErrorsOfOtherForms checks that an error whose members have other types than in JSON-RPC is the error of the call
// or of the server, with its text.
func TestErrorsOfOtherForms(t *testing.T) {
	for name, tc := range map[string]struct {
		sent  string
		class tool.Class
		want  string
	}{
		"code as a number in a text": {`{"code":"-32602","message":"no such city"}`, tool.InvalidArguments, "no such city"},
		"code as a text":             {`{"code":"NOT_FOUND","message":"no such city"}`, tool.Failed, "no such city"},
		"no code":                    {`{"code":null,"message":"no such city","data":[7]}`, tool.Failed, "no such city"},
		"message as an object":       {`{"code":-32602,"message":{"city":"none"}}`, tool.InvalidArguments, `{"city":"none"}`},
		"no message":                 {`{"code":-32602,"message":null}`, tool.InvalidArguments, `{"code":-32602,"message":null}`},
		"a text":                     {`"no such city"`, tool.Failed, "no such city"},
		"a list":                     {`["no such city"]`, tool.Failed, `["no such city"]`},
	} {
		for kind, wrap := range map[string]string{jsonType: "%s", events: "event:\ndata: %s\n\n"} {
			for _, method := range []string{"tools/call", "tools/list", "initialize"} {
				t.Run(name+", "+kind+", "+method, func(t *testing.T) {
					s := serve(t, nil, says("hello", "hi"))
					s.tamper(func(w http.ResponseWriter, r *http.Request, m message) bool {
						if m.Method == method {
							answer(200, kind, fmt.Sprintf(wrap, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":%s}`, m.ID, tc.sent)))(w, r)
						}
						return m.Method == method
					})
					c := client(t, s.URL)
					if method == "tools/call" {
						if e := failure(t, c, "hello"); e.Class != tc.class || e.RemoteMessage != tc.want {
							t.Errorf("Call = %s %q, want %s with %q", e.Class, e, tc.class, tc.want)
						}
						return
					}
					_, err := c.Discover(patient(t))
					if e, ok := errors.AsType[*mcp.Error](err); !ok || e.Kind != mcp.Protocol || e.RemoteMessage != tc.want {
						t.Errorf("Discover = %v, want the error of the server: %q", err, tc.want)
					}
				})
			}
		}
	}
}

// TestErrorsOfInitialize checks that the client shows the error of a server that refuses initialize, also without the
// ID of the request, and that it then uses a version that the error names.
func TestErrorsOfInitialize(t *testing.T) {
	for kind, wrap := range map[string]string{jsonType: "%s", events: "data: %s\n\n"} {
		t.Run(kind, func(t *testing.T) {
			var asked atomic.Int32
			s := serve(t, nil, says("hello", "hi"))
			s.tamper(func(w http.ResponseWriter, r *http.Request, m message) bool {
				if m.Method != "initialize" || m.Params.Version == "2025-06-18" {
					return false
				}
				data := `{"supported":["2025-06-18"]}`
				if asked.Add(1) > 1 {
					data = `{}`
				}
				const refusal = `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"too new","data":%s}}`
				answer(200, kind, fmt.Sprintf(wrap, fmt.Sprintf(refusal, data)))(w, r)
				return true
			})
			if l, err := client(t, s.URL).Discover(patient(t)); err != nil || l.ProtocolVersion != "2025-06-18" {
				t.Errorf("Discover = %+v, %v; want the version that the server names", l, err)
			}
			_, err := client(t, s.URL).Discover(patient(t))
			if e, ok := errors.AsType[*mcp.Error](err); !ok || e.RemoteMessage != "too new" {
				t.Errorf("Discover = %v, want the error of the server", err)
			}
		})
	}
}

// TestErrorEvents checks that an error in an event of the type "error" ends the call with this error. Some servers send
// errors in such events (modelcontextprotocol/python-sdk#1514).
func TestErrorEvents(t *testing.T) {
	s := serve(t, nil, says("hello", "hi"))
	s.tamper(func(w http.ResponseWriter, r *http.Request, m message) bool {
		if m.Method != "tools/call" {
			return false
		}
		const response = `{"jsonrpc":"2.0","id":%s,"error":{"code":-32602,"message":"no such city"}}`
		answer(200, events, "event: error\ndata: "+fmt.Sprintf(response, m.ID)+"\n\n")(w, r)
		return true
	})
	if e := failure(t, client(t, s.URL), "hello"); e.Class != tool.InvalidArguments || e.RemoteMessage != "no such city" {
		t.Errorf("Call = %s %q, want the error of the server", e.Class, e)
	}
}

// TestCallAfterALostSession checks the error of a repeatable call that is sent twice. If the server has received the
// first request, no certain failure of the second request shows that the call had no effect.
func TestCallAfterALostSession(t *testing.T) {
	for name, tc := range map[string]struct {
		second func(http.ResponseWriter, *http.Request, message)
		class  tool.Class
		want   string
	}{
		"failed": {
			func(w http.ResponseWriter, r *http.Request, m message) {
				answer(200, jsonType, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"isError":true,"content":[{"type":"text",`+
					`"text":"it is closed"}]}}`, m.ID))(w, r)
			}, tool.Failed, "it is closed",
		},
		"refused": {
			func(w http.ResponseWriter, r *http.Request, _ message) { answer(429, "text/plain", "later")(w, r) },
			tool.Unavailable, "HTTP 429",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var sent atomic.Int32
			s := serve(t, nil, says("hello", "hi"))
			s.tamper(func(w http.ResponseWriter, r *http.Request, m message) bool {
				switch {
				case m.Method != "tools/call":
					return false
				case sent.Add(1) == 1:
					answer(404, "text/plain", "gone")(w, r)
				default:
					tc.second(w, r, m)
				}
				return true
			})
			_, err := client(t, s.URL).Call(patient(t), "hello", tool.Call{Repeatable: true})
			e, ok := errors.AsType[*tool.Error](err)
			if !ok || e.Class != tc.class || !strings.Contains(e.Error(), tc.want) || !tool.IsUncertain(err) || sent.Load() != 2 {
				t.Errorf("Call = %+v, sent %d times; want %s with %q, which may have taken effect, after two requests", e, sent.Load(),
					tc.class, tc.want)
			}
		})
	}
}

// TestDestructiveCallNeverProbesSession checks what the client does if the session ends between two calls, as after a
// restart of the server. If the second call must not be repeated, the client must first find out with a ping that the
// session is over, and then send the call once, in a new session. It sends no ping before a repeatable call.
func TestDestructiveCallNeverProbesSession(t *testing.T) {
	for _, repeatable := range []bool{false, true} {
		t.Run(fmt.Sprintf("repeatable %t", repeatable), func(t *testing.T) {
			var made, sent, pings atomic.Int32
			// over is 1 once the session must end, and 2 once a request has failed because the session has ended.
			var over atomic.Int32
			s := serve(t, nil, plain("count", func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
				return text(fmt.Sprint(made.Add(1))), nil
			}))
			var ended atomic.Value // the ID of the session that is over
			ended.Store("none")
			s.tamper(func(w http.ResponseWriter, r *http.Request, m message) bool {
				switch m.Method {
				case "tools/call":
					sent.Add(1)
				case "ping":
					pings.Add(1)
				default:
					return false
				}
				if id := r.Header.Get("Mcp-Session-Id"); over.CompareAndSwap(1, 2) {
					ended.Store(id)
				} else if id != ended.Load() {
					return false
				}
				answer(404, "text/plain", "gone")(w, r)
				return true
			})
			c := client(t, s.URL)
			for want := range 2 {
				got, err := c.Call(patient(t), "count", tool.Call{Repeatable: repeatable})
				if err != nil || got.Content != fmt.Sprint(want+1) {
					t.Fatalf("call %d = %q, %v; want each call to be made once", want+1, got.Content, err)
				}
				over.CompareAndSwap(0, 1)
			}
			wantSent, wantPings := int32(2), int32(1)
			if repeatable {
				wantSent, wantPings = 3, 0
			}
			if sent.Load() != wantSent || pings.Load() != wantPings {
				t.Errorf("the server got %d calls and %d pings, want %d and %d", sent.Load(), pings.Load(), wantSent, wantPings)
			}
		})
	}
}

// TestSessionDeniedWithStatus200 checks that the client begins a new session if a restarted server answers requests of
// the old one with status 200 and an error about the session. Each call is made once. If it must not be repeated, it is
// sent once, too.
func TestSessionDeniedWithStatus200(t *testing.T) {
	for name, denial := range map[string]string{
		"no response":          `{"error":"Session not found"}`, // actionhero/keryx#503
		"no response, object":  `{"error":{"code":-32001,"message":"Session not found"}}`,
		"error without ID":     `{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"Session not found"}}`,
		"error with an ID":     `{"jsonrpc":"2.0","id":%s,"error":{"code":-32001,"message":"Session not found"}}`,
		"error with a text ID": `{"jsonrpc":"2.0","id":"%s","error":{"code":-32001,"message":"Session not found"}}`,
	} {
		for kind, wrap := range map[string]string{jsonType: "%s", events: "event: message\ndata: %s\n\n"} {
			for _, repeatable := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, %s, repeatable %t", name, kind, repeatable), func(t *testing.T) {
					var made, sent atomic.Int32
					s := serve(t, nil, plain("count", func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
						return text(fmt.Sprint(made.Add(1))), nil
					}))
					deny := make(chan json.RawMessage, 1) // the ID of the request that is denied
					before, end, sessions, _ := restarted(func(w http.ResponseWriter, r *http.Request) {
						answer(200, kind, fmt.Sprintf(wrap, strings.ReplaceAll(denial, "%s", string(<-deny))))(w, r)
					})
					s.tamper(func(w http.ResponseWriter, r *http.Request, m message) bool {
						if m.Method == "tools/call" {
							sent.Add(1)
						}
						deny <- m.ID
						handled := before(w, r, m)
						if !handled {
							<-deny
						}
						return handled
					})
					c := client(t, s.URL)
					for want := range 2 {
						got, err := c.Call(patient(t), "count", tool.Call{Repeatable: repeatable})
						if err != nil || got.Content != fmt.Sprint(want+1) {
							t.Fatalf("call %d = %q, %v; want each call to be made once", want+1, got.Content, err)
						}
						end()
					}
					wantSent := int32(2)
					if repeatable {
						wantSent = 3
					}
					if sessions.Load() != 2 || sent.Load() != wantSent {
						t.Errorf("the server got %d sessions and %d calls, want 2 and %d", sessions.Load(), sent.Load(), wantSent)
					}
					if _, err := c.Discover(patient(t)); err != nil || sessions.Load() != 3 {
						t.Errorf("Discover = %v after %d sessions, want success in a third session", err, sessions.Load())
					}
				})
			}
		}
	}
}

// TestCallDeniedWithStatus200 checks that a call that must not be repeated is sent once if only its own answer says
// that the server does not know the session, and that an error of the tool about another session keeps the session.
func TestCallDeniedWithStatus200(t *testing.T) {
	const over = "the server has ended the session, and may have made the call: "
	for name, tc := range map[string]struct {
		denial string
		class  tool.Class
		want   string
		sent   int32 // number of requests for a repeatable call
		begun  int32 // number of sessions after the next call
	}{
		"no response": {`{"error":"Session not found"}`, tool.OutcomeUnknown, over + `{"error":"Session not found"}`, 2, 2},
		"error without ID": {
			`{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"Session not found"}}`, tool.OutcomeUnknown, over, 2, 2,
		},
		"error with an ID": {
			`{"jsonrpc":"2.0","id":%s,"error":{"code":-32000,"message":"Session not found"}}`, tool.Failed, "Session not found", 1, 1,
		},
		"another error": {`{"error":"the shopping session is over"}`, tool.OutcomeUnknown, "does not follow the Model Context", 1, 1},
		"a result": {
			`{"error":"Session not found","result":{}}`, tool.OutcomeUnknown, "does not follow the Model Context Protocol", 1, 1,
		},
	} {
		for kind, wrap := range map[string]string{jsonType: "%s", events: "data: %s\n\n"} {
			for _, repeatable := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, %s, repeatable %t", name, kind, repeatable), func(t *testing.T) {
					var sent, sessions atomic.Int32
					var over atomic.Bool
					s := serve(t, nil, says("hello", "hi"))
					s.tamper(func(w http.ResponseWriter, r *http.Request, m message) bool {
						if m.Method == "initialize" {
							sessions.Add(1)
						}
						if m.Method != "tools/call" || over.Load() {
							return false
						}
						sent.Add(1)
						answer(200, kind, fmt.Sprintf(wrap, strings.ReplaceAll(tc.denial, "%s", string(m.ID))))(w, r)
						return true
					})
					c := client(t, s.URL)
					_, err := c.Call(patient(t), "hello", tool.Call{Repeatable: repeatable})
					wantSent, begun := int32(1), tc.begun
					if repeatable {
						wantSent, begun = tc.sent, tc.begun+tc.sent-1
					}
					e, ok := errors.AsType[*tool.Error](err)
					if !ok || e.Class != tc.class || !strings.Contains(e.Error(), tc.want) || sent.Load() != wantSent {
						t.Errorf("Call = %+v, sent %d times; want %s with %q, sent %d times", e, sent.Load(), tc.class, tc.want, wantSent)
					}
					over.Store(true)
					if got, err := call(patient(t), c, "hello", `{}`); err != nil || got != "hi" || sessions.Load() != begun {
						t.Errorf("the next call = %q, %v, after %d sessions; want its result, and %d", got, err, sessions.Load(), begun)
					}
				})
			}
		}
	}
}

// TestCallInSessionThatServerDenies checks that each call is made once if the server has restarted, however it answers
// requests of the old session. A ping finds out that the session is over: before a call that must not be repeated, and
// after the refusal of a repeatable one.
func TestCallInSessionThatServerDenies(t *testing.T) {
	denials := maps.Clone(otherDenials)
	delete(denials, "not initialized") // a repeatable call needs no ping then
	for name, deny := range denials {
		for _, repeatable := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, repeatable %t", name, repeatable), func(t *testing.T) {
				var made atomic.Int32
				s := serve(t, nil, plain("count", func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
					return text(fmt.Sprint(made.Add(1))), nil
				}))
				before, end, sessions, pings := restarted(deny)
				s.tamper(before)
				c := client(t, s.URL)
				for want := range 2 {
					got, err := c.Call(patient(t), "count", tool.Call{Repeatable: repeatable})
					if err != nil || got.Content != fmt.Sprint(want+1) {
						t.Fatalf("call %d = %q, %v; want each call to be made once", want+1, got.Content, err)
					}
					end()
				}
				want := int32(1)
				if !repeatable {
					want = 2 // the second ping finds out whether the server refuses all pings
				}
				if sessions.Load() != 2 || pings.Load() != want {
					t.Errorf("the server got %d sessions and %d pings, want 2 and %d", sessions.Load(), pings.Load(), want)
				}
			})
		}
	}
}

// TestServerThatRefusesAllPings checks that a server, or a gateway before it, that refuses pings keeps its session.
func TestServerThatRefusesAllPings(t *testing.T) {
	var sessions, pings atomic.Int32
	var ended atomic.Bool // the server has restarted, and denies the session
	s := serve(t, nil, says("hello", "hi"))
	s.tamper(func(w http.ResponseWriter, _ *http.Request, m message) bool {
		switch m.Method {
		case "initialize":
			sessions.Add(1)
			ended.Store(false)
		case "ping":
			pings.Add(1)
			http.Error(w, "not allowed", http.StatusForbidden)
			return true
		}
		if ended.Load() {
			http.Error(w, "who are you?", http.StatusUnauthorized)
		}
		return ended.Load()
	})
	c := client(t, s.URL)
	for range 5 {
		if got, err := c.Call(patient(t), "hello", tool.Call{}); err != nil || got.Content != "hi" {
			t.Fatalf("Call = %q, %v; want an answer", got.Content, err)
		}
	}
	if sessions.Load() != 2 || pings.Load() != 5 {
		t.Errorf("the server got %d sessions and %d pings, want 2 and 5", sessions.Load(), pings.Load())
	}
	for _, repeatable := range []bool{false, true} {
		before := sessions.Load()
		ended.Store(true)
		if got, err := c.Call(patient(t), "hello", tool.Call{Repeatable: repeatable}); err != nil || got.Content != "hi" {
			t.Errorf("Call after the end of the session, repeatable %t = %q, %v; want an answer", repeatable, got.Content, err)
		}
		if sessions.Load() != before+1 {
			t.Errorf("%d new sessions after the end of one, want 1", sessions.Load()-before)
		}
	}
}

// servePings returns a server whose pings handle answers, and the number of its sessions.
func servePings(t *testing.T, handle func(w http.ResponseWriter, r *http.Request, m message)) (s *site, sessions *atomic.Int32) {
	t.Helper()
	s, sessions = serve(t, nil, says("hello", "hi")), &atomic.Int32{}
	s.tamper(func(w http.ResponseWriter, r *http.Request, m message) bool {
		switch m.Method {
		case "initialize":
			sessions.Add(1)
		case "ping":
			handle(w, r, m)
			return true
		}
		return false
	})
	return s, sessions
}

// TestErrorOfPingThatNamesSession checks that an error with the ping's ID ends the session if it names the session.
func TestErrorOfPingThatNamesSession(t *testing.T) {
	for _, status := range []int{200, 400} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			s, sessions := servePings(t, func(w http.ResponseWriter, r *http.Request, m message) {
				const unknown = `{"jsonrpc":"2.0","id":%s,"error":{"code":-32000,"message":"Session not found"}}`
				answer(status, jsonType, fmt.Sprintf(unknown, m.ID))(w, r)
			})
			c := client(t, s.URL)
			for range 2 {
				if got, err := call(patient(t), c, "hello", `{}`); err != nil || got != "hi" {
					t.Fatalf("Call = %q, %v; want its result", got, err)
				}
			}
			if sessions.Load() != 2 {
				t.Errorf("%d sessions were begun, want two", sessions.Load())
			}
		})
	}
}

// TestFailedPingDoesNotBlockCall checks that a call succeeds if the server knows the session but fails to reply to
// pings.
func TestFailedPingDoesNotBlockCall(t *testing.T) {
	for name, handle := range map[string]func(http.ResponseWriter, *http.Request){
		"hung up": hangUp, "405": answer(405, "", ""), "500": answer(500, "", ""), "404, response": nil,
	} {
		t.Run(name, func(t *testing.T) {
			s, sessions := servePings(t, func(w http.ResponseWriter, r *http.Request, m message) {
				if handle == nil {
					answer(404, jsonType, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no ping"}}`, m.ID))(w, r)
					return
				}
				handle(w, r)
			})
			c := client(t, s.URL)
			for range 2 {
				if got, err := call(patient(t), c, "hello", `{}`); err != nil || got != "hi" {
					t.Fatalf("Call = %q, %v; want its result", got, err)
				}
			}
			if sessions.Load() != 1 {
				t.Errorf("%d sessions were begun, want one", sessions.Load())
			}
		})
	}
}

// TestConfiguredHeadersCannotReplaceProtocolHeaders checks that configured headers do not replace headers of the
// protocol.
func TestConfiguredHeadersCannotReplaceProtocolHeaders(t *testing.T) {
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

// TestRestartedServersWithoutErrors checks that the client opens a new session with a restarted server that answers all
// requests of the old one without an error. A call that may not be repeated is sent once, in the new session.
func TestRestartedServersWithoutErrors(t *testing.T) {
	for name, reply := range map[string]func(http.ResponseWriter, *http.Request){
		"empty, 200": answer(200, jsonType, ""),
		"empty, 202": answer(202, jsonType, ""),
		"page":       answer(200, "text/html; charset=utf-8", "<html>starting</html>"),
	} {
		for _, repeatable := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, repeatable %t", name, repeatable), func(t *testing.T) {
				var made atomic.Int32
				var old atomic.Value // the ID of the session that is over
				old.Store("none")
				s := serve(t, nil, plain("count", func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
					return text(fmt.Sprint(made.Add(1))), nil
				}))
				s.tamper(func(w http.ResponseWriter, r *http.Request, m message) bool {
					id := r.Header.Get("Mcp-Session-Id")
					if m.Method == "tools/list" {
						old.CompareAndSwap("none", id)
						return false
					}
					if made.Load() > 0 && id == old.Load() && m.Method != "" {
						reply(w, r)
						return true
					}
					return false
				})
				c := client(t, s.URL)
				for _, want := range []string{"1", "2"} {
					result, err := c.Call(patient(t), "count", tool.Call{Repeatable: repeatable})
					if err != nil || result.Whole() != want {
						t.Errorf("Call = %q, %v; want %q", result.Whole(), err, want)
					}
				}
			})
		}
	}
}

// TestListAfterARestartWithoutErrors checks that the list of tools is asked for again, in a new session.
func TestListAfterARestartWithoutErrors(t *testing.T) {
	for name, reply := range map[string]func(http.ResponseWriter, *http.Request){
		"empty": answer(200, jsonType, ""), "page": answer(200, "text/html", "<html>starting</html>"),
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, nil, says("hello", "hi"))
			c := client(t, s.URL)
			if _, err := c.Discover(patient(t)); err != nil {
				t.Fatal(err)
			}
			var old atomic.Value
			s.tamper(func(w http.ResponseWriter, r *http.Request, m message) bool {
				if m.Method != "tools/list" {
					return false
				}
				id := r.Header.Get("Mcp-Session-Id")
				if old.CompareAndSwap(nil, id); old.Load() != id {
					return false
				}
				reply(w, r)
				return true
			})
			if l, err := c.Discover(patient(t)); err != nil || len(l.Tools) != 1 {
				t.Errorf("Discover = %+v, %v; want the list", l, err)
			}
		})
	}
}

// TestPagesForPeople checks the messages for a server that answers with an HTML page.
func TestPagesForPeople(t *testing.T) {
	page := answer(200, "text/html; charset=utf-8", "<html>Please log in</html>")
	s := serve(t, nil, says("hello", "hi"))
	s.tamper(calls(page))
	const isPage = "it is an HTML page, such as a login page or the error page of a proxy"
	if e := failure(t, client(t, s.URL), "hello"); e.Class != tool.OutcomeUnknown || !strings.Contains(e.Message, isPage) {
		t.Errorf("Call = %s %q, want an unknown outcome, and %q", e.Class, e, isPage)
	}
	s.tamper(func(w http.ResponseWriter, r *http.Request, _ message) bool {
		page(w, r)
		return true
	})
	_, err := client(t, s.URL).Discover(patient(t))
	e, ok := errors.AsType[*mcp.Error](err)
	if !ok || e.Kind != mcp.Protocol || !strings.Contains(e.Message, isPage+"): check its path, and") {
		t.Errorf("Discover = %v, want %q and a remedy", err, isPage)
	}
}

// TestRefusedNotification checks that a server can be used if it refuses the notification that the client is
// initialized.
func TestRefusedNotification(t *testing.T) {
	for _, status := range []int{400, 404, 405} {
		s := serve(t, nil)
		s.tamper(func(w http.ResponseWriter, r *http.Request, m message) bool {
			response := scripted(m, "")
			w.Header().Set("Mcp-Session-Id", "first")
			if m.Method == "notifications/initialized" {
				response.Status, response.Body = status, `{"jsonrpc":"2.0","id":null,"error":{"code":-32601,"message":"Invalid session"}}`
			}
			answer(response.Status, response.ContentType, response.Body)(w, r)
			return true
		})
		if got, err := call(patient(t), client(t, s.URL), "hello", `{}`); err != nil || got != "hi" {
			t.Errorf("status %d: Call = %q, %v; want the result", status, got, err)
		}
	}
}

// TestNewSessionIDs checks that the ID of the response to initialize stays the ID of the session.
func TestNewSessionIDs(t *testing.T) {
	for kind, wrap := range map[string]string{jsonType: "%s", events: "data: %s\n\n"} {
		t.Run(kind, func(t *testing.T) {
			s := serve(t, nil)
			var sent atomic.Int32
			s.tamper(func(w http.ResponseWriter, r *http.Request, m message) bool {
				response := scripted(m, "")
				w.Header().Set("Mcp-Session-Id", fmt.Sprint("session-", sent.Add(1)))
				if response.Body != "" {
					response.ContentType, response.Body = kind, fmt.Sprintf(wrap, response.Body)
				}
				answer(response.Status, response.ContentType, response.Body)(w, r)
				return true
			})
			c := client(t, s.URL)
			for range 2 {
				if got, err := call(patient(t), c, "hello", `{}`); err != nil || got != "hi" {
					t.Errorf("Call = %q, %v; want the result", got, err)
				}
			}
			for _, r := range s.requests()[1:] {
				if id := r.Header.Get("Mcp-Session-Id"); id != "session-1" {
					t.Errorf("%s with the session ID %q, want the first one", r.Method, id)
				}
			}
		})
	}
}
