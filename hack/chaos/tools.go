package main

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/mcp"
)

const (
	// sessionTimeout is the time after which the server ends the MCP session of a manager that was killed.
	sessionTimeout = time.Minute
	// maxLook is the maximum length of a toolLook result, in characters.
	maxLook = 20_000
)

// toolServer is the MCP server with the test's tools. It counts each call by its key when the call arrives, and
// answers after a delay.
type toolServer struct {
	http.Handler

	mu sync.Mutex
	// slowest is the maximum delay of an answer.
	slowest time.Duration
	called  map[string]called
	// done counts the side effects. It does not depend on the call IDs of the model.
	done map[effect]int
}

// effect is a side-effecting call in the plan of a Turn.
type effect struct {
	// Turn is the UID of the Turn.
	Turn, Tool  string
	Step, Place int
}

// callArguments are the arguments of all tools.
type callArguments struct {
	Step  int `json:"step"`
	Place int `json:"place"`
	Chars int `json:"chars,omitempty"`
}

func newToolServer(slowest time.Duration) *toolServer {
	s := &toolServer{slowest: slowest, called: map[string]called{}, done: map[effect]int{}}
	server := sdk.NewServer(&sdk.Implementation{Name: "chaos", Version: "1.0.0"}, nil)
	s.addTool(server, toolCount, "Counts once more. Each call changes the count.", &sdk.ToolAnnotations{DestructiveHint: new(true)})
	s.addTool(server, toolWipe, "Sets the count to nothing.", &sdk.ToolAnnotations{DestructiveHint: new(true)})
	s.addTool(server, toolLook, "Says what the count is.", &sdk.ToolAnnotations{ReadOnlyHint: true})
	s.Handler = sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server },
		&sdk.StreamableHTTPOptions{SessionTimeout: sessionTimeout})
	return s
}

// declarations returns the effects that the ToolServer declares for the tools.
func declarations() []v1alpha1.ToolDeclaration {
	return []v1alpha1.ToolDeclaration{
		{Name: toolCount, Effect: v1alpha1.ToolEffectDestructive},
		{Name: toolWipe, Effect: v1alpha1.ToolEffectDestructive},
		{Name: toolLook, Effect: v1alpha1.ToolEffectReadOnly},
	}
}

func (s *toolServer) addTool(server *sdk.Server, name, description string, hints *sdk.ToolAnnotations) {
	tool := &sdk.Tool{Name: name, Description: description, Annotations: hints}
	sdk.AddTool(server, tool, func(ctx context.Context, r *sdk.CallToolRequest, a callArguments) (*sdk.CallToolResult, any, error) {
		key, _ := r.Params.Meta[mcp.IdempotencyKey].(string)
		n, wait := s.count(key, name, a)
		if !pause(ctx, wait) {
			return nil, nil, context.Cause(ctx) // the caller has disconnected and needs no answer
		}
		text := fmt.Sprintf(`{"count": %d}`, n) + strings.Repeat(" All is well.", min(max(0, a.Chars), maxLook)/len(" All is well."))
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: text}}}, nil, nil
	})
}

// count counts a call and returns the number of different calls and the delay of the answer. It also counts a call
// without a key, which no journal has.
func (s *toolServer) count(key, tool string, a callArguments) (calls int, takes time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if turn, _, _ := strings.Cut(key, "/"); tool != toolLook {
		s.done[effect{turn, tool, a.Step, a.Place}]++
	}
	c := s.called[key]
	s.called[key] = called{Tool: tool, Times: c.Times + 1}
	if s.slowest > 0 {
		takes = rand.N(s.slowest) //nolint:gosec // because it must be random, not secret
	}
	return len(s.called), takes
}

// calls returns the calls since the last reset.
func (s *toolServer) calls() map[string]called {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.called)
}

// effects returns the side effects since the last reset.
func (s *toolServer) effects() map[effect]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.done)
}

// effectCount returns the number of different side effects since the last reset.
func (s *toolServer) effectCount() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.done)
}

// reset removes all recorded calls.
func (s *toolServer) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.called, s.done = map[string]called{}, map[effect]int{}
}

// pause waits for the duration d and reports whether ctx is still active.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

func (s *toolServer) setSlowest(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.slowest = d
}
