package mcp_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/capstan-dev/capstan/internal/mcp"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// blobResult returns a result with a content as an embedded resource in base64.
func blobResult(mediaType, content string) string {
	return fmt.Sprintf(`{"content":[{"type":"resource","resource":{"uri":"demo://1","mimeType":%q,"blob":%q}}]}`,
		mediaType, base64.StdEncoding.EncodeToString([]byte(content)))
}

func TestResults(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		result string
		want   string
	}{
		"text": {"", `{"content":[{"type":"text","text":"one\ntwo"}]}`, "one\ntwo"},
		"texts": {
			"each text starts on a new line",
			`{"content":[{"type":"text","text":"one"},{"type":"text","text":"two"}]}`, "one\ntwo",
		},
		"nothing":    {"", `{"content":[]}`, ""},
		"no content": {"the protocol requires the member, but the client does not need it", `{}`, ""},
		"structured": {
			"the structured content is the result if there is no text",
			`{"content":[],"structuredContent":{"b": 1, "a": [2]}}`, `{"b": 1, "a": [2]}`,
		},
		"structured and text": {
			"both have the same content, for clients that know only one",
			`{"content":[{"type":"text","text":"{\"a\":1}"}],"structuredContent":{"a":1}}`, `{"a":1}`,
		},
		"structured and text, other form": {
			"the order of members, white space and escapes do not matter",
			`{"content":[{"type":"text","text":"{\"b\": \"\\u00fc\",\n \"a\": 1}"}],"structuredContent":{"a":1,"b":"ü"}}`,
			`{"b": "\u00fc",` + "\n" + ` "a": 1}`,
		},
		"structured and summary": {
			"the text does not have the data",
			`{"content":[{"type":"text","text":"4 items"}],"structuredContent":{"items":[1,2,3,4]}}`,
			"4 items\n" + `{"items":[1,2,3,4]}`,
		},
		"structured and other JSON": {
			"the text has less", `{"content":[{"type":"text","text":"{\"a\":1}"}],"structuredContent":{"a":1,"b":2}}`,
			`{"a":1}` + "\n" + `{"a":1,"b":2}`,
		},
		"structured, a text in an object": {
			"libraries put results that are no objects into one",
			`{"content":[{"type":"text","text":"sunny"}],"structuredContent":{"result":"sunny"}}`, "sunny",
		},
		"structured, a number in an object": {
			"", `{"content":[{"type":"text","text":"5"}],"structuredContent":{"result":5}}`, "5",
		},
		"structured, a list in an object": {
			"", `{"content":[{"type":"text","text":"[1, 2]"}],"structuredContent":{"result":[1,2]}}`, "[1, 2]",
		},
		"structured, a member with a name": {
			"a compensation may read the member", `{"content":[{"type":"text","text":"T-7"}],"structuredContent":{"id":"T-7"}}`,
			"T-7\n" + `{"id":"T-7"}`,
		},
		"structured, an empty list": {
			"libraries write no text for it", `{"content":[],"structuredContent":{"result":[]}}`, `{"result":[]}`,
		},
		"structured, an empty result": {"", `{"content":[],"structuredContent":{"result":null}}`, `{"result":null}`},
		"structured, a long text in an object": {
			"", `{"content":[{"type":"text","text":"` + strings.Repeat("x", 1<<19) + `"}],"structuredContent":{"result":"` +
				strings.Repeat("x", 1<<19) + `"}}`, strings.Repeat("x", 1<<19),
		},
		"structured, white space": {
			"the structured content is one line", `{"content":[{"type":"text","text":"a"}],"structuredContent":{ "b":  1 }}`,
			"a\n" + `{"b":1}`,
		},
		"structured, a list as texts": {
			"some libraries write one text for each item",
			`{"content":[{"type":"text","text":"a"},{"type":"text","text":"{\"n\": 2}"}],"structuredContent":{"result":["a",{"n":2}]}}`,
			"a\n" + `{"n":2}`,
		},
		"structured, null": {"", `{"content":[{"type":"text","text":"a"}],"structuredContent":null}`, "a"},
		"structured, long": {
			"white space does not matter",
			`{"content":[{"type":"text","text":"{\"a\": \"` + strings.Repeat("x", 1<<20) + `\"}"}],"structuredContent":{"a":"` +
				strings.Repeat("x", 1<<20) + `"}}`, `{"a": "` + strings.Repeat("x", 1<<20) + `"}`,
		},
		"structured and image": {
			"", `{"content":[{"type":"image","data":"","mimeType":"image/png"}],"structuredContent":{"a":1}}`,
			"[image/png, 0 bytes]\n{\"a\":1}",
		},
		"image": {
			"models cannot read base64",
			`{"content":[{"type":"image","data":"aGVsbG8=","mimeType":"image/png"}]}`, "[image/png, 5 bytes]",
		},
		"audio":   {"", `{"content":[{"type":"audio","data":"aGVsbG8h","mimeType":"audio/wav"}]}`, "[audio/wav, 6 bytes]"},
		"no type": {"", `{"content":[{"type":"image","data":"aGVsbG8h"}]}`, "[image, 6 bytes]"},
		"link": {
			"", `{"content":[{"type":"resource_link","name":"n","title":"The page","uri":"https://example.com/a"}]}`,
			"The page <https://example.com/a>",
		},
		"link without title": {"", `{"content":[{"type":"resource_link","name":"n","uri":"demo://1"}]}`, "n <demo://1>"},
		"resource":           {"", `{"content":[{"type":"resource","resource":{"uri":"demo://1","text":"its text"}}]}`, "its text"},
		"binary resource": {
			"a model cannot read bytes that are no text",
			blobResult("application/zip", "PK\x03\x04"), "[application/zip, 4 bytes] <demo://1>",
		},
		"binary resource, no type": {"", blobResult("", "a\x00b"), "[resource, 3 bytes] <demo://1>"},
		"binary resource, a PDF": {
			"its bytes may be letters", blobResult("text/plain", "%PDF-1.7 x"), "[text/plain, 10 bytes] <demo://1>",
		},
		"binary resource, an image": {
			"the text of an image is of little use", blobResult("image/svg+xml", "<svg/>"), "[image/svg+xml, 6 bytes] <demo://1>",
		},
		"binary resource, no base64": {
			"", `{"content":[{"type":"resource","resource":{"uri":"demo://1","mimeType":"text/plain","blob":"a*b"}}]}`,
			"[text/plain, 2 bytes] <demo://1>",
		},
		"text as a blob": {
			"some servers send each file as a blob", blobResult("text/plain; charset=utf-8", "gr\u00fcn\n"), "gr\u00fcn\n",
		},
		"text as a blob, another type": {"", blobResult("application/octet-stream", `{"a": 1}`), `{"a": 1}`},
		"text as a blob, no padding": {
			"", strings.ReplaceAll(blobResult("", "a\nbc"), "=", ""), "a\nbc",
		},
		"credentials in a blob": {
			"a server must not pass them on to the model", blobResult("text/plain", "called with "+token), "called with [redacted]",
		},
		"empty resource": {"", `{"content":[{"type":"resource"}]}`, "[resource]"},
		"unknown type": {
			"a later version of the protocol may define more types",
			`{"content":[{"type":"hologram","text":"x"},{"type":"text","text":"y"}]}`, "[hologram]\ny",
		},
		"not UTF-8": {"", `{"content":[{"type":"text","text":"a` + "\xff" + `b"}]}`, "a\uFFFDb"},
		"credentials": {
			"a server must not pass them on to the model",
			`{"content":[{"type":"text","text":"I was called with ` + token + `"}]}`, "I was called with [redacted]",
		},
		"credentials, escaped": {
			"they are redacted in any encoding",
			`{"content":[],"structuredContent":{"esc":"` + "tok\\u002d0123456789abcdefghijklmnop" +
				`","url":"tok%2d0123456789abcdefghijklmnop","base64":"` +
				base64.StdEncoding.EncodeToString([]byte("Bearer "+token)) + `","part":"` + token[:28] + `"}}`,
			`{"esc":"[redacted]","url":"[redacted]","base64":"QmVhcmVyIH[redacted]A==","part":"[redacted]"}`,
		},
		"long": {
			"the client keeps long texts; the loop shortens them for the model",
			`{"content":[{"type":"text","text":"` + strings.Repeat("x", 5<<20) + `"}]}`, strings.Repeat("x", 5<<20),
		},
	} {
		for kind, wrap := range map[string]string{jsonType: "%s", events: "event: message\r\nid: 1\r\ndata: %s\r\n\r\n"} {
			t.Run(name+", "+kind, func(t *testing.T) {
				s := serve(t, nil, says("hello", ""))
				s.tamper(func(w http.ResponseWriter, r *http.Request, m message) bool {
					if m.Method != "tools/call" {
						return false
					}
					answer(200, kind, fmt.Sprintf(wrap, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, tc.result)))(w, r)
					return true
				})
				got, err := call(patient(t), client(t, s.URL), "hello", `{}`)
				if err != nil || got != tc.want {
					t.Errorf("Call = %.200q, %v; want %.200q: %s", got, err, tc.want, tc.reason)
				}
			})
		}
	}
}

// TestStructuredContentOfManyTexts checks that the comparison of many texts with a large structured content takes
// linear time. With a search that takes quadratic time, this test would take minutes.
func TestStructuredContentOfManyTexts(t *testing.T) {
	for name, tc := range map[string]struct{ text, item string }{
		"objects": {`{\"n\": 1}`, `{"n":2}`}, "numbers": {"1", `"` + strings.Repeat("x", 500) + `"`},
	} {
		const n = 5_000
		texts := strings.TrimSuffix(strings.Repeat(`{"type":"text","text":"`+tc.text+`"},`, n), ",")
		items := strings.TrimSuffix(strings.Repeat(tc.item+",", n), ",")
		s := serve(t, nil, says("hello", ""))
		s.tamper(func(w http.ResponseWriter, r *http.Request, m message) bool {
			if m.Method == "tools/call" {
				answer(200, jsonType, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"content":[%s],"structuredContent":{"result":[%s]}}}`,
					m.ID, texts, items))(w, r)
			}
			return m.Method == "tools/call"
		})
		got, err := client(t, s.URL).Call(patient(t), "hello", tool.Call{})
		if err != nil || strings.Count(got.Content, "\n") != n-1 || got.Structured != `{"result":[`+items+`]}` {
			t.Errorf("%s: Call = %.80q..., %v; want all texts and the structured content", name, got.Whole(), err)
		}
	}
}

// TestStructuredContentIsSeparate checks that readers of JSON get the structured content alone if the whole text is not
// JSON, also if a part of it repeats the structured content. Then JSON in the other parts does not matter, nor does
// JSON in a resource. The model gets the data once.
func TestStructuredContentIsSeparate(t *testing.T) {
	link := &sdk.ResourceLink{Name: "note", URI: "demo://5"}
	said := func(text string) sdk.Content { return &sdk.TextContent{Text: text} }
	resource := func(text string) sdk.Content {
		return &sdk.EmbeddedResource{Resource: &sdk.ResourceContents{URI: "demo://9", MIMEType: "application/json", Text: text}}
	}
	for name, tc := range map[string]struct {
		content    []sdk.Content
		structured any
		want       tool.Result
		data       string
	}{
		"summary": {
			[]sdk.Content{said("Created for " + token)},
			map[string]any{"id": 7},
			tool.Result{Content: "Created for [redacted]", Structured: `{"id":7}`},
			`{"id":7}`,
		},
		"the same text": {
			[]sdk.Content{said(`{"id": 5}`)}, map[string]any{"id": 5}, tool.Result{Content: `{"id": 5}`}, `{"id": 5}`,
		},
		"the same text and a link": {
			[]sdk.Content{said(`{"id": 5}`), link},
			map[string]any{"id": 5},
			tool.Result{Content: "note <demo://5>", Structured: `{"id":5}`, ContentIsExtra: true},
			`{"id":5}`,
		},
		"summary and the same text": {
			[]sdk.Content{said("Created note 5"), said(`{"id": 5}`)},
			map[string]any{"id": 5},
			tool.Result{Content: "Created note 5", Structured: `{"id":5}`, ContentIsExtra: true},
			`{"id":5}`,
		},
		"the same text and an empty text": {
			[]sdk.Content{said(`{"id": 5}`), said("")},
			map[string]any{"id": 5},
			tool.Result{Content: `{"id": 5}` + "\n"},
			`{"id": 5}` + "\n",
		},
		"a number and an image": {
			[]sdk.Content{said("5"), &sdk.ImageContent{MIMEType: "image/png", Data: []byte("hello")}},
			map[string]any{"result": 5},
			tool.Result{Content: "[image/png, 5 bytes]", Structured: "5", ContentIsExtra: true},
			"5",
		},
		"a link alone": {
			[]sdk.Content{link},
			map[string]any{"id": 5},
			tool.Result{Content: "note <demo://5>", Structured: `{"id":5}`, ContentIsExtra: true},
			`{"id":5}`,
		},
		"the same text and a resource with other JSON": {
			[]sdk.Content{said(`{"id": 5}`), resource(`{"id":9}`)},
			map[string]any{"id": 5},
			tool.Result{Content: `{"id":9}`, Structured: `{"id":5}`, ContentIsExtra: true},
			`{"id":5}`,
		},
		"the same text and another text with JSON": {
			[]sdk.Content{said(`{"id":9}`), said(`{"id": 5}`)},
			map[string]any{"id": 5},
			tool.Result{Content: `{"id":9}`, Structured: `{"id":5}`, ContentIsExtra: true},
			`{"id":5}`,
		},
		"a resource with other JSON": {
			[]sdk.Content{resource(`{"id":9}`)},
			map[string]any{"id": 5},
			tool.Result{Content: `{"id":9}`, Structured: `{"id":5}`, ContentIsExtra: true},
			`{"id":5}`,
		},
		"an empty text and a resource with other JSON": {
			[]sdk.Content{said(""), resource(`{"id":9}`)},
			map[string]any{"id": 5},
			tool.Result{Content: "\n" + `{"id":9}`, Structured: `{"id":5}`, ContentIsExtra: true},
			`{"id":5}`,
		},
		"an empty list and a resource with other JSON": {
			[]sdk.Content{resource(`{"id":9}`)},
			map[string]any{"result": []any{}},
			tool.Result{Content: `{"id":9}`, Structured: `{"result":[]}`, ContentIsExtra: true},
			`{"result":[]}`,
		},
		"an empty string and a resource with other JSON": {
			[]sdk.Content{said(""), resource(`{"id":9}`)},
			map[string]any{"result": ""},
			tool.Result{Content: `{"id":9}`, Structured: `""`, ContentIsExtra: true},
			`""`,
		},
		"an empty item and a resource with other JSON": {
			[]sdk.Content{said(""), resource(`{"id":9}`)},
			map[string]any{"result": []any{""}},
			tool.Result{Content: `{"id":9}`, Structured: `[""]`, ContentIsExtra: true},
			`[""]`,
		},
		"the items of a list and a link": {
			[]sdk.Content{said("a"), link, said("b")},
			map[string]any{"result": []any{"a", "b"}},
			tool.Result{Content: "note <demo://5>", Structured: `["a","b"]`, ContentIsExtra: true},
			`["a","b"]`,
		},
		"the items of a list alone": {
			[]sdk.Content{said("a"), said("b")},
			map[string]any{"result": []any{"a", "b"}},
			tool.Result{Content: "a\nb", Structured: `["a","b"]`, ContentIsItems: true},
			`["a","b"]`,
		},
		"a list of one item": {
			[]sdk.Content{said(`{"by": "` + token + `"}`)},
			map[string]any{"result": []any{map[string]any{"by": token}}},
			tool.Result{Content: `{"by":"[redacted]"}`, Structured: `[{"by":"[redacted]"}]`, ContentIsItems: true},
			`[{"by":"[redacted]"}]`,
		},
		"a text with other JSON": {
			[]sdk.Content{said(`{"id":9}`)},
			map[string]any{"id": 5},
			tool.Result{Content: `{"id":9}`, Structured: `{"id":5}`},
			`{"id":9}`,
		},
		"no content": {nil, map[string]any{"id": 5}, tool.Result{Content: `{"id":5}`}, `{"id":5}`},
		"a text and a link": {
			[]sdk.Content{said("sunny"), link},
			map[string]any{"result": "sunny"},
			tool.Result{Content: "sunny\nnote <demo://5>"},
			"sunny\nnote <demo://5>",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, nil, plain("count", func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
				return &sdk.CallToolResult{Content: tc.content, StructuredContent: tc.structured}, nil
			}))
			got, err := client(t, s.URL).Call(patient(t), "count", tool.Call{})
			if err != nil || got != tc.want || got.Data() != tc.data {
				t.Errorf("Call = %+v with the data %q, %v; want %+v with the data %q", got, got.Data(), err, tc.want, tc.data)
			}
		})
	}
}

func TestErrorsOfTools(t *testing.T) {
	long := strings.Repeat("ü", 3000)
	type in struct {
		N int `json:"n"`
	}
	s := serve(t, nil, func(s *sdk.Server) {
		sdk.AddTool(s, &sdk.Tool{Name: "number"}, func(context.Context, *sdk.CallToolRequest, in) (*sdk.CallToolResult, any, error) {
			return nil, nil, nil
		})
		for name, message := range map[string]string{
			"fails": "there is no order 7", "silent": "", "long": long, "leaks": "with " + token,
			"reference-unknown": "MCP error -32602: Tool reference-unknown not found",
			"reference-invalid": "MCP error -32602: Input validation error: Invalid arguments for tool reference-invalid",
			"reference-timeout": "MCP error -32001: Request timed out",
			"reference-maximum": "MCP error -32001: Maximum total timeout exceeded",
			"reference-session": "MCP error -32001: Session not found",
			"python-timeout":    "MCP error 408: Timed out while waiting for response to CallToolRequest. Waited 40.0 seconds.",
			"reference-closed":  "MCP error -32000: Connection closed",
			"reference-other":   "MCP error -32000: no such order",
		} {
			plain(name, func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
				result := text(message)
				result.IsError = true
				return result, nil
			})(s)
		}
	})
	c := client(t, s.URL)
	for name, tc := range map[string]struct {
		class  tool.Class
		want   string
		remote string // the server's text, which Capstan's message does not contain
	}{
		"fails":             {tool.Failed, "the tool failed", "there is no order 7"},
		"silent":            {tool.Failed, "the tool failed without a reason", ""},
		"long":              {tool.Failed, "the tool failed", strings.Repeat("ü", 2000) + "..."},
		"leaks":             {tool.Failed, "the tool failed", "with [redacted]"},
		"reference-unknown": {tool.Unavailable, "the tool failed", "MCP error -32602: Tool reference-unknown not found"},
		"reference-invalid": {
			tool.InvalidArguments, "the tool failed",
			"MCP error -32602: Input validation error: Invalid arguments for tool reference-invalid",
		},
		"reference-timeout": {tool.Timeout, "the tool failed", "MCP error -32001: Request timed out"},
		"reference-maximum": {tool.Timeout, "the tool failed", "MCP error -32001: Maximum total timeout exceeded"},
		"reference-session": {tool.Failed, "the tool failed", "MCP error -32001: Session not found"},
		"python-timeout": {
			tool.Timeout, "the tool failed",
			"MCP error 408: Timed out while waiting for response to CallToolRequest. Waited 40.0 seconds.",
		},
		"reference-closed": {tool.OutcomeUnknown, "the tool failed", "MCP error -32000: Connection closed"},
		"reference-other":  {tool.Failed, "the tool failed", "MCP error -32000: no such order"},
		"no-such-tool":     {tool.Unavailable, `tool server "demo": it returned an error for the call`, `unknown tool "no-such-tool"`},
	} {
		t.Run(name, func(t *testing.T) {
			if e := failure(t, c, name); e.Class != tc.class || e.Message != tc.want || e.RemoteMessage != tc.remote {
				t.Errorf("Call = %s %q %.300q, want %s %q %.300q", e.Class, e.Message, e.RemoteMessage, tc.class, tc.want, tc.remote)
			}
		})
	}
	_, err := call(patient(t), c, "number", `{"n":"x"}`)
	if e := tool.AsError(err); e.Class != tool.InvalidArguments && e.Class != tool.Failed {
		t.Errorf("Call with bad arguments = %s %q", e.Class, e.Error())
	}
}

// TestTypesOfResults checks that a result counts as success only if its type completes the call. The type belongs to
// newer versions of the protocol.
func TestTypesOfResults(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		newer  bool
		result string
		class  tool.Class // "" if the call succeeds
		want   string
	}{
		"no type":  {"older versions have none", true, `{"content":[{"type":"text","text":"hi"}]}`, "", "hi"},
		"complete": {"", true, `{"resultType":"complete","content":[{"type":"text","text":"hi"}]}`, "", "hi"},
		"another type": {
			"a later version may define more types", true, `{"resultType":"deferred","content":[]}`, tool.OutcomeUnknown,
			"the response does not follow the Model Context Protocol",
		},
		"another type, older version": {
			"the member has no meaning there", false, `{"resultType":"table","content":[{"type":"text","text":"hi"}]}`, "", "hi",
		},
		"no text, older version": {
			"the member has no meaning there", false, `{"resultType":3,"content":[{"type":"text","text":"hi"}]}`, "", "hi",
		},
		"no text": {
			"", true, `{"resultType":3,"content":[{"type":"text","text":"hi"}]}`, tool.OutcomeUnknown,
			"the response does not follow the Model Context Protocol",
		},
		"input required": {
			"the server waits for a second request", true,
			`{"resultType":"input_required","inputRequests":{"a":{"method":"elicitation/create","params":{"message":"sure?"}}}}`,
			tool.Failed, "the server asks for input that Capstan cannot give, and has not completed the call",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, &sdk.StreamableHTTPOptions{Stateless: true}, says("hello", ""))
			s.tamper(func(w http.ResponseWriter, r *http.Request, m message) bool {
				switch {
				case m.Method == "initialize" && tc.newer:
					answer(404, jsonType, `{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"unknown method"}}`)(w, r)
				case m.Method == "tools/call":
					answer(200, jsonType, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, tc.result))(w, r)
				default:
					return false
				}
				return true
			})
			got, err := call(patient(t), client(t, s.URL), "hello", `{}`)
			if tc.class == "" {
				if err != nil || got != tc.want {
					t.Errorf("Call = %q, %v; want %q: %s", got, err, tc.want, tc.reason)
				}
				return
			}
			if e, ok := errors.AsType[*tool.Error](err); !ok || e.Class != tc.class || e.Message != `tool server "demo": `+tc.want {
				t.Errorf("Call = %q, %v; want %s %q: %s", got, err, tc.class, tc.want, tc.reason)
			}
		})
	}
}

// TestResponseIsFetchedAfterReconnect checks that the client reconnects if the connection ends during a call, and gets
// the response then. Newer servers close the connection on purpose while they work.
func TestResponseIsFetchedAfterReconnect(t *testing.T) {
	for name, hang := range map[string]func(*site, *sdk.CallToolRequest){
		"the server hangs up":   func(_ *site, r *sdk.CallToolRequest) { r.Extra.CloseSSEStream(sdk.CloseSSEStreamArgs{RetryAfter: 1}) },
		"the connection breaks": func(s *site, _ *sdk.CallToolRequest) { s.web.CloseClientConnections() },
	} {
		t.Run(name, func(t *testing.T) {
			var s *site
			s = serve(t, &sdk.StreamableHTTPOptions{EventStore: sdk.NewMemoryEventStore(nil)},
				plain("slow", func(_ context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
					hang(s, r)
					return text("done"), nil
				}))
			if got, err := call(patient(t), client(t, s.URL), "slow", `{}`); err != nil || got != "done" {
				t.Errorf("Call = %q, %v; want the result", got, err)
			}
		})
	}
}

// TestResumptions checks after which events the stream of a response is resumed, and how often.
func TestResumptions(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		// streams are the streams that the server sends for the call and then for each resumption. A server without
		// another stream sends an empty one. %s is replaced by the response. For "503" it fails with this status.
		streams []string
		// after are the IDs of the events after which the stream is resumed, each followed by a space.
		after string
		want  string // "" if the call fails
	}{
		"cut event": {
			"the second event has not arrived",
			[]string{"retry: 1\nid: 1\ndata:\n\nid: 2\ndata: {\"jsonrpc\"", "id: 2\ndata: %s\n\n"},
			"1 ", "done",
		},
		"progress": {
			"each stream brings an event",
			[]string{
				"retry: 1\nid: 1\ndata:\n\n", "id: 2\ndata:\n\n", "id: 3\n\n", "id: 4\ndata:\n\n", "id: 5\ndata:\n\n", "data: %s\n\n",
			},
			"1 2 3 4 5 ", "done",
		},
		"no progress": {
			"the server closes the stream until it has the response, as in SEP-1699",
			[]string{"retry: 1\nid: 1\ndata:\n\n", "", "", "", "", "data: %s\n\n"},
			"1 1 1 1 1 ", "done",
		},
		"the same event": {
			"a server may begin each stream with the same event",
			[]string{"retry: 1\nid: 1\n\n", "id: 1\n\n", "id: 1\n\n", "id: 1\n\n", "data: %s\n\n"},
			"1 1 1 1 ", "done",
		},
		"failures": {
			"the server may never continue",
			[]string{"retry: 1\nid: 1\ndata:\n\n", "503", "503", "503", "data: %s\n\n"},
			"1 1 1 ", "",
		},
		"failures with successes between them": {
			"only failures in a row count",
			[]string{"retry: 1\nid: 1\ndata:\n\n", "503", "503", "", "503", "data: %s\n\n"},
			"1 1 1 1 1 ", "done",
		},
		"cut first event": {"no event has arrived after which the server could continue", []string{"id: 1\ndata: {"}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, nil, says("slow", ""))
			var mu sync.Mutex
			var id json.RawMessage
			var after strings.Builder
			sent := 0
			s.tamper(func(w http.ResponseWriter, r *http.Request, m message) bool {
				last := r.Header.Get("Last-Event-ID")
				if m.Method != "tools/call" && last == "" {
					return false
				}
				mu.Lock()
				defer mu.Unlock()
				if last == "" {
					id = m.ID
				} else {
					after.WriteString(last + " ")
				}
				stream := ""
				if sent < len(tc.streams) {
					stream = tc.streams[sent]
				}
				if sent++; stream == "503" {
					answer(503, "", "")(w, r)
					return true
				}
				response := fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":"done"}]}}`, id)
				answer(200, events, strings.ReplaceAll(stream, "%s", response))(w, r)
				return true
			})
			got, err := call(patient(t), client(t, s.URL), "slow", `{}`)
			if got != tc.want || (err == nil) != (tc.want != "") {
				t.Errorf("Call = %q, %v; want %q: %s", got, err, tc.want, tc.reason)
			}
			mu.Lock()
			defer mu.Unlock()
			if after.String() != tc.after {
				t.Errorf("the stream was resumed after %q, want %q: %s", after.String(), tc.after, tc.reason)
			}
		})
	}
}

func TestCallsReuseConnection(t *testing.T) {
	for name, options := range kinds {
		t.Run(name, func(t *testing.T) {
			s := serve(t, options, says("hello", "hi"))
			addresses := map[string]bool{}
			c := client(t, s.URL, func(cfg *mcp.Config) { cfg.Token = "" })
			for range 20 {
				if got, err := call(patient(t), c, "hello", `{}`); err != nil || got != "hi" {
					t.Fatalf("Call = %q, %v", got, err)
				}
			}
			for _, r := range s.requests() {
				addresses[r.RemoteAddr] = true
			}
			if len(addresses) > 5 {
				t.Errorf("20 calls used %d TCP connections, want at most 5", len(addresses))
			}
		})
	}
}

// TestIDsAsTexts checks that a server that sends the number of a request as a text can be used, also with a large
// response and with a long response to initialize.
func TestIDsAsTexts(t *testing.T) {
	for kind, wrap := range map[string]string{jsonType: "%s", events: "data: %s\n\n"} {
		for name, member := range map[string]string{"short": "", "long": `,"x":"` + strings.Repeat("x", 100<<10) + `"`} {
			t.Run(kind+", "+name, func(t *testing.T) {
				s := serve(t, nil)
				s.tamper(func(w http.ResponseWriter, r *http.Request, m message) bool {
					if len(m.ID) > 0 {
						m.ID = fmt.Appendf(nil, `"%s"`, m.ID)
					}
					response := scripted(m, member)
					if response.Body != "" {
						response.ContentType, response.Body = kind, fmt.Sprintf(wrap, response.Body)
					}
					answer(response.Status, response.ContentType, response.Body)(w, r)
					return true
				})
				if got, err := call(patient(t), client(t, s.URL), "hello", `{}`); err != nil || got != "hi" {
					t.Errorf("Call = %q, %v; want the result", got, err)
				}
			})
		}
	}
}

// TestEmptyObjectsAsLists checks that a server can be used if it writes empty objects in the response to initialize as
// lists, as PHP does, or as null.
func TestEmptyObjectsAsLists(t *testing.T) {
	for name, result := range map[string]string{
		"capabilities":         `"capabilities":[],"serverInfo":{"name":"site","version":"1"}`,
		"null":                 `"capabilities":null,"serverInfo":{"name":"site","version":"1"}`,
		"tools":                `"capabilities":{"tools":[]},"serverInfo":{"name":"site","version":"1"}`,
		"metadata":             `"capabilities":{},"_meta":[],"serverInfo":{"name":"site","version":"1"}`,
		"facts of the server":  `"capabilities":{"tools":{}},"serverInfo":[]`,
		"null for one of them": `"capabilities":{"tools":null},"serverInfo":null`,
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, nil, says("hello", "hi"))
			s.tamper(func(w http.ResponseWriter, r *http.Request, m message) bool {
				response := scripted(m, "")
				if m.Method == "initialize" {
					response.Body = fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-11-25",%s}}`, m.ID, result)
				}
				answer(response.Status, response.ContentType, response.Body)(w, r)
				return true
			})
			if got, err := call(patient(t), client(t, s.URL), "hello", `{}`); err != nil || got != "hi" {
				t.Errorf("Call = %q, %v; want the result", got, err)
			}
		})
	}
}

// TestNullErrors checks that a response with a result and a null error is a result. Some libraries send both members.
func TestNullErrors(t *testing.T) {
	for kind, wrap := range map[string]string{jsonType: "%s", events: "data: %s\n\n"} {
		t.Run(kind, func(t *testing.T) {
			s := serve(t, nil)
			s.tamper(func(w http.ResponseWriter, r *http.Request, m message) bool {
				response := scripted(m, `,"error":null`)
				if response.Body != "" {
					response.ContentType, response.Body = kind, fmt.Sprintf(wrap, response.Body)
				}
				answer(response.Status, response.ContentType, response.Body)(w, r)
				return true
			})
			if got, err := call(patient(t), client(t, s.URL), "hello", `{}`); err != nil || got != "hi" {
				t.Errorf("Call = %q, %v; want the result", got, err)
			}
		})
	}
}

// TestNullResults checks that a response with an error and a null result is the error. Some libraries send both
// members.
func TestNullResults(t *testing.T) {
	for kind, wrap := range map[string]string{jsonType: "%s", events: "data: %s\n\n"} {
		t.Run(kind, func(t *testing.T) {
			s := serve(t, nil, says("hello", "hi"))
			refuse := func(method, reason string) {
				s.tamper(func(w http.ResponseWriter, r *http.Request, m message) bool {
					if m.Method != method {
						return false
					}
					response := fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":null,"error":%s}`, m.ID, reason)
					answer(http.StatusOK, kind, fmt.Sprintf(wrap, response))(w, r)
					return true
				})
			}
			c := client(t, s.URL)
			refuse("tools/call", `{"code":-32602,"message":"no such city"}`)
			if e := failure(t, c, "hello"); e.Class != tool.InvalidArguments || e.RemoteMessage != "no such city" {
				t.Errorf("Call = %s %q, want the error of the server", e.Class, e)
			}
			refuse("tools/list", `{"code":-32000,"message":"no list today"}`)
			_, err := c.Discover(patient(t))
			if e, ok := errors.AsType[*mcp.Error](err); !ok || e.RemoteMessage != "no list today" {
				t.Errorf("Discover = %v, want the error of the server", err)
			}
			refuse("initialize", `{"code":-32000,"message":"closed on Mondays"}`)
			_, err = client(t, s.URL).Discover(patient(t))
			if e, ok := errors.AsType[*mcp.Error](err); !ok || e.RemoteMessage != "closed on Mondays" {
				t.Errorf("Discover = %v, want the error of the server", err)
			}
		})
	}
}
