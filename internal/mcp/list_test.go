package mcp_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/capstan-dev/capstan/internal/mcp"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

func TestDiscover(t *testing.T) {
	for name, options := range kinds {
		t.Run(name, func(t *testing.T) {
			s := serve(t, options, says("b", ""), func(s *sdk.Server) {
				s.AddTool(&sdk.Tool{
					Name: "a", Description: "Does a.", InputSchema: json.RawMessage(
						`{"type": "object", "properties": {"z": {"type": "integer"}, "a": {"maximum": 12345678901234567890}}}`),
				}, nil)
			})
			l, err := client(t, s.URL).Discover(patient(t))
			if err != nil {
				t.Fatal(err)
			}
			if l.ServerName != "site" || l.ServerVersion != "1.2.3" || l.ProtocolVersion != "2025-11-25" {
				t.Errorf("server %q %q, protocol %q", l.ServerName, l.ServerVersion, l.ProtocolVersion)
			}
			want := []mcp.Tool{
				{Name: "a", Description: "Does a.", Schema: json.RawMessage(
					`{"type":"object","properties":{"z":{"type":"integer"},"a":{"maximum":12345678901234567890}}}`)},
				{Name: "b", Schema: json.RawMessage(`{"type":"object"}`)},
			}
			if diff := cmp.Diff(want, l.Tools); diff != "" {
				t.Errorf("tools, sorted by name, with compact schemas: -want +got:\n%s", diff)
			}
		})
	}
}

// TestHints checks that the client returns the server's hints, and that a missing destructiveHint differs from false.
func TestHints(t *testing.T) {
	for annotations, want := range map[string]tool.Hints{
		``:                                     {},
		`,"annotations":null`:                  {},
		`,"annotations":{"title":"T"}`:         {},
		`,"annotations":{"readOnlyHint":true}`: {ReadOnly: true},
		`,"annotations":{"readOnlyHint":false,"idempotentHint":true,"destructiveHint":true}`: {Idempotent: true, Destructive: new(true)},
		`,"annotations":{"idempotentHint":false,"destructiveHint":false}`:                    {Destructive: new(false)},
		`,"annotations":[]`:  {},
		`,"annotations":"x"`: {},
		`,"annotations":{"readOnlyHint":"true","idempotentHint":1,"destructiveHint":"true"}`: {},
		`,"annotations":{"readOnlyHint":"true","destructiveHint":true}`:                      {Destructive: new(true)},
	} {
		s := serve(t, nil)
		s.tamper(lists(func(string) string {
			return `{"tools":[{"name":"a","inputSchema":{"type":"object"}` + annotations + `}]}`
		}))
		l, err := client(t, s.URL).Discover(patient(t))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, l.Tools[0].Hints); diff != "" {
			t.Errorf("hints of %s: -want +got:\n%s", annotations, diff)
		}
	}
}

// lists returns a function for tamper that responds to requests for lists of tools with the given pages.
func lists(page func(cursor string) string) func(http.ResponseWriter, *http.Request, message) bool {
	return func(w http.ResponseWriter, r *http.Request, m message) bool {
		if m.Method != "tools/list" {
			return false
		}
		answer(200, jsonType, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, page(m.Params.Cursor)))(w, r)
		return true
	}
}

func TestHostileLists(t *testing.T) {
	repeat := func(n int, format string) string {
		tools := make([]string, n)
		for i := range tools {
			tools[i] = fmt.Sprintf(format, i)
		}
		return strings.Join(tools, ",")
	}
	n := 0
	for name, tc := range map[string]struct {
		reason string
		page   func(cursor string) string
		tools  int
		want   string
	}{
		"at the limit": {
			"a thousand tools are allowed",
			func(string) string { return `{"tools":[` + repeat(1000, `{"name":"t%d"}`) + `]}` }, 1000, "",
		},
		"too many": {
			"more tools are refused",
			func(string) string { return `{"tools":[` + repeat(1001, `{"name":"t%d"}`) + `]}` }, 0, "it lists more than 1000 tools",
		},
		"too long": {"a long list is refused even if it has few tools", func(string) string {
			return `{"tools":[{"name":"a","description":"` + strings.Repeat("x", 4<<20) + `"}]}`
		}, 0, "its list of tools exceeds 4 MiB"},
		"empty tools": {
			"an empty tool of 3 bytes would take 80 bytes of memory",
			func(string) string { return `{"tools":[` + strings.Repeat("{},", 1<<20) + `{}]}` }, 0,
			"the server offers too much: a list in the response has more than 10000 elements",
		},
		"without end": {
			"a list must end", func(string) string { n++; return fmt.Sprintf(`{"tools":[],"nextCursor":"%d"}`, n) }, 0,
			"has more than 200 pages",
		},
		"long cursor": {
			"the cursor is not counted as memory",
			func(string) string { return `{"tools":[],"nextCursor":"` + strings.Repeat("x", 16<<10+1) + `"}` }, 0,
			"the server offers too much: the cursor of a page of its list of tools exceeds 16 KiB",
		},
		"repeated cursor": {
			"a repeated cursor ends the list",
			func(string) string { return `{"tools":[{"name":"a"}],"nextCursor":"x"}` }, 1, "",
		},
		"pages": {"all pages are read", func(cursor string) string {
			if cursor == "" {
				return `{"tools":[{"name":"a"}],"nextCursor":"x"}`
			}
			return `{"tools":[{"name":"b"}]}`
		}, 2, ""},
		"credentials": {"a list is stored and shown, so it must have no credentials", func(string) string {
			return `{"tools":[{"name":"` + token + `"},{"name":"a","description":"` +
				strings.Repeat("x", mcp.MaxDescription-10) + token + `","inputSchema":{"type":"object","default":"%2Dx` + token + `"}}]}`
		}, 1, ""},
		"odd names": {"tools that cannot be called or distinguished are left out", func(string) string {
			return `{"tools":[{"name":""},{"name":"` + strings.Repeat("x", 129) + `"},{"name":"a"},{"name":"a"}]}`
		}, 1, ""},
		"odd members": {"a tool whose members have other types is left out, and the others are not", func(string) string {
			return `{"tools":[{"name":"a"},{"name":5},{"name":"b","description":[]},{"name":"c","title":{}},"d",["e"],null,7,` +
				`{"name":"f","annotations":[]}]}`
		}, 2, ""},
		"odd schemas": {"a tool without a valid schema accepts any arguments", func(string) string {
			return `{"tools":[{"name":"a","inputSchema":[]},{"name":"b","inputSchema":null},{"name":"c","inputSchema":"x"}]}`
		}, 3, ""},
		"no list": {"a server without tools has none", func(string) string { return `{}` }, 0, ""},
		"another type": {
			"the response is not a list", func(string) string { return `{"tools":{"a":1}}` }, 0,
			"the endpoint at mcp.url is not an MCP server",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, nil, says("hello", ""))
			s.tamper(lists(tc.page))
			l, err := client(t, s.URL).Discover(patient(t))
			if tc.want != "" {
				if e, ok := errors.AsType[*mcp.Error](err); !ok || e.Kind != mcp.Protocol || !strings.Contains(e.Error(), tc.want) {
					t.Errorf("Discover = %v; want %q: %s", err, tc.want, tc.reason)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if len(l.Tools) != tc.tools {
				t.Errorf("%d tools, want %d: %s", len(l.Tools), tc.tools, tc.reason)
			}
			for _, known := range l.Tools {
				if shown := fmt.Sprintf("%+v %s", known, known.Schema); strings.Contains(shown, token[:9]) {
					t.Errorf("tool %.200s, want it without the credential", shown)
				}
				if !strings.HasPrefix(string(known.Schema), "{") || !json.Valid(known.Schema) {
					t.Errorf("tool %q has the schema %s, want an object", known.Name, known.Schema)
				}
			}
		})
	}
}

// TestListThatDoesNotEndInTime checks the error if a page does not arrive in time. A server whose list has no end, and
// an honest server that is slow, look the same then: both are unreachable, as a server whose only page is slow.
func TestListThatDoesNotEndInTime(t *testing.T) {
	const begin, end = "the list of tools did not end within 5s (connectTimeoutSeconds): ", ", and the server says that there are more"
	var running sync.WaitGroup
	for slow, want := range map[int32]string{
		1: "no answer within 5s",
		2: begin + "1 page has arrived" + end,
		4: begin + "3 pages have arrived" + end,
	} {
		s := serve(t, nil, says("hello", ""))
		var pages atomic.Int32
		s.tamper(func(w http.ResponseWriter, r *http.Request, m message) bool {
			if m.Method == "tools/list" && pages.Add(1) == slow {
				<-r.Context().Done()
				return true
			}
			return lists(func(string) string { return fmt.Sprintf(`{"tools":[],"nextCursor":"%d"}`, pages.Load()) })(w, r, m)
		})
		c := client(t, s.URL, func(cfg *mcp.Config) { cfg.ConnectTimeout = 5 * time.Second })
		running.Go(func() {
			_, err := c.Discover(patient(t))
			if e, ok := errors.AsType[*mcp.Error](err); !ok || e.Kind != mcp.Unreachable || e.Error() != want {
				t.Errorf("page %d is slow: Discover = %v, want %q", slow, err, want)
			}
		})
	}
	running.Wait()
}

// TestLargeInitializeResponseLeavesMemoryForList checks that a list can use the memory of a large response to
// initialize. Both use the same share of the memory.
func TestLargeInitializeResponseLeavesMemoryForList(t *testing.T) {
	s := serve(t, nil)
	long := strings.Repeat("x", 300<<10)
	s.Server = sdk.NewServer(&sdk.Implementation{Name: "site", Version: "1"}, &sdk.ServerOptions{Instructions: long})
	s.AddTool(&sdk.Tool{Name: "a", Description: long, InputSchema: json.RawMessage(`{"type":"object"}`)}, nil)
	if l, err := client(t, s.URL).Discover(patient(t)); err != nil || len(l.Tools) != 1 {
		t.Errorf("Discover = %+v, %v; want the list", l, err)
	}
}

// TestTokenInServerNameIsRedacted checks that a token in the server's name and version is not shown.
func TestTokenInServerNameIsRedacted(t *testing.T) {
	s := serve(t, nil, says("hello", ""))
	s.Server = sdk.NewServer(&sdk.Implementation{Name: "I am " + token, Version: "1-" + token}, nil)
	l, err := client(t, s.URL).Discover(patient(t))
	if err != nil {
		t.Fatal(err)
	}
	if l.ServerName != "I am [redacted]" || l.ServerVersion != "1-[redacted]" {
		t.Errorf("server %q %q, want it without the credential", l.ServerName, l.ServerVersion)
	}
}

func TestToolsThatChange(t *testing.T) {
	for name, options := range map[string]*sdk.StreamableHTTPOptions{"events": nil, "JSON": {JSONResponse: true}} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, options, says("a", "1"))
			changes := make(chan struct{}, 10)
			c := client(t, s.URL, func(cfg *mcp.Config) { cfg.OnChange = func() { changes <- struct{}{} } })
			names := func() string {
				l, err := c.Tools(patient(t), time.Hour)
				if err != nil {
					t.Fatal(err)
				}
				var all []string
				for _, known := range l.Tools {
					all = append(all, known.Name)
				}
				return strings.Join(all, " ")
			}
			if got := names(); got != "a" {
				t.Fatalf("tools %q", got)
			}
			for probe := 0; len(changes) == 0 && probe < 60; probe++ { // until the stream is open
				awaitStream(t, s, 1)
				says("a", fmt.Sprint(probe))(s.Server)
				says(fmt.Sprintf("probe%d", probe), "")(s.Server)
				select {
				case got := <-changes:
					changes <- got
				case <-time.After(time.Second):
				}
				s.RemoveTools(fmt.Sprintf("probe%d", probe))
			}
			eventually(t, "the probe to disappear from the list", func() bool { return names() == "a" })
			before := s.listings()
			for i := range 20 {
				says(fmt.Sprintf("b%d", i%2), "2")(s.Server)
			}
			s.RemoveTools("a")
			eventually(t, "the list to be the current one", func() bool { return names() == "b0 b1" })
			if l := s.listings() - before; l > 4 {
				t.Errorf("the tools were listed %d times, want at most 4 for many changes in a row", l)
			}
		})
	}
}

// awaitStream waits until the server has received the given number of requests for its stream of notifications.
func awaitStream(t *testing.T, s *site, times int) {
	t.Helper()
	eventually(t, "the stream of notifications", func() bool {
		n := 0
		for _, r := range s.requests() {
			if r.Method == http.MethodGet {
				n++
			}
		}
		return n >= times
	})
}

func TestBrokenStreamIsResumed(t *testing.T) {
	s := serve(t, nil, says("a", "1"))
	changes := make(chan struct{}, 10)
	c := client(t, s.URL, func(cfg *mcp.Config) { cfg.OnChange = func() { changes <- struct{}{} } })
	if _, err := c.Discover(patient(t)); err != nil {
		t.Fatal(err)
	}
	awaitStream(t, s, 1)
	var conflicts atomic.Int32
	s.tamper(func(w http.ResponseWriter, r *http.Request, _ message) bool {
		if r.Method == http.MethodGet && conflicts.Add(1) == 1 { // the server has not noticed that the first stream has ended
			answer(409, "text/plain", "the stream is taken")(w, r)
			return true
		}
		return false
	})
	s.web.CloseClientConnections()
	says("b", "2")(s.Server) // while no client listens
	select {
	case <-changes:
	case <-time.After(patience):
		t.Fatal("OnChange was not called")
	}
	l, err := c.Tools(patient(t), time.Hour)
	if err != nil || len(l.Tools) != 2 {
		t.Errorf("Tools = %+v, %v; want the tool that was added without a stream", l, err)
	}
	awaitStream(t, s, 3)
}

// TestServerNeedsNoStream checks that calls succeed, all in one session, even if the server refuses to open a stream of
// notifications.
func TestServerNeedsNoStream(t *testing.T) {
	for name, handle := range map[string]func(http.ResponseWriter, *http.Request){
		"405": answer(405, "text/plain", ""), "400": answer(400, "text/plain", ""), "a website": answer(200, "text/html", "<html>"),
		"404": answer(404, "text/plain", "no such page"),
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, nil, says("a", "1"))
			var sessions atomic.Int32
			s.tamper(func(w http.ResponseWriter, r *http.Request, m message) bool {
				if m.Method == "initialize" {
					sessions.Add(1)
				}
				if r.Method == http.MethodGet {
					handle(w, r)
				}
				return r.Method == http.MethodGet
			})
			c := client(t, s.URL)
			for range 3 {
				if got, err := call(patient(t), c, "a", `{}`); err != nil || got != "1" {
					t.Fatalf("Call = %q, %v", got, err)
				}
			}
			awaitStream(t, s, 1)
			for range 20 {
				if got, err := call(patient(t), c, "a", `{}`); err != nil || got != "1" {
					t.Fatalf("Call = %q, %v; want success: the server needs no stream", got, err)
				}
			}
			if n := sessions.Load(); n != 1 {
				t.Errorf("%d sessions were begun, want one", n)
			}
		})
	}
}

func TestToolsAreKnownWhileServerIsUnreachable(t *testing.T) {
	s := serve(t, nil, says("a", "1"))
	fakeClock := &clock{now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	c := client(t, s.URL, func(cfg *mcp.Config) { cfg.Now = fakeClock.read })
	first, err := c.Tools(patient(t), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	again, err := c.Tools(patient(t), time.Minute)
	if err != nil || again != first {
		t.Errorf("Tools = %p, %v; want the known list, %p", again, err, first)
	}
	s.tamper(func(w http.ResponseWriter, r *http.Request, _ message) bool { hangUp(w, r); return true })
	fakeClock.advance(time.Minute)
	known, err := c.Tools(patient(t), time.Minute)
	if err == nil || known == nil || known.Tools[0].Name != "a" {
		t.Errorf("Tools = %+v, %v; want the known tools, and the error of the request", known, err)
	}
	before := s.listings()
	for range 10 {
		if l, err := c.Tools(patient(t), time.Minute); err == nil || l == nil {
			t.Errorf("Tools = %+v, %v; want the known tools, and the error", l, err)
		}
	}
	if s.listings() != before {
		t.Error("a server that does not respond is asked each time, want a pause")
	}
	fresh := client(t, s.URL)
	if l, err := fresh.Tools(patient(t), time.Minute); err == nil || l != nil {
		t.Errorf("Tools = %+v, %v; want no list of a server that was never reached", l, err)
	}
}

// TestNewerProtocol checks that the client can use a server that supports neither sessions nor the initialize request
// of older versions.
func TestNewerProtocol(t *testing.T) {
	s := serve(t, &sdk.StreamableHTTPOptions{Stateless: true}, says("a", "1"))
	s.tamper(func(w http.ResponseWriter, r *http.Request, m message) bool {
		if m.Method != "initialize" {
			return false
		}
		answer(404, jsonType, `{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"unknown method"}}`)(w, r)
		return true
	})
	c := client(t, s.URL)
	l, err := c.Discover(patient(t))
	if err != nil || l.ProtocolVersion != "2026-07-28" || len(l.Tools) != 1 {
		t.Fatalf("Discover = %+v, %v", l, err)
	}
	if got, err := call(patient(t), c, "a", `{}`); err != nil || got != "1" {
		t.Errorf("Call = %q, %v", got, err)
	}
}

// TestHeadersOfParameters checks that a call repeats arguments in headers if the tool's schema asks for it. The server
// refuses calls without these headers, and with other values in them. Older versions of the protocol have no such
// headers.
func TestHeadersOfParameters(t *testing.T) {
	const schema = `{"type":"object","properties":{
		"region":{"type":"string","x-mcp-header":"Region"},"count":{"type":"integer","x-mcp-header":"Count"},
		"dry":{"type":"boolean","x-mcp-header":"Dry-Run"},"plain":{"type":"string"},
		"where":{"type":"object","properties":{"zone":{"type":"string","x-mcp-header":"zone"}}}}}`
	for name, tc := range map[string]struct {
		arguments string
		want      map[string]string
	}{
		"none": {`{"plain":"x"}`, nil},
		"null": {`{"region":null,"where":null}`, nil},
		"values": {
			`{"region":"eu west","count":-3,"dry":true}`, map[string]string{"Region": "eu west", "Count": "-3", "Dry-Run": "true"},
		},
		"forms of integers": {`{"count":1.2e3}`, map[string]string{"Count": "1200"}},
		"large integer":     {`{"count":9007199254740991}`, map[string]string{"Count": "9007199254740991"}},
		"nested":            {`{"where":{"zone":"b"}}`, map[string]string{"Zone": "b"}},
		"not ASCII":         {`{"region":"Zürich"}`, map[string]string{"Region": "=?base64?WsO8cmljaA==?="}},
		"line break":        {`{"region":"a\r\nX-Evil: b"}`, map[string]string{"Region": "=?base64?YQ0KWC1FdmlsOiBi?="}},
		"white space":       {`{"region":" a"}`, map[string]string{"Region": "=?base64?IGE=?="}},
		"like base64":       {`{"region":"=?base64?YQ==?="}`, map[string]string{"Region": "=?base64?PT9iYXNlNjQ/WVE9PT89?="}},
		"empty":             {`{"region":""}`, map[string]string{"Region": "=?base64??="}},
	} {
		for _, newer := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, newer %t", name, newer), func(t *testing.T) {
				s := serve(t, &sdk.StreamableHTTPOptions{Stateless: true}, func(s *sdk.Server) {
					s.AddTool(&sdk.Tool{Name: "a", InputSchema: json.RawMessage(schema)},
						func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) { return text("1"), nil })
				}, says("b", "2"))
				s.tamper(func(w http.ResponseWriter, r *http.Request, m message) bool {
					if m.Method != "initialize" || !newer {
						return false
					}
					answer(404, jsonType, `{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"unknown method"}}`)(w, r)
					return true
				})
				if got, err := call(patient(t), client(t, s.URL), "a", tc.arguments); err != nil || got != "1" {
					t.Errorf("Call = %q, %v; want its result", got, err)
				}
				got := map[string]string{}
				for _, r := range s.requests() {
					for header, values := range r.Header {
						if param, ok := strings.CutPrefix(header, "Mcp-Param-"); ok {
							got[param] = strings.Join(values, ", ")
						}
					}
				}
				want := tc.want
				if !newer {
					want = nil
				}
				if !maps.Equal(got, want) {
					t.Errorf("the headers are %q, want %q", got, want)
				}
			})
		}
	}
}

func TestRequestsOfServersAreRefused(t *testing.T) {
	asked := make(chan error, 4)
	s := serve(t, nil, plain("ask", func(ctx context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		_, err := r.Session.CreateMessage(ctx, &sdk.CreateMessageParams{MaxTokens: 1}) //nolint:staticcheck // because servers still ask
		asked <- err
		_, err = r.Session.ListRoots(ctx, nil) //nolint:staticcheck // because servers still ask
		asked <- err
		_, err = r.Session.Elicit(ctx, &sdk.ElicitParams{Message: "your password?"})
		asked <- err
		asked <- r.Session.Ping(ctx, nil)
		return text("asked"), nil
	}))
	got, err := call(patient(t), client(t, s.URL), "ask", `{}`)
	if err != nil || got != "asked" {
		t.Fatalf("Call = %q, %v; want success: the refused requests must not fail the call", got, err)
	}
	for _, what := range []string{"a model", "the roots", "a person"} {
		if err := <-asked; err == nil {
			t.Errorf("the server asked for %s and was not refused", what)
		}
	}
	if err := <-asked; err != nil {
		t.Errorf("the server sent a ping and got the error %v", err)
	}
}

func TestSchemaHash(t *testing.T) {
	const want = "c9e4b788f26317e4"
	for _, schema := range []string{`{"type":"object","a":1}`, `{"a": 1, "type": "object"}`, "{\n\"a\":1,\"type\":\"object\"}\n"} {
		if got := mcp.SchemaHash(json.RawMessage(schema)); got != want {
			t.Errorf("SchemaHash(%s) = %s, want %s for any order and white space", schema, got, want)
		}
	}
	if mcp.SchemaHash(json.RawMessage(`{"type":"object","a":2}`)) == want {
		t.Error("another schema has the same hash")
	}
}
