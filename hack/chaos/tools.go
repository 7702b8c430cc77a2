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
	// sessionTimeout ends the sessions of managers that were killed.
	sessionTimeout = time.Minute
	// maxLook bounds what toolLook gives, in characters.
	maxLook = 20_000
)

// toolServer is the server of the test's tools, by the Model Context Protocol. It counts each call by its key when it arrives,
// and answers after a while.
type toolServer struct {
	http.Handler

	mu sync.Mutex
	// slowest is the longest that an answer takes.
	slowest time.Duration
	called  map[string]called
	// done counts the side effects, whatever IDs the model gave the calls.
	done map[effect]int
}

// effect is a side-effecting call of a Turn's plan.
type effect struct {
	// Turn is the UID.
	Turn, Tool  string
	Step, Place int
}

// callArguments are those of all tools.
type callArguments struct {
	Step  int `json:"step"`
	Place int `json:"place"`
	Chars int `json:"chars,omitempty"`
}

func newToolServer(slowest time.Duration) *toolServer {
	s := &toolServer{slowest: slowest, called: map[string]called{}, done: map[effect]int{}}
	server := sdk.NewServer(&sdk.Implementation{Name: "chaos", Version: "1.0.0"}, nil)
	s.add(server, toolCount, "Counts once more. Each call changes the count.", &sdk.ToolAnnotations{DestructiveHint: new(true)})
	s.add(server, toolWipe, "Sets the count to nothing.", &sdk.ToolAnnotations{DestructiveHint: new(true)})
	s.add(server, toolLook, "Says what the count is.", &sdk.ToolAnnotations{ReadOnlyHint: true})
	s.Handler = sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server },
		&sdk.StreamableHTTPOptions{SessionTimeout: sessionTimeout})
	return s
}

// declarations are what the ToolServer says of the effects of the tools.
func declarations() []v1alpha1.ToolDeclaration {
	return []v1alpha1.ToolDeclaration{
		{Name: toolCount, Effect: v1alpha1.ToolEffectDestructive},
		{Name: toolWipe, Effect: v1alpha1.ToolEffectDestructive},
		{Name: toolLook, Effect: v1alpha1.ToolEffectReadOnly},
	}
}

// add adds a tool.
func (s *toolServer) add(server *sdk.Server, name, description string, hints *sdk.ToolAnnotations) {
	tool := &sdk.Tool{Name: name, Description: description, Annotations: hints}
	sdk.AddTool(server, tool, func(ctx context.Context, r *sdk.CallToolRequest, a callArguments) (*sdk.CallToolResult, any, error) {
		key, _ := r.Params.Meta[mcp.IdempotencyKey].(string)
		n, wait := s.count(key, name, a)
		if !pause(ctx, wait) {
			return nil, nil, context.Cause(ctx) // who has gone away needs no answer
		}
		text := fmt.Sprintf(`{"count": %d}`, n) + strings.Repeat(" All is well.", min(max(0, a.Chars), maxLook)/len(" All is well."))
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: text}}}, nil, nil
	})
}

// count counts a call, and says how many there were and how long it takes. One without a key is counted, too: no journal has it.
func (s *toolServer) count(key, tool string, a callArguments) (calls int, takes time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if turn, _, _ := strings.Cut(key, "/"); tool != toolLook {
		s.done[effect{turn, tool, a.Step, a.Place}]++
	}
	c := s.called[key]
	s.called[key] = called{Tool: tool, Times: c.Times + 1}
	if s.slowest > 0 {
		takes = rand.N(s.slowest) //nolint:gosec // because it is to be random, not secret
	}
	return len(s.called), takes
}

// calls are those since the last reset.
func (s *toolServer) calls() map[string]called {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.called)
}

// effects are the side effects since the last reset.
func (s *toolServer) effects() map[effect]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.done)
}

// made is how many different side effects there were since the last reset.
func (s *toolServer) made() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.done)
}

// reset forgets all calls.
func (s *toolServer) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.called, s.done = map[string]called{}, map[effect]int{}
}

// pause lets time pass, and says whether ctx lives.
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
