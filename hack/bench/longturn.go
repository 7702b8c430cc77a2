package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/test/fakemodel/server"
)

const (
	// callsPerStep is the number of calls in each reply of the long Turn's model.
	callsPerStep = 2
	// pageChars is the length of a tool's result. 100 results are about 200,000 tokens of 4 characters.
	pageChars = 7_800
	// pageTool is the tool of the long Turn.
	pageTool = "read_page"
	// resumePatience is the maximum time from the kill to the next model request.
	resumePatience = 5 * time.Minute
)

// longServers are the model and the tool server of one long Turn. They count all requests and calls. The model does not
// answer the first request that has the results of killAt calls: the request stays open until the manager is killed.
type longServers struct {
	model         *server.Server
	calls, killAt int

	mu       sync.Mutex
	requests map[int]int    // model requests by the number of results that they have
	pages    map[string]int // calls by their arguments
	before   int64          // the input tokens of all requests except the last one
	delayed  chan struct{}  // closed when the request with the results of killAt calls has arrived
	resumed  chan time.Time // receives the time at which the next manager sends this request again
}

func newLongServers(calls int) (*longServers, error) {
	page := func(half string) server.ToolCall {
		return server.ToolCall{Name: pageTool, Arguments: new(fmt.Sprintf(`{"page": "{{ .ToolMessages }}-%s"}`, half))}
	}
	model, err := server.New(server.Config{Rules: []server.Rule{
		{When: server.When{ToolMessages: new(calls)}, Reply: server.Reply{Text: new("All pages are read.")}},
		{Reply: server.Reply{ToolCalls: []server.ToolCall{page("a"), page("b")}}},
	}}, server.WithKeptRequests(0))
	if err != nil {
		return nil, fmt.Errorf("failed to set up the fake model: %w", err)
	}
	killAt := calls * 9 / 10
	return &longServers{
		model: model, calls: calls, killAt: killAt - killAt%callsPerStep, requests: map[int]int{}, pages: map[string]int{},
		delayed: make(chan struct{}), resumed: make(chan time.Time, 1),
	}, nil
}

// ServeHTTP answers model requests.
func (s *longServers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client has disconnected
	}
	if r.Method == http.MethodPost && s.countAndDelay(bytes.Count(body, toolMessage)) {
		<-r.Context().Done() // until the manager is killed
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	s.model.ServeHTTP(w, r)
}

// countAndDelay counts a model request by the number of results that it has, and reports whether it must stay open.
func (s *longServers) countAndDelay(results int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests[results]++
	switch {
	case results == s.killAt && s.requests[results] == 1:
		close(s.delayed)
		return true
	case results == s.killAt && s.requests[results] == 2:
		s.resumed <- time.Now()
	case results == s.calls:
		s.before = s.model.Stats().PromptTokens
	}
	return false
}

// tools returns the handler of the tool server.
func (s *longServers) tools() http.Handler {
	type arguments struct {
		Page string `json:"page"`
	}
	tools := mcp.NewServer(&mcp.Implementation{Name: "pages", Version: "1.0.0"}, nil)
	mcp.AddTool(tools, &mcp.Tool{Name: pageTool, Description: "Returns a page of the handbook."},
		func(_ context.Context, _ *mcp.CallToolRequest, a arguments) (*mcp.CallToolResult, any, error) {
			s.mu.Lock()
			s.pages[a.Page]++
			s.mu.Unlock()
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: pageOf(a.Page)}}}, nil, nil
		})
	return mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return tools }, nil)
}

// pageOf returns the text of a page. No two pages have the same text.
func pageOf(page string) string {
	var text strings.Builder
	for n := 0; text.Len() < pageChars; n++ {
		fmt.Fprintf(&text, "Part %d of page %s has the number %s.\n", n, page, hashOf(page, n)[:12])
	}
	return text.String()[:pageChars]
}

// compareLong measures the long Turn twice: on a manager without limits, and on the small manager.
func (b *bench) compareLong(ctx context.Context, small member) (*LongReport, error) {
	r := &LongReport{Calls: b.scale.calls}
	for _, c := range []struct {
		name    string
		manager member
		to      *LongCost
	}{{"long", managerMember(b.manager, "manager", "bench"), &r.Unlimited}, {"long-small", small, &r.Limited}} {
		var err error
		if *c.to, err = b.measureLong(ctx, c.name, c.manager); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// measureLong runs one long Turn, kills its manager when most calls have been made, and measures how fast the next
// manager continues.
func (b *bench) measureLong(ctx context.Context, name string, m member) (c LongCost, err error) {
	s, err := newLongServers(b.scale.calls)
	if err != nil {
		return c, err
	}
	modelURL, err := b.harness.Serve(ctx, s)
	if err != nil {
		return c, err
	}
	toolsURL, err := b.harness.Serve(ctx, s.tools())
	if err != nil {
		return c, err
	}
	if err := b.createAll(ctx, longObjects(name, modelURL+"/v1", toolsURL)); err != nil {
		return c, err
	}
	dir := filepath.Join(b.dir, "scale", name)
	k, _, err := b.keepMember(ctx, m, dir, filepath.Join(dir, "data"))
	if err != nil {
		return c, err
	}
	c, err = b.runLong(ctx, name, s, k)
	k.close()
	if err != nil {
		return c, err
	}
	if c.Journal, err = journalUse(ctx, filepath.Join(dir, "data")); err != nil {
		return c, err
	}
	return c, cleanNamespace(ctx, b.api, name)
}

// runLong runs the Turn in the namespace of this name.
func (b *bench) runLong(ctx context.Context, name string, s *longServers, k *keeper) (c LongCost, err error) {
	b.logf("scale: %s: a Turn of %d calls, whose manager is killed after %d", name, s.calls, s.killAt)
	if err := b.waitForAgents(ctx, 1); err != nil {
		return c, err
	}
	var result *burstResult
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.killAndMeasure(ctx, k, &c) })
	group.Go(func() (err error) {
		result, err = b.burstOf(ctx, 1, func(int) *v1alpha1.Turn {
			turn := newTurn(name, 0)
			turn.Namespace, turn.Spec.AgentRef.Name = name, name
			return turn
		})
		return err
	})
	if err := group.Wait(); err != nil {
		return c, err
	}
	var peak peaks
	c.Restarts, peak = k.counts()
	c.PeakMiB, c.FailedTurns, c.ToolCalls = mebibytes(peak.resident), result.failed, result.toolCalls
	s.count(&c)
	return c, nil
}

// killAndMeasure waits for the request with the results of killAt calls, and kills the manager. It measures the time
// from the start of the next manager's process until that manager sends the request again.
func (s *longServers) killAndMeasure(ctx context.Context, k *keeper, c *LongCost) error {
	select {
	case <-s.delayed:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if err := k.kill(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, resumePatience, fmt.Errorf("no model request within %s of the kill", resumePatience))
	defer cancel()
	select {
	case at := <-s.resumed:
		c.ResumeSeconds = at.Sub(k.lastStart()).Seconds()
		return nil
	case <-ctx.Done():
		return fmt.Errorf("gave up waiting until the Turn continues: %w", context.Cause(ctx))
	}
}

// count fills in the counts of requests, calls and tokens.
func (s *longServers) count(c *LongCost) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.requests {
		c.ModelRequests += n
	}
	for _, n := range s.pages {
		c.RepeatedCalls += n - 1
	}
	c.InputTokens = s.model.Stats().PromptTokens
	c.LastTokens = c.InputTokens - s.before
}

// longObjects returns all objects that the long Turn needs, in a namespace of this name.
func longObjects(name, modelURL, toolsURL string) []client.Object {
	own := metav1.ObjectMeta{Name: name, Namespace: name}
	reference := v1alpha1.SharedReference{Name: name}
	return []client.Object{
		newNamespace(name), newProfile(name),
		&v1alpha1.ModelProvider{ObjectMeta: own, Spec: v1alpha1.ModelProviderSpec{Type: v1alpha1.ProviderTypeOpenAI, BaseURL: modelURL}},
		&v1alpha1.ToolServer{ObjectMeta: own, Spec: v1alpha1.ToolServerSpec{
			Type: v1alpha1.ToolServerTypeMCP, MCP: &v1alpha1.MCPEndpoint{URL: toolsURL},
		}},
		&v1alpha1.Agent{ObjectMeta: own, Spec: v1alpha1.AgentSpec{
			PromptProfileRef: reference,
			Models:           []v1alpha1.ModelReference{{ProviderRef: reference, Model: modelName}},
			Tools:            []v1alpha1.AgentTool{{ServerRef: &reference}},
			Limits: &v1alpha1.Limits{
				TimeoutSeconds: new(int32(3600)), MaxSteps: new(int32(100)), MaxToolCalls: new(int32(1000)),
				MaxTokens: new(int64(1_000_000_000)),
			},
		}},
	}
}
