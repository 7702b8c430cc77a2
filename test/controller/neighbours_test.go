package controller_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
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
		paced := pace{path: "/namespaces/" + busy.namespace + "/agents/", permits: make(chan struct{}, 2*manyAgents)}
		user := rest.CopyConfig(apiConfig)
		user.Wrap(func(next http.RoundTripper) http.RoundTripper { return pacedWrites{next, &paced} })
		startAs(user, busy.options(func(o *manager.Options) { o.WatchNamespaces = []string{busy.namespace, calm.namespace} }))
		busy.create(ctx, busy.basics()...)
		for i := range manyAgents {
			busy.create(ctx, newAgent(fmt.Sprintf("agent-%d", i)))
		}
		calm.create(ctx, calm.basics()[:3]...)
		awaitText(ctx, calm, &v1alpha1.PromptProfile{}, profile,
			func(p *v1alpha1.PromptProfile) string { return p.Status.RenderHash }, Not(BeEmpty()))
		Eventually(func() map[string]string { return hashes(ctx, busy) }).WithContext(ctx).ShouldNot(ContainElement(""))

		ready, checked := orderOfChecks(ctx, busy, calm, &paced)
		Expect(ready).To(BeNumerically("<", slices.Max(checked)), "all Agents of the busy namespace were checked first")
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

// pace holds back the writes of the statuses of a namespace's Agents, while it is on, until each has a permit. Without
// it, the manager may have checked most Agents before a test sees the first change.
type pace struct {
	path    string
	on      atomic.Bool
	permits chan struct{}
}

// pacedWrites sends requests at a pace.
type pacedWrites struct {
	next http.RoundTripper
	pace *pace
}

// RoundTrip implements http.RoundTripper.
func (p pacedWrites) RoundTrip(r *http.Request) (*http.Response, error) {
	held := p.pace.on.Load() && r.Method != http.MethodGet && strings.Contains(r.URL.Path, p.pace.path)
	if held {
		select {
		case <-p.pace.permits:
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
	response, err := p.next.RoundTrip(r)
	if held && (err != nil || response.StatusCode != http.StatusOK) {
		p.pace.permits <- struct{}{} // nothing was written: the next write needs the permit
	}
	return response, err
}

// orderOfChecks changes the PromptProfile of all Agents of a busy namespace, and permits the next write of a status
// when it has seen the one before. When the manager has checked the first of the Agents again, orderOfChecks creates an
// Agent in a calm namespace. It returns the resource version with which the calm Agent was Ready, and the resource
// version with which each busy Agent was checked again.
func orderOfChecks(ctx context.Context, busy, calm *testEnv, paced *pace) (ready int64, checked []int64) {
	GinkgoHelper()
	changes, err := apiClient.Watch(ctx, &v1alpha1.AgentList{})
	Expect(err).NotTo(HaveOccurred())
	defer changes.Stop()
	version := func(a *v1alpha1.Agent) int64 {
		n, err := strconv.ParseInt(a.ResourceVersion, 10, 64)
		Expect(err).NotTo(HaveOccurred())
		return n
	}
	left := hashes(ctx, busy)
	paced.on.Store(true)
	paced.permits <- struct{}{}
	change(ctx, busy, profile, &v1alpha1.PromptProfile{}, func(p *v1alpha1.PromptProfile) {
		p.Spec.Instructions = "Answer in two sentences."
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
			if len(checked) == 1 {
				calm.create(ctx, newAgent("calm"))
			}
		}
		if event.Type == watch.Modified && a.Namespace == busy.namespace {
			paced.permits <- struct{}{}
		}
		if a.Namespace == calm.namespace && a.Name == "calm" && ready == 0 && strings.HasPrefix(agentReadiness(a), "Ready: ") {
			ready = version(a)
		}
	}
	return ready, checked
}
