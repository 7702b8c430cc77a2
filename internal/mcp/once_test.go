package mcp_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/net/http2"

	"github.com/capstan-dev/capstan/internal/mcp"
	"github.com/capstan-dev/capstan/internal/netpolicy"
	"github.com/capstan-dev/capstan/internal/netpolicy/http2test"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// scripted returns the response of a server with the tool "hello" to a message. member is added to the response.
func scripted(m message, member string) http2test.Response {
	results := map[string]string{
		"initialize": `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"site","version":"1"}}`,
		"tools/list": `{"tools":[{"name":"hello","inputSchema":{"type":"object"}}]}`,
		"tools/call": `{"content":[{"type":"text","text":"hi"}]}`,
		"ping":       `{}`,
	}
	result, known := results[m.Method]
	switch {
	case m.Method == "":
		return http2test.Response{Status: http.StatusMethodNotAllowed, ContentType: "text/plain"}
	case !known:
		return http2test.Response{Status: http.StatusAccepted, ContentType: jsonType}
	}
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s%s}`, m.ID, result, member)
	return http2test.Response{Status: http.StatusOK, ContentType: jsonType, Body: body}
}

// TestRepetitionsOverHTTP2 checks that a call is sent once more if the server has refused it without processing it: the
// effect of such a call is known. If the server may have processed it, it is not sent again. net/http would repeat it
// without limit after PROTOCOL_ERROR.
func TestRepetitionsOverHTTP2(t *testing.T) {
	const unprocessed = "the server refused the HTTP/2 stream, or is closing the connection, without processing the request"
	for name, tc := range map[string]struct {
		refusal       http2test.Response
		refused, sent int32
		class         tool.Class
		message       string
	}{
		"PROTOCOL_ERROR": {
			http2test.Response{Reset: http2.ErrCodeProtocol},
			1, 1, tool.OutcomeUnknown,
			"the connection broke before the response arrived",
		},
		"REFUSED_STREAM":       {http2test.Response{Reset: http2.ErrCodeRefusedStream}, 1, 2, "", ""},
		"GOAWAY":               {http2test.Response{GoAway: true}, 1, 2, "", ""},
		"REFUSED_STREAM twice": {http2test.Response{Reset: http2.ErrCodeRefusedStream}, 2, 2, tool.Unavailable, unprocessed},
		"GOAWAY twice":         {http2test.Response{GoAway: true}, 2, 2, tool.Unavailable, unprocessed},
	} {
		t.Run(name, func(t *testing.T) {
			var received atomic.Int32
			url, certificate := http2test.Serve(t, func(_ string, body []byte) http2test.Response {
				var m message
				if len(body) > 0 && json.Unmarshal(body, &m) != nil {
					t.Errorf("the server received %q, want JSON", body)
				}
				if m.Method == "tools/call" && received.Add(1) <= tc.refused {
					return tc.refusal
				}
				return scripted(m, "")
			})
			certificates, err := netpolicy.Certificates{Authorities: certificate}.TLS()
			if err != nil {
				t.Fatal(err)
			}
			c := client(t, url, func(cfg *mcp.Config) { cfg.TLS = certificates })
			if tc.class == "" {
				if got, err := call(patient(t), c, "hello", `{}`); err != nil || got != "hi" {
					t.Errorf("Call = %q, %v; want its result", got, err)
				}
			} else if e := failure(t, c, "hello"); e.Class != tc.class || !strings.Contains(e.Error(), tc.message) {
				t.Errorf("Call = %s %q, want %s %q", e.Class, e.Error(), tc.class, tc.message)
			}
			if received.Load() != tc.sent {
				t.Errorf("the call was sent %d times, want %d", received.Load(), tc.sent)
			}
			if got, err := call(patient(t), c, "hello", `{}`); err != nil || got != "hi" {
				t.Errorf("the next call = %q, %v; want its result", got, err)
			}
		})
	}
}
