package controller_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/manager"
)

// toolHost is an MCP server of the SDK that serves over HTTP.
type toolHost struct {
	*mcp.Server
	url string
	// token is the required token, or nil if none is required. While broken is true, every request fails.
	token  atomic.Pointer[string]
	broken atomic.Bool
	// held is closed to release the waiting requests. If it is nil, requests do not wait.
	held atomic.Pointer[chan struct{}]
}

// newToolHost starts a server with these tools. The end of the spec stops it.
func newToolHost(tools ...string) *toolHost {
	h := &toolHost{Server: mcp.NewServer(&mcp.Implementation{Name: "tickets", Version: "1.2.3"}, nil)}
	for _, name := range tools {
		h.add(name)
	}
	handler := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return h.Server }, nil)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if gate := h.held.Load(); gate != nil {
			select {
			case <-*gate:
			case <-r.Context().Done():
				return
			}
		}
		switch token := h.token.Load(); {
		case h.broken.Load():
			http.Error(w, "out of order", http.StatusServiceUnavailable)
		case token != nil && r.Header.Get("Authorization") != "Bearer "+*token:
			http.Error(w, "who are you?", http.StatusUnauthorized)
		default:
			handler.ServeHTTP(w, r)
		}
	}))
	h.url = web.URL + "/mcp"
	DeferCleanup(func() {
		for session := range h.Sessions() {
			_ = session.Close() // the spec is over
		}
		web.CloseClientConnections()
		web.Close()
	})
	return h
}

// hold makes all requests wait until release is called or the spec ends.
func (h *toolHost) hold() (release func()) {
	gate := make(chan struct{})
	h.held.Store(&gate)
	release = sync.OnceFunc(func() { close(gate) })
	DeferCleanup(release)
	return release
}

// patiently gives a server the maximum time to answer.
func patiently(s *v1alpha1.ToolServer) { s.Spec.ConnectTimeoutSeconds = 60 }

func (h *toolHost) add(name string) { h.addWith(name, `{"type":"object"}`) }

func (h *toolHost) addWith(name, schema string) {
	h.AddTool(&mcp.Tool{
		Name: name, Description: "It is " + name + ".", InputSchema: json.RawMessage(schema),
		Annotations: &mcp.ToolAnnotations{ReadOnlyHint: strings.HasPrefix(name, "look")},
	}, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return &mcp.CallToolResult{}, nil
	})
}

func newToolServer(name, url string, change ...func(*v1alpha1.ToolServer)) *v1alpha1.ToolServer {
	return build(&v1alpha1.ToolServer{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1alpha1.ToolServerSpec{Type: v1alpha1.ToolServerTypeMCP, MCP: &v1alpha1.MCPEndpoint{URL: url}},
	}, change)
}

// withTools gives an Agent all tools of these servers.
func withTools(servers ...string) func(*v1alpha1.Agent) {
	return func(a *v1alpha1.Agent) {
		for _, name := range servers {
			a.Spec.Tools = append(a.Spec.Tools, v1alpha1.AgentTool{ServerRef: &v1alpha1.SharedReference{Name: name}})
		}
	}
}

func withSubAgents(agents ...string) func(*v1alpha1.Agent) {
	return func(a *v1alpha1.Agent) {
		for _, name := range agents {
			a.Spec.Tools = append(a.Spec.Tools, v1alpha1.AgentTool{AgentRef: &v1alpha1.SharedReference{Name: name}})
		}
	}
}

func serverReadiness(s *v1alpha1.ToolServer) string { return readiness(s.Status.Conditions) }

// toolsOf returns "name effect" for each tool of a server.
func toolsOf(s *v1alpha1.ToolServer) string {
	var all []string
	for _, t := range s.Status.Tools {
		all = append(all, t.Name+" "+string(t.Effect))
	}
	return strings.Join(all, ", ")
}

// offered returns "reason: message" of an Agent's tools, and their names.
func offered(a *v1alpha1.Agent) string {
	var names []string
	for _, t := range a.Status.Tools {
		names = append(names, t.Name)
	}
	for _, c := range a.Status.Conditions {
		if c.Type == v1alpha1.ConditionToolsResolved {
			return fmt.Sprintf("%s: %s [%s]", c.Reason, c.Message, strings.Join(names, " "))
		}
	}
	return ""
}

// rareProbes makes a manager probe working endpoints only once a day.
func rareProbes(o *manager.Options) { o.ProbeIntervalSeconds = 86400 }

var _ = Describe("A ToolServer", func() {
	It("lists its tools, and reports their changes immediately", func(ctx SpecContext) {
		s, host := newTestEnv(ctx, ``), newToolHost("search_tickets", "close_ticket")
		s.run(rareProbes)
		s.create(ctx, newToolServer("tickets", host.url, func(o *v1alpha1.ToolServer) {
			o.Spec.Tools = []v1alpha1.ToolDeclaration{
				{Name: "close_ticket", Effect: v1alpha1.ToolEffectIdempotent},
				{Name: "search_tickets", Effect: v1alpha1.ToolEffectReadOnly},
			}
		}))
		awaitText(ctx, s, &v1alpha1.ToolServer{}, "tickets", serverReadiness, Equal("Ready: the server answers"))
		awaitText(ctx, s, &v1alpha1.ToolServer{}, "tickets", toolsOf, Equal("close_ticket Idempotent, search_tickets ReadOnly"))
		var stored v1alpha1.ToolServer
		Expect(apiClient.Get(ctx, s.key("tickets"), &stored)).To(Succeed())
		Expect(stored.Status.ServerName + " " + stored.Status.ServerVersion).To(Equal("tickets 1.2.3"))

		host.add("look_up")
		awaitText(ctx, s, &v1alpha1.ToolServer{}, "tickets", toolsOf,
			Equal("close_ticket Idempotent, look_up Destructive, search_tickets ReadOnly"))
		awaitText(ctx, s, &v1alpha1.ToolServer{}, "tickets", serverReadiness,
			ContainSubstring(`add {name: "look_up", effect: ReadOnly} to spec.tools`))
		change(ctx, s, "tickets", &v1alpha1.ToolServer{}, func(o *v1alpha1.ToolServer) { o.Spec.Tools = nil })
		awaitText(ctx, s, &v1alpha1.ToolServer{}, "tickets", toolsOf,
			Equal("close_ticket Destructive, look_up Destructive, search_tickets Destructive"))
	}, SpecTimeout(2*patience))

	It("that refuses the manager reports the reason, and recovers when it accepts the manager", func(ctx SpecContext) {
		s, host := newTestEnv(ctx, ``), newToolHost("search_tickets")
		host.token.Store(new("right-token"))
		m := s.run()
		s.create(ctx, newToolServer("tickets", host.url, func(o *v1alpha1.ToolServer) {
			o.Spec.CredentialsRef = &v1alpha1.SecretKeyReference{Name: "tickets", Key: "token"}
		}))
		awaitText(ctx, s, &v1alpha1.ToolServer{}, "tickets", serverReadiness, HavePrefix(`SecretNotFound: Secret "tickets" does not exist`))
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "tickets"}, StringData: map[string]string{"token": "wrong-token"}}
		s.create(ctx, secret)
		awaitText(ctx, s, &v1alpha1.ToolServer{}, "tickets", serverReadiness,
			And(HavePrefix("CredentialsRejected: "), ContainSubstring(`key "token" of Secret "tickets"`)))
		change(ctx, s, "tickets", &corev1.Secret{}, func(o *corev1.Secret) { o.StringData = map[string]string{"token": "right-token"} })
		awaitText(ctx, s, &v1alpha1.ToolServer{}, "tickets", serverReadiness, HavePrefix("Ready: "))
		Expect(m.logs.String()).NotTo(Or(ContainSubstring("right-token"), ContainSubstring("wrong-token")))
	}, SpecTimeout(2*patience))

	It("at an address that is not allowed gets no connection", func(ctx SpecContext) {
		s, host := newTestEnv(ctx, ``), newToolHost("search_tickets")
		s.run(func(o *manager.Options) { o.ToolAllowCIDRs = nil })
		s.create(ctx, newToolServer("tickets", host.url))
		awaitText(ctx, s, &v1alpha1.ToolServer{}, "tickets", serverReadiness,
			And(HavePrefix("AddressRefused: "), ContainSubstring("--tool-allow-cidrs")))
		for range host.Sessions() {
			Fail("the server must not have been reached")
		}
	}, SpecTimeout(patience))

	It("is written only after a change", Serial, func(ctx SpecContext) {
		s, host := newTestEnv(ctx, ``), newToolHost("search_tickets")
		host.broken.Store(true)
		s.run() // probes every second
		s.create(ctx, s.basics(withTools("tickets"))...)
		s.create(ctx, newToolServer("tickets", host.url))
		awaitText(ctx, s, &v1alpha1.ToolServer{}, "tickets", serverReadiness, HavePrefix("EndpointUnreachable: "))
		awaitText(ctx, s, &v1alpha1.Agent{}, agent, agentReadiness, HavePrefix("Ready: "))
		servers, agents := requests(ctx, "PUT", "toolservers", "status"), requests(ctx, "PUT", "agents", "status")
		reconciled := reconciles("toolserver")
		Eventually(func() float64 { return reconciles("toolserver") }).WithContext(ctx).Should(BeNumerically(">=", reconciled+3))
		Expect(requests(ctx, "PUT", "toolservers", "status")).To(Equal(servers), "a failure that lasts is written once")
		Expect(requests(ctx, "PUT", "agents", "status")).To(Equal(agents), "Agents report the failure once")
	}, SpecTimeout(2*patience))
})

var _ = Describe("An Agent with tools", func() {
	It("is Ready when its servers and sub-agents exist, whether they answer or not", func(ctx SpecContext) {
		s, host := newTestEnv(ctx, ``), newToolHost("search_tickets", "close_ticket")
		s.run()
		s.create(ctx, s.basics(withTools("tickets"), withSubAgents("researcher"))...)
		awaitText(ctx, s, &v1alpha1.Agent{}, agent, agentReadiness, Equal(
			`ToolServerNotFound: ToolServer "tickets" does not exist; sub-agent "researcher" does not exist`))
		s.create(ctx, newToolServer("tickets", host.url))
		awaitText(ctx, s, &v1alpha1.Agent{}, agent, agentReadiness, Equal(`SubAgentNotFound: sub-agent "researcher" does not exist`))
		s.create(ctx, newAgent("researcher"))
		awaitText(ctx, s, &v1alpha1.Agent{}, agent, agentReadiness, HavePrefix("Ready: "))
		awaitText(ctx, s, &v1alpha1.Agent{}, agent, offered, Equal(
			"Resolved: all tool servers and sub-agents exist [close_ticket search_tickets researcher]"))

		host.broken.Store(true)
		awaitText(ctx, s, &v1alpha1.Agent{}, agent, offered, Equal(
			`Resolved: ToolServer "tickets" is not ready (EndpointUnreachable): calls of its tools fail until `+
				`it is [close_ticket search_tickets researcher]`))
		awaitText(ctx, s, &v1alpha1.Agent{}, agent, agentReadiness, HavePrefix("Ready: "))
		host.broken.Store(false)
		host.add("open_ticket")
		awaitText(ctx, s, &v1alpha1.Agent{}, agent, offered, HaveSuffix("exist [close_ticket open_ticket search_tickets researcher]"))

		s.drop(ctx, &v1alpha1.ToolServer{}, "tickets")
		awaitText(ctx, s, &v1alpha1.Agent{}, agent, agentReadiness, HavePrefix("ToolServerNotFound: "))
		s.drop(ctx, &v1alpha1.Agent{}, "researcher")
		awaitText(ctx, s, &v1alpha1.Agent{}, agent, agentReadiness, ContainSubstring(`sub-agent "researcher" does not exist`))
	}, SpecTimeout(2*patience))

	It("does not list tools that cannot be offered to a model", func(ctx SpecContext) {
		s, host := newTestEnv(ctx, ``), newToolHost("search_tickets")
		host.addWith("remote", `{"type":"object","properties":{"a":{"$ref":"https://example.com/s.json"}}}`)
		s.run(rareProbes)
		s.create(ctx, s.basics(withTools("tickets"))...)
		s.create(ctx, newToolServer("tickets", host.url))
		awaitText(ctx, s, &v1alpha1.ToolServer{}, "tickets", serverReadiness, Equal(
			`Ready: the server answers; models cannot be offered "remote": see status.tools[].unusable`))
		awaitText(ctx, s, &v1alpha1.Agent{}, agent, offered, Equal(
			`Resolved: models cannot be offered 1 of the tools of ToolServer "tickets": see its status.tools[].unusable [search_tickets]`))
		var stored v1alpha1.ToolServer
		Expect(apiClient.Get(ctx, s.key("tickets"), &stored)).To(Succeed())
		Expect(stored.Status.Tools).To(HaveExactElements(
			HaveField("Unusable", Equal("the schema cannot be used: references to other documents are not followed")),
			HaveField("Unusable", BeEmpty())))
	}, SpecTimeout(patience))

	It("reports that it leads back to itself, even if another Agent closes the loop", func(ctx SpecContext) {
		s := newTestEnv(ctx, ``)
		s.run()
		s.create(ctx, s.basics(withSubAgents("a"))...)
		s.create(ctx, newAgent("a", withSubAgents("b")), newAgent("b"))
		awaitText(ctx, s, &v1alpha1.Agent{}, agent, offered, Equal("Resolved: all tool servers and sub-agents exist [a]"))
		change(ctx, s, "b", &v1alpha1.Agent{}, withSubAgents(agent))
		for name, through := range map[string]string{agent: "a", "a": "b", "b": agent} {
			awaitText(ctx, s, &v1alpha1.Agent{}, name, offered, Equal(fmt.Sprintf(
				"Resolved: sub-agent %q leads back to this agent: limits.maxDepth bounds how deep that goes [%s]", through, through)))
			awaitText(ctx, s, &v1alpha1.Agent{}, name, agentReadiness, HavePrefix("Ready: "))
		}
	}, SpecTimeout(patience))
})

var _ = Describe("A Turn whose ToolServer is new", func() {
	It("waits for its first probe, and then has its tools", func(ctx SpecContext) {
		s, host := newTestEnv(ctx, `apiKeys: [right-key]`), newToolHost("search_tickets")
		release := host.hold()
		s.run(rareProbes)
		s.create(ctx, append(s.basics(withTools("tickets")), newToolServer("tickets", host.url, patiently), newTurn("early"))...)
		awaitText(ctx, s, &v1alpha1.Turn{}, "early", message,
			Equal(`Agent "support" is not ready: ToolServer "tickets" is not checked yet`))
		Expect(s.turn(ctx, "early").StateReason()).To(Equal(v1alpha1.TurnReasonWaitingForAgent))
		release()
		t := s.awaitState(ctx, "early", v1alpha1.TurnReasonCompleted)
		Expect(t.Status.Preparation.ToolCount).To(BeEquivalentTo(2), "search_tickets and read_artifact")
		Expect(t.Status.Preparation.ToolServersMissing).To(BeEmpty())
	}, SpecTimeout(patience))

	It("waits for a Secret that is created later", func(ctx SpecContext) {
		s, host := newTestEnv(ctx, `apiKeys: [right-key]`), newToolHost("search_tickets")
		host.token.Store(new("right-token"))
		s.run()
		s.create(ctx, append(s.basics(withTools("tickets")), newTurn("early"),
			newToolServer("tickets", host.url, func(o *v1alpha1.ToolServer) {
				o.Spec.CredentialsRef = &v1alpha1.SecretKeyReference{Name: "tickets", Key: "token"}
			}))...)
		awaitText(ctx, s, &v1alpha1.Turn{}, "early", message, Equal(
			`Agent "support" is not ready: the tools of ToolServer "tickets" are not known (SecretNotFound)`))
		s.create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "tickets"}, StringData: map[string]string{"token": "right-token"}})
		t := s.awaitState(ctx, "early", v1alpha1.TurnReasonCompleted)
		Expect(t.Status.Preparation.ToolCount).To(BeEquivalentTo(2), "search_tickets and read_artifact")
	}, SpecTimeout(patience))

	It("runs without its tools, and reports it, if the server cannot be reached", func(ctx SpecContext) {
		s, host := newTestEnv(ctx, `apiKeys: [right-key]`), newToolHost("search_tickets")
		host.broken.Store(true)
		s.run()
		s.create(ctx, append(s.basics(withTools("tickets")), newToolServer("tickets", host.url), newTurn("early"))...)
		t := s.awaitState(ctx, "early", v1alpha1.TurnReasonCompleted)
		Expect(t.Status.Preparation.ToolCount).To(BeZero())
		Expect(t.Status.Preparation.ToolServersMissing).To(Equal([]string{"tickets"}))
		const without = "without the tools of ToolServer tickets, which had never been reached when the turn began"
		Expect(meta.FindStatusCondition(t.Status.Conditions, v1alpha1.ConditionPrepared).Message).To(
			Equal("the prompt was prepared, but " + without))
		Eventually(s.events).WithArguments(ctx, "Turn", "early").Should(ConsistOf("Warning ToolsMissing", "Normal Succeeded"))
		awaitText(ctx, s, &v1alpha1.Agent{}, agent, offered, Equal(
			`Resolved: ToolServer "tickets" is not ready (EndpointUnreachable) and was never reached: turns run `+
				`without its tools until it is []`))

		host.broken.Store(false)
		awaitText(ctx, s, &v1alpha1.Agent{}, agent, offered, Equal("Resolved: all tool servers and sub-agents exist [search_tickets]"))
		s.create(ctx, newTurn("late"))
		Expect(s.awaitState(ctx, "late", v1alpha1.TurnReasonCompleted).Status.Preparation.ToolServersMissing).To(BeEmpty())
	}, SpecTimeout(patience))
})
