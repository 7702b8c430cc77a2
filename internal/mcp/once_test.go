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

// TestCallIsSentOnceOverHTTP2 checks that a call is not sent again if the server resets its stream after it has
// received the whole call. net/http would repeat such a call without limit.
func TestCallIsSentOnceOverHTTP2(t *testing.T) {
	for _, code := range []http2.ErrCode{http2.ErrCodeProtocol, http2.ErrCodeRefusedStream} {
		t.Run(code.String(), func(t *testing.T) {
			var received atomic.Int32
			url, certificate := http2test.Serve(t, func(_ string, body []byte) http2test.Response {
				var m message
				if len(body) > 0 && json.Unmarshal(body, &m) != nil {
					t.Errorf("the server received %q, want JSON", body)
				}
				if m.Method == "tools/call" && received.Add(1) == 1 {
					return http2test.Response{Reset: code}
				}
				return scripted(m, "")
			})
			certificates, err := netpolicy.Certificates{Authorities: certificate}.TLS()
			if err != nil {
				t.Fatal(err)
			}
			c := client(t, url, func(cfg *mcp.Config) { cfg.TLS = certificates })
			if e := failure(t, c, "hello"); e.Class != tool.OutcomeUnknown || received.Load() != 1 ||
				!strings.Contains(e.Error(), "the connection broke before the response arrived") {
				t.Errorf("Call = %s %q, sent %d times; want an unknown outcome, sent once", e.Class, e.Error(), received.Load())
			}
			if got, err := call(patient(t), c, "hello", `{}`); err != nil || got != "hi" {
				t.Errorf("the next call = %q, %v; want its result", got, err)
			}
		})
	}
}
