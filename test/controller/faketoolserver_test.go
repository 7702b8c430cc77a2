package controller_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http/httputil"
	"net/url"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// The annotations with which tools claim their effects. Only a declaration in the ToolServer grants an effect: the
// function reading adds one.
var (
	readOnly    = &mcp.ToolAnnotations{ReadOnlyHint: true}
	destructive = &mcp.ToolAnnotations{DestructiveHint: new(true)}
)

// fakeToolServer is a tool server whose tools run functions of a test.
type fakeToolServer struct {
	*toolHost
	// over is closed at the end of the spec.
	over chan struct{}
}

func newFakeToolServer() *fakeToolServer {
	c := &fakeToolServer{toolHost: newToolHost(), over: make(chan struct{})}
	DeferCleanup(func() { close(c.over) }) // before the server is stopped, because the stop waits for its calls
	return c
}

// hang holds a call until it is cancelled or the spec ends. A client that goes away does not cancel its call.
func (c *fakeToolServer) hang(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-c.over:
	}
}

// offer adds a tool to the server. The tool accepts any arguments.
func (c *fakeToolServer) offer(name string, hints *mcp.ToolAnnotations, do func(ctx context.Context, arguments string) string) {
	c.AddTool(&mcp.Tool{
		Name: name, Description: "It is " + name + ".", InputSchema: json.RawMessage(`{"type":"object"}`), Annotations: hints,
	}, func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: do(ctx, string(r.Params.Arguments))}}}, nil
	})
}

// answering returns a tool function that always returns the same text.
func answering(text string) func(context.Context, string) string {
	return func(context.Context, string) string { return text }
}

func declaring(tools ...v1alpha1.ToolDeclaration) func(*v1alpha1.ToolServer) {
	return func(o *v1alpha1.ToolServer) { o.Spec.Tools = tools }
}

// reading declares that tools only read.
func reading(names ...string) func(*v1alpha1.ToolServer) {
	return func(o *v1alpha1.ToolServer) {
		for _, name := range names {
			o.Spec.Tools = append(o.Spec.Tools, v1alpha1.ToolDeclaration{Name: name, Effect: v1alpha1.ToolEffectReadOnly})
		}
	}
}

// equip creates an Agent with all tools of the server "desk", and waits until the Agent has these tools.
func (s *testEnv) equip(ctx context.Context, url, names string, change ...func(*v1alpha1.ToolServer)) {
	GinkgoHelper()
	s.create(ctx, s.basics(withTools("desk"))...)
	s.create(ctx, newToolServer("desk", url, change...))
	awaitText(ctx, s, &v1alpha1.Agent{}, agent, offered, HaveSuffix("["+names+"]"))
}

// offers returns the names of the tools in each model request that contains a text, one line per request.
func (s *testEnv) offers(about string) []string {
	GinkgoHelper()
	var all []string
	for _, r := range s.fake.Requests() {
		var body struct {
			Tools []struct {
				Function struct {
					Name string `json:"name"`
				} `json:"function"`
			} `json:"tools"`
		}
		Expect(json.Unmarshal(r.Body, &body)).To(Succeed())
		var names []string
		for _, t := range body.Tools {
			names = append(names, t.Function.Name)
		}
		if strings.Contains(string(r.Body), about) {
			all = append(all, strings.Join(names, " "))
		}
	}
	return all
}

// outcomes returns "name outcome" for each call of a Turn.
func outcomes(t *v1alpha1.Turn) []string {
	var all []string
	for _, c := range t.Status.ToolCalls {
		all = append(all, c.Name+" "+string(c.Outcome))
	}
	return all
}

// calling returns the rules of a model that calls a tool once for a message that begins with "call", and then answers.
func calling(tool string) string {
	return fmt.Sprintf(`
rules:
- when: {matches: "^call", toolMessages: 0}
  reply: {toolCalls: [{name: %s}]}
- when: {matches: "^call"}
  reply: {text: "Done."}
`, tool)
}

// newCuttableToolProxy returns a proxy to a tool server, and the address of the proxy. The connections of the proxy can
// be cut.
func newCuttableToolProxy(to string) (proxy *cuttableProxy, address string) {
	GinkgoHelper()
	target, err := url.Parse(to)
	Expect(err).NotTo(HaveOccurred())
	proxy = serveCuttable(&httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(&url.URL{Scheme: target.Scheme, Host: target.Host})
	}})
	return proxy, proxy.web.URL + target.Path
}
