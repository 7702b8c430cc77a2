package mcp_test

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/capstan-dev/capstan/internal/mcp"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// kinds holds the options of servers with and without sessions, and with and without streams of events.
var kinds = map[string]*sdk.StreamableHTTPOptions{
	"sessions, events": nil,
	"sessions, JSON":   {JSONResponse: true},
	"stateless":        {Stateless: true},
	"stateless, JSON":  {Stateless: true, JSONResponse: true},
}

func TestCall(t *testing.T) {
	for name, options := range kinds {
		t.Run(name, func(t *testing.T) {
			s := serve(t, options, func(s *sdk.Server) {
				type in struct {
					A int `json:"a"`
					B int `json:"b"`
				}
				type out struct {
					Sum int `json:"sum"`
				}
				sdk.AddTool(s, &sdk.Tool{Name: "sum", Description: "Adds."},
					func(_ context.Context, _ *sdk.CallToolRequest, i in) (*sdk.CallToolResult, out, error) {
						return nil, out{i.A + i.B}, nil
					})
			})
			metas := make(chan map[string]any, 1)
			s.tamper(func(_ http.ResponseWriter, _ *http.Request, m message) bool {
				if m.Method == "tools/call" {
					metas <- m.Params.Meta
				}
				return false
			})
			c := client(t, s.URL, func(cfg *mcp.Config) { cfg.Headers = []mcp.Header{{Name: "X-Team", Value: "blue"}} })
			got, err := call(patient(t), c, "sum", `{"a": 40, "b": 2}`)
			if err != nil || got != `{"sum":42}` {
				t.Errorf("Call = %q, %v", got, err)
			}
			if diff := cmp.Diff(map[string]any{"capstan.dev/idempotencyKey": "turn-1/2/c3"}, <-metas); diff != "" {
				t.Errorf("_meta of the call: -want +got:\n%s", diff)
			}
			for _, r := range s.requests() {
				if r.Header.Get("Authorization") != "Bearer "+token || r.Header.Get("X-Team") != "blue" {
					t.Errorf("%s %s has the headers %v, want the token and the configured header", r.Method, r.URL, r.Header)
				}
			}
		})
	}
}

func TestConcurrentCallsShareOneConnection(t *testing.T) {
	for name, options := range kinds {
		t.Run(name, func(t *testing.T) {
			const calls = 50
			var arrived sync.WaitGroup
			arrived.Add(calls)
			s := serve(t, options, plain("meet", func(_ context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
				arrived.Done()
				arrived.Wait() // no call is answered before all have arrived
				return text(string(r.Params.Arguments)), nil
			}))
			c := client(t, s.URL)
			var all sync.WaitGroup
			for i := range calls {
				all.Go(func() {
					want := fmt.Sprintf(`{"n":%d}`, i)
					if got, err := call(patient(t), c, "meet", want); err != nil || got != want {
						t.Errorf("call %d = %q, %v; want its arguments", i, got, err)
					}
				})
			}
			all.Wait()
			sessions := 0
			for _, r := range s.requests() {
				if r.Method == http.MethodPost && r.Header.Get("Mcp-Protocol-Version") == "" {
					sessions++
				}
			}
			if sessions != 1 {
				t.Errorf("%d sessions were begun, want one for all calls", sessions)
			}
		})
	}
}

func TestSlowCallEndsWithContext(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		cancel bool
		want   tool.Class
	}{
		"deadline": {"the loop may repeat a repeatable call", false, tool.Timeout},
		"cancel":   {"the call had begun", true, tool.OutcomeUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			begun, cancelled := make(chan struct{}), make(chan struct{})
			s := serve(t, nil, plain("wait", func(ctx context.Context, _ *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
				close(begun)
				<-ctx.Done()
				close(cancelled)
				return nil, ctx.Err()
			}))
			c := client(t, s.URL)
			if _, err := c.Discover(patient(t)); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(patient(t), 3*time.Second) // enough for the call on a busy machine
			if tc.cancel {
				ctx, cancel = context.WithCancel(patient(t))
				go func() { <-begun; cancel() }()
			}
			defer cancel()
			_, err := call(ctx, c, "wait", `{}`)
			if e := tool.AsError(err); e.Class != tc.want {
				t.Errorf("Call = %s %q, want %s: %s", e.Class, e.Error(), tc.want, tc.reason)
			}
			select {
			case <-cancelled:
			case <-time.After(patience):
				t.Error("the server did not learn that the call was cancelled")
			}
		})
	}
}

func TestCloseEndsCalls(t *testing.T) {
	begun := make(chan struct{})
	release := make(chan struct{})
	defer close(release)
	s := serve(t, nil, plain("wait", func(ctx context.Context, _ *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		close(begun)
		select {
		case <-release:
		case <-ctx.Done():
		}
		return text(""), nil
	}))
	c := client(t, s.URL)
	failed := make(chan error, 1)
	go func() {
		_, err := call(context.Background(), c, "wait", `{}`)
		failed <- err
	}()
	<-begun
	c.Close()
	if e := tool.AsError(<-failed); e.Class != tool.OutcomeUnknown {
		t.Errorf("the call ended with %s %q, want OutcomeUnknown: it was in progress", e.Class, e.Error())
	}
	if e := failure(t, c, "wait"); e.Class != tool.Unavailable {
		t.Errorf("a later call ended with %s %q, want Unavailable: it was not made", e.Class, e.Error())
	}
}

func TestRetireWaitsForCalls(t *testing.T) {
	begun, release := make(chan struct{}), make(chan struct{})
	s := serve(t, nil, plain("wait", func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		close(begun)
		<-release
		return text("done"), nil
	}))
	c := client(t, s.URL)
	got := make(chan string, 1)
	go func() {
		result, err := call(context.Background(), c, "wait", `{}`)
		got <- fmt.Sprint(result, err)
	}()
	<-begun
	c.Retire()
	close(release)
	if g := <-got; g != "done<nil>" {
		t.Errorf("the call that was in progress gave %s, want its result", g)
	}
	eventually(t, "the client to end after its last call", c.Ended)
}

func TestIdleConnectionIsClosedAndReopened(t *testing.T) {
	s := serve(t, nil, says("hello", "hi"))
	c := client(t, s.URL, func(cfg *mcp.Config) { cfg.Idle = 50 * time.Millisecond })
	for range 2 {
		if got, err := call(patient(t), c, "hello", `{}`); err != nil || got != "hi" {
			t.Fatalf("Call = %q, %v", got, err)
		}
		eventually(t, "the session to end on the server", func() bool {
			for range s.Sessions() {
				return false
			}
			return true
		})
	}
}
