package controller_test

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/manager"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/store/sqlite"
)

var _ = Describe("A server that knows the credential of another server", func() {
	// No two of these credentials share 12 characters: in an error, each adapter would redact a shared part of that
	// length.
	const (
		mainKey   = "sk-main-0a1b2c3d4e5f6a7b8c9d0e"
		spareKey  = "spare-z9y8x7w6v5u4t3s2r1q0"
		toolToken = "tool-m3n4b5v6c7x8l9k0j1h2"
	)
	// hidden inserts a zero-width space after each character.
	hidden := func(text string) string {
		return strings.Join(strings.Split(text, ""), "\u200b")
	}
	// The model repeats the tool server's token in its answer, in the arguments of a call, and in an error.
	rules := `
rules:
- when: {matches: "^call", toolMessages: 0}
  reply: {toolCalls: [{name: look_up, arguments: '{"note":"` + toolToken + `"}'}]}
- when: {matches: "^call"}
  reply: {text: "The token is ` + hidden(toolToken) + ` or ` + toolToken + `."}
- when: {contains: wrong}
  fault: {status: 400, message: "The tool server has ` + hidden(toolToken) + `."}
`
	// The tool server repeats the keys of both models in its tool list and in results.
	leaky := func() *fakeToolServer {
		host := newFakeToolServer()
		texts := "main " + mainKey + ", spare " + hidden(spareKey) + ", end"
		host.AddTool(&mcp.Tool{
			Name: "look_up", Description: "It has " + mainKey + ".", Annotations: readOnly,
			InputSchema: json.RawMessage(`{"type":"object","properties":{"note":{"type":"string","description":"Not ` + spareKey + `."}}}`),
		}, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: texts}}}, nil
		})
		host.AddTool(&mcp.Tool{Name: "tool-of-" + mainKey, InputSchema: json.RawMessage(`{"type":"object"}`)},
			func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				return &mcp.CallToolResult{}, nil
			})
		return host
	}

	It("cannot put it into the next request, a status, an Event, the journal or the log", func(ctx SpecContext) {
		s, neighbour := newTestEnv(ctx, rules), newTestEnv(ctx, rules)
		m := s.run(func(o *manager.Options) { o.WatchNamespaces = []string{s.namespace, neighbour.namespace} })

		s.create(ctx, newSecret(secretName, mainKey), newSecret("spare", spareKey), newSecret("desk", toolToken), newProfile(profile),
			s.newProvider(provider), s.newProvider("spare", func(p *v1alpha1.ModelProvider) { p.Spec.CredentialsRef.Name = "spare" }),
			newAgent(agent, withTools("desk"), func(a *v1alpha1.Agent) {
				a.Spec.Models = append(a.Spec.Models,
					v1alpha1.ModelReference{ProviderRef: v1alpha1.SharedReference{Name: "spare"}, Model: modelName})
			}))
		for _, name := range []string{provider, "spare"} { // both have read their Secrets
			awaitText(ctx, s, &v1alpha1.ModelProvider{}, name, providerReadiness, HavePrefix("Ready"))
		}
		s.create(ctx, newToolServer("desk", leaky().url, reading("look_up"), func(o *v1alpha1.ToolServer) {
			o.Spec.CredentialsRef = &v1alpha1.SecretKeyReference{Name: "desk", Key: keyName}
		}))
		awaitText(ctx, s, &v1alpha1.Agent{}, agent, offered, HaveSuffix("[look_up]"))

		neighbour.create(ctx, neighbour.basics(withTools("desk"))...)
		neighbour.create(ctx, newToolServer("desk", leaky().url, reading("look_up")))
		awaitText(ctx, neighbour, &v1alpha1.Agent{}, agent, offered, ContainSubstring("look_up"))

		s.create(ctx, newTurn("call-it"), newTurn("wrong"))
		neighbour.create(ctx, newTurn("call-it"), newTurn("wrong"))
		t := s.awaitState(ctx, "call-it", v1alpha1.TurnReasonCompleted)
		Expect(t.Status.Result.Text).To(Equal("The token is [redacted] or [redacted]."))
		s.awaitState(ctx, "wrong", v1alpha1.TurnReasonModelFailed)
		Eventually(s.events).WithArguments(ctx, "Turn", "call-it").ShouldNot(BeEmpty())

		unredacted := neighbour.awaitState(ctx, "call-it", v1alpha1.TurnReasonCompleted)
		Expect(unredacted.Status.Result.Text).To(ContainSubstring("or "+toolToken),
			"a credential of one namespace must not be redacted in the texts of another namespace")
		Expect(bodies(neighbour)).To(And(ContainSubstring("It has "+mainKey), ContainSubstring("main "+mainKey)))
		neighbour.awaitState(ctx, "wrong", v1alpha1.TurnReasonModelFailed)

		requests := bodies(s)
		Expect(requests).To(And(ContainSubstring("It has [redacted]."), ContainSubstring("Not [redacted]."),
			ContainSubstring("main [redacted], spare [redacted], end")))
		leftovers := s.everything(ctx)
		leftovers["the model's requests"] = requests
		leftovers["the journal of the Turn"] = s.journal(ctx, m, string(t.UID))
		Expect(leftovers["the journal of the Turn"]).To(
			And(ContainSubstring(`{"note":"[redacted]"}`), ContainSubstring("main [redacted], spare [redacted], end")))
		leftovers["the journal of the Turn that failed"] = s.journal(ctx, m, string(s.turn(ctx, "wrong").UID))
		_, failed, _ := strings.Cut(leftovers["the journal of the Turn that failed"], string(journal.ModelFailed)+" ")
		Expect(failed).To(ContainSubstring("The tool server has [redacted]"))
		for name, text := range leftovers {
			for _, secret := range []string{mainKey, spareKey, toolToken} {
				Expect(strings.ReplaceAll(text, "\u200b", "")).NotTo(ContainSubstring(secret), "in %s", name)
			}
		}
	}, SpecTimeout(patience))
})

// bodies returns the bodies of all requests to the model of a test environment.
func bodies(s *testEnv) string {
	var all strings.Builder
	for _, r := range s.fake.Requests() {
		all.Write(r.Body)
		all.WriteByte('\n')
	}
	return all.String()
}

// journal returns the content of the journal with this UID as text.
func (s *testEnv) journal(ctx context.Context, m *runningManager, uid string) string {
	GinkgoHelper()
	store, err := sqlite.OpenReader(ctx, m.options.DataDir+"/journal.db")
	Expect(err).NotTo(HaveOccurred())
	defer func() { Expect(store.Close()).To(Succeed()) }()
	entries, err := journal.Collect(ctx, store, uid)
	Expect(err).NotTo(HaveOccurred())
	var all strings.Builder
	for _, e := range entries {
		all.WriteString(string(e.Kind) + " " + string(e.Payload) + "\n")
	}
	return all.String()
}
