package controller_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/watch"
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
		Eventually(func() map[string]string { return hashes(ctx, busy) }).WithContext(ctx).ShouldNot(ContainElement(""))

		// The manager may have checked most Agents of the busy namespace before this test creates the calm Agent. The
		// order of the changes then shows nothing, and the test tries again.
		for attempt := 1; ; attempt++ {
			Expect(attempt).To(BeNumerically("<=", 20), "the calm Agent was always created too late")
			created, ready, checked := orderOfChecks(ctx, busy, calm, attempt)
			slices.Sort(checked)
			if checked[manyAgents/2] > created {
				Expect(ready).To(BeNumerically("<", checked[len(checked)-1]), "all Agents of the busy namespace were checked first")
				return
			}
		}
	}, SpecTimeout(4*patience))
})

// hashes returns the hash of each Agent of a test environment by the name of the Agent.
func hashes(ctx context.Context, s *testEnv) map[string]string {
	GinkgoHelper()
	var all v1alpha1.AgentList
	Expect(apiClient.List(ctx, &all, client.InNamespace(s.namespace))).To(Succeed())
	byName := map[string]string{}
	for i := range all.Items {
		byName[all.Items[i].Name] = all.Items[i].Status.PromptRenderHash
	}
	return byName
}

// orderOfChecks changes the PromptProfile of all Agents of a busy namespace. When the manager has checked the first of
// them again, orderOfChecks creates an Agent in a calm namespace. It returns the resource versions with which the calm
// Agent was created and was Ready, and the resource version with which each busy Agent was checked again.
func orderOfChecks(ctx context.Context, busy, calm *testEnv, attempt int) (created, ready int64, checked []int64) {
	GinkgoHelper()
	changes, err := apiClient.Watch(ctx, &v1alpha1.AgentList{})
	Expect(err).NotTo(HaveOccurred())
	defer changes.Stop()
	version := func(a *v1alpha1.Agent) int64 {
		n, err := strconv.ParseInt(a.ResourceVersion, 10, 64)
		Expect(err).NotTo(HaveOccurred())
		return n
	}
	left, name := hashes(ctx, busy), fmt.Sprintf("calm-%d", attempt)
	change(ctx, busy, profile, &v1alpha1.PromptProfile{}, func(p *v1alpha1.PromptProfile) {
		p.Spec.Instructions = fmt.Sprintf("Answer in %d sentences.", attempt+1)
	})
	for len(left) > 0 || ready == 0 {
		var event watch.Event
		select { // Eventually would wait between two events
		case event = <-changes.ResultChan():
		case <-ctx.Done():
		}
		a, isAgent := event.Object.(*v1alpha1.Agent)
		Expect(isAgent).To(BeTrue(), "event %+v", event)
		if hash, ok := left[a.Name]; ok && a.Namespace == busy.namespace && a.Status.PromptRenderHash != hash {
			delete(left, a.Name)
			checked = append(checked, version(a))
		}
		if created == 0 && len(checked) > 0 { // the Agents are checked one after the other
			calmAgent := newAgent(name)
			calm.create(ctx, calmAgent)
			created = version(calmAgent)
		}
		if a.Namespace == calm.namespace && a.Name == name && ready == 0 && strings.HasPrefix(agentReadiness(a), "Ready: ") {
			ready = version(a)
		}
	}
	return created, ready, checked
}
