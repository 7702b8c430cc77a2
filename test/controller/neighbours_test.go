package controller_test

import (
	"fmt"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/manager"
)

// manyAgents is the number of Agents in a namespace that keeps the manager busy. One change of their PromptProfile
// affects all of them.
const manyAgents = 100

var _ = Describe("A namespace with many Agents", func() {
	It("does not delay the Agent of another namespace", func(ctx SpecContext) {
		busy, calm := newTestEnv(ctx, ``), newTestEnv(ctx, ``)
		busy.run(func(o *manager.Options) { o.WatchNamespaces = []string{busy.namespace, calm.namespace} })
		busy.create(ctx, busy.basics()...)
		for i := range manyAgents {
			busy.create(ctx, newAgent(fmt.Sprintf("agent-%d", i)))
		}
		calm.create(ctx, calm.basics()[:3]...)
		awaitText(ctx, calm, &v1alpha1.PromptProfile{}, profile,
			func(p *v1alpha1.PromptProfile) string { return p.Status.RenderHash }, Not(BeEmpty()))
		hashes := func() map[string]string {
			var all v1alpha1.AgentList
			Expect(apiClient.List(ctx, &all, client.InNamespace(busy.namespace))).To(Succeed())
			byName := map[string]string{}
			for i := range all.Items {
				byName[all.Items[i].Name] = all.Items[i].Status.PromptRenderHash
			}
			return byName
		}
		Eventually(hashes).WithContext(ctx).ShouldNot(ContainElement(""))
		before := hashes()
		unchanged := func() int {
			count := 0
			for name, hash := range hashes() {
				if before[name] == hash {
					count++
				}
			}
			return count
		}

		change(ctx, busy, profile, &v1alpha1.PromptProfile{},
			func(p *v1alpha1.PromptProfile) { p.Spec.Instructions = "Answer in two sentences." })
		Eventually(unchanged).WithContext(ctx).Should(BeNumerically("<", manyAgents), "the Agents are checked one after the other")
		calm.create(ctx, newAgent(agent))
		awaitText(ctx, calm, &v1alpha1.Agent{}, agent, agentReadiness, HavePrefix("Ready: "))
		Expect(unchanged()).To(BeNumerically(">", 0), "all Agents of the busy namespace were checked first")
	}, SpecTimeout(2*patience))
})
