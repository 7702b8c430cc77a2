package readapi_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	rbacv1 "k8s.io/api/rbac/v1"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/capstan-dev/capstan/internal/cli/exit"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/test/fakemodel/server"
	"github.com/capstan-dev/capstan/test/harness/harnesstest"
)

// createReplayable creates a finished Turn whose journal has one tool call. The input of the preparation and the
// output of the tool are artifacts.
func (s *testEnv) createReplayable(ctx context.Context, name string) {
	GinkgoHelper()
	t := s.turn(ctx, name)
	input := journal.NewArtifact([]byte(`{"input":{"Agent":{"Name":"support"},"Profile":{"Name":"house","Version":"1","ID":"house",` +
		`"Identity":{},"Instructions":"Answer briefly."},"Turn":{"Name":"` + name + `","Namespace":"` + s.namespace +
		`","Message":"What is new?"},"Now":"2026-04-09T12:00:00Z"},"zone":"UTC"}`))
	whole := journal.NewArtifact([]byte("the whole output " + strings.Repeat("0123456789", 2000) + " at its end"))
	first := entry(1, journal.RunStarted, fmt.Sprintf(`{"namespace":%q,"name":%q,"agent":"support"}`, s.namespace, name))
	second := entry(2, journal.PreparationInput, "")
	second.Payload, second.Artifact, second.Artifacts = nil, input.SHA256, []journal.Artifact{input}
	result := entry(6, journal.ToolFinished, `{"step":1,"callID":"a","name":"look","outcome":"Succeeded","content":"short",`+
		`"artifactName":"call-1-1","artifact":"`+whole.SHA256+`"}`)
	result.Artifacts = []journal.Artifact{whole}
	s.append(ctx, t, first, second,
		entry(3, journal.ToolsExposed, `{"nonce":"N","effectsDeclared":true,"tools":[{"name":"look","description":"Looks.",`+
			`"effect":"ReadOnly","schema":{"type":"object","properties":{"at":{"type":"string"}}}}]}`),
		entry(4, journal.Prepared, `{"provider":"demo","model":"small","report":{},`+
			`"messages":[{"role":"user","name":"user_message","content":"What is new?"}]}`),
		entry(5, journal.ToolIntended, `{"step":1,"callID":"a","name":"look","arguments":{"at":"this"},"effect":"ReadOnly","attempt":1}`),
		result,
		entry(7, journal.Finalized, `{"stop":"Completed","message":"the model answered","text":"Old news.","record":{}}`))
	end(ctx, t)
}

var _ = Describe("The commands replay and backtest", func() {
	It("read the journals of a cluster, with the permissions of readers", func(ctx SpecContext) {
		s := newTestEnv(ctx)
		for _, name := range []string{"first", "second"} {
			s.createReplayable(ctx, name)
		}
		end(ctx, s.turn(ctx, "third")) // it has no journal
		s.turn(ctx, "fourth")          // it has not ended
		cfg, err := server.ParseConfig([]byte(`rules:
- {when: {toolMessages: 0, hasTools: true}, reply: {toolCalls: [{name: look, arguments: '{"at": "this"}'}]}}
- {when: {anyContains: at its end}, reply: {text: New news.}}
`))
		Expect(err).NotTo(HaveOccurred())
		fake, url := harnesstest.Model(GinkgoTB(), cfg)
		manifests := filepath.Join(GinkgoT().TempDir(), "manifests.yaml")
		Expect(os.WriteFile(manifests, []byte(`apiVersion: capstan.dev/v1alpha1
kind: Agent
metadata: {name: support}
spec: {promptProfileRef: {name: house}, models: [{providerRef: {name: demo}, model: small}]}
---
apiVersion: capstan.dev/v1alpha1
kind: PromptProfile
metadata: {name: house}
spec: {id: house, version: 2.0.0, instructions: Answer at length.}
---
apiVersion: capstan.dev/v1alpha1
kind: ModelProvider
metadata: {name: demo}
spec: {type: OpenAI, baseURL: "`+url+`", models: [{name: small}]}
`), 0o600)).To(Succeed())
		lists := rbacv1.PolicyRule{APIGroups: []string{"capstan.dev"}, Resources: []string{"turns"}, Verbs: []string{"list"}}
		as := func(token string) []string {
			return []string{
				"-m", manifests, "--server", s.server.url, "-n", s.namespace,
				"--kubeconfig", s.kubeconfig(clientcmdapi.AuthInfo{Token: token}),
			}
		}
		reader, stranger := as(s.user(ctx, "reader", logRule, lists)), as(s.user(ctx, "stranger"))

		By("replaying a Turn")
		replay := capstan(ctx, append([]string{"replay", "first"}, reader...)...).must(ctx, exit.OK)
		Expect(replay.out.String()).To(And(ContainSubstring("-Old news.\n+New news.\n"), ContainSubstring("1 from the journal")))

		By("replaying the last Turns")
		backtest := capstan(ctx, append([]string{"backtest", "--agent", "support", "--replay"}, reader...)...).must(ctx, exit.OK)
		Expect(backtest.out.String()).To(And(ContainSubstring("2 of 2 Turns passed (100%)"),
			ContainSubstring("Skipped: third: its journal is empty"), Not(ContainSubstring("fourth"))))
		Expect(fake.Stats().Requests).To(BeEquivalentTo(6))

		By("rejecting a user who may not read the journal")
		refused := capstan(ctx, append([]string{"replay", "first"}, stranger...)...).must(ctx, exit.Failed)
		Expect(refused.err.String()).To(ContainSubstring("the ClusterRole team-capstan-turn-reader"))
		refused = capstan(ctx, append([]string{"backtest", "--agent", "support"}, stranger...)...).must(ctx, exit.Usage)
		Expect(refused.err.String()).To(ContainSubstring("failed to list the Turns of namespace"))
		absent := capstan(ctx, append([]string{"replay", "absent"}, reader...)...).must(ctx, exit.Failed)
		Expect(absent.err.String()).To(ContainSubstring(`/absent cannot be replayed: there is no Turn "absent"`))

		By("finding out from the API server that there is no Turn, without --server")
		gets := rbacv1.PolicyRule{APIGroups: []string{"capstan.dev"}, Resources: []string{"turns"}, Verbs: []string{"get"}}
		absent = capstan(ctx, "replay", "absent", "-m", manifests, "-n", s.namespace,
			"--kubeconfig", s.kubeconfig(clientcmdapi.AuthInfo{Token: s.user(ctx, "getter", gets)})).must(ctx, exit.Failed)
		Expect(absent.err.String()).To(ContainSubstring("/absent cannot be replayed: there is no Turn " + s.namespace + "/absent"))
	})
})
