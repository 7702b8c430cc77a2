package controller_test

import (
	"encoding/base64"
	"encoding/json"
	"html"
	"net/url"
	"os"
	"path/filepath"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

var _ = Describe("A credential", func() {
	const (
		theKey   = "sk-never-to-be-seen-0123456789"
		theToken = "tenant-token-never-to-be-seen"
	)
	// The answers of endpoints that repeat credentials, by the message of the Turn.
	const rules = `
rules:
- when: {contains: refused}
  fault: {status: 401, echoAuthorization: true, message: "Wrong key. X-Tenant was ` + theToken + `."}
- when: {contains: broken}
  fault: {status: 500, echoAuthorization: true}
- when: {contains: limited}
  fault: {status: 429, echoAuthorization: true, retryAfterSeconds: 0}
- when: {contains: code}
  fault: {status: 400, echoAuthorization: true, code: "` + theToken + `"}
- when: {contains: rubbish}
  fault: {rubbish: HTML}
- when: {contains: cut}
  fault: {cutAfterChunks: 0}
`

	It("never leaves its Secret, whatever the endpoint says", func(ctx SpecContext) {
		s := newTestEnv(ctx, rules)
		s.create(ctx, newSecret(secretName, theKey), newSecret("tenant", theToken), newProfile(profile), newAgent(agent),
			s.newProvider(provider, func(p *v1alpha1.ModelProvider) {
				p.Spec.Headers = []v1alpha1.Header{{Name: "X-Tenant", ValueFrom: &v1alpha1.HeaderSource{
					SecretKeyRef: v1alpha1.SecretKeyReference{Name: "tenant", Key: keyName},
				}}}
			}))
		m := s.run()
		failing := []string{"refused", "broken", "limited", "code", "rubbish", "cut"}
		for _, name := range failing {
			s.create(ctx, newTurn(name))
		}
		s.create(ctx, newTurn("fine"))
		for _, name := range failing {
			s.awaitState(ctx, name, v1alpha1.TurnReasonModelFailed)
			Eventually(s.events).WithArguments(ctx, "Turn", name).Should(HaveLen(1))
		}
		s.awaitState(ctx, "fine", v1alpha1.TurnReasonCompleted)
		Expect(message(s.turn(ctx, "refused"))).To(And(ContainSubstring("HTTP 401"), Not(ContainSubstring("X-Tenant"))),
			"the endpoint's text must not be in the status")
		for _, r := range s.fake.Requests() {
			Expect(r.Header.Get("X-Tenant")).To(Equal(theToken), "the endpoint must receive the header that no other reader may see")
		}

		leftovers := s.leftovers(ctx, m)
		Expect(leftovers["journal.db"]).To(ContainSubstring("X-Tenant was [redacted]"), "the search must find texts in the journal")
		for name, text := range leftovers {
			for _, secret := range []string{theKey, theToken} {
				Expect(text).NotTo(ContainSubstring(secret), "in %s", name)
			}
		}
	}, SpecTimeout(patience))

	It("never leaves its Secret, in whatever form a tool server echoes it", func(ctx SpecContext) {
		const token = "Super&Secret/Token+12345"
		// For each form of the token, a part that no escaping changes.
		forms := []string{"Token+1234", "Token%2B1234", base64.StdEncoding.EncodeToString([]byte(token))[:20]}
		result, err := json.Marshal(map[string]string{
			"plain": token, "escaped": `{"token":"Super\u0026Secret\/Token+12345"}`,
			"url": "https://example.com/?t=" + url.QueryEscape(token) + "&x=1", "html": html.EscapeString(token),
			"base64": base64.StdEncoding.EncodeToString([]byte(token)), "part": token[:len(token)-1], "end": "of it",
		})
		Expect(err).NotTo(HaveOccurred())
		s := newTestEnv(ctx, calling("hand_over"))
		host := newFakeToolServer()
		host.offer("hand_over", destructive, answering(string(result)))
		m := s.run()
		s.create(ctx, newSecret("desk", token))
		s.equip(ctx, host.url, "hand_over", func(o *v1alpha1.ToolServer) {
			o.Spec.CredentialsRef = &v1alpha1.SecretKeyReference{Name: "desk", Key: keyName}
			o.Spec.Tools = []v1alpha1.ToolDeclaration{{Name: "hand_over", EndsTurn: v1alpha1.EndsTurnOnSuccess}}
		})
		s.create(ctx, newTurn("call-it"))
		t := s.awaitState(ctx, "call-it", v1alpha1.TurnReasonCompleted)
		Expect(t.Status.Result.Text).To(Equal(
			`{"base64":"[redacted]","end":"of ` +
				`it","escaped":"{\"token\":\"[redacted]\"}","html":"[redacted]","part":"[redacted]","plain":"[redacted]",` +
				`"url":"https://example.com/?t=[redacted]\u0026x=1"}`))
		for name, text := range s.leftovers(ctx, m) {
			for _, form := range forms {
				Expect(text).NotTo(ContainSubstring(form), "in %s", name)
			}
		}
	}, SpecTimeout(patience))
})

// leftovers stops a manager and returns everything that the manager leaves behind: objects as JSON by kind, logs and
// files.
func (s *testEnv) leftovers(ctx SpecContext, m *runningManager) map[string]string {
	GinkgoHelper()
	leftovers := s.everything(ctx)
	m.stop() // so that the logs of the shutdown are included and the journal is complete
	leftovers["the manager's log"] = m.logs.String()
	leftovers["the libraries' log"] = libraryLogs.String()
	files, err := filepath.Glob(filepath.Join(m.options.DataDir, "*"))
	Expect(err).NotTo(HaveOccurred())
	Expect(files).NotTo(BeEmpty(), "the journal is a file")
	for _, file := range files {
		content, err := os.ReadFile(file)
		Expect(err).NotTo(HaveOccurred())
		leftovers[filepath.Base(file)] = string(content)
	}
	return leftovers
}

// everything returns all objects of the test environment except Secrets, as JSON by kind.
func (s *testEnv) everything(ctx SpecContext) map[string]string {
	GinkgoHelper()
	all := map[string]string{}
	for kind, list := range map[string]client.ObjectList{
		"Agents": &v1alpha1.AgentList{}, "ModelProviders": &v1alpha1.ModelProviderList{},
		"PromptProfiles": &v1alpha1.PromptProfileList{}, "Turns": &v1alpha1.TurnList{},
		"ToolServers": &v1alpha1.ToolServerList{}, "ToolApprovals": &v1alpha1.ToolApprovalList{}, "Sessions": &v1alpha1.SessionList{},
		"Events": &eventsv1.EventList{}, "core Events": &corev1.EventList{}, "Leases": &coordinationv1.LeaseList{},
		"ConfigMaps": &corev1.ConfigMapList{},
	} {
		Expect(apiClient.List(ctx, list, client.InNamespace(s.namespace))).To(Succeed())
		text, err := json.Marshal(list)
		Expect(err).NotTo(HaveOccurred())
		all[kind] = string(text)
	}
	return all
}
