package controller_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/executor"
	"github.com/capstan-dev/capstan/internal/manager"
	"github.com/capstan-dev/capstan/internal/store/postgres/postgrestest"
)

// sharedStore makes a manager one of several that share a database.
func sharedStore(databaseURL, name string, slots int, roles ...string) func(*manager.Options) {
	return func(o *manager.Options) {
		o.Store, o.ExecutorName, o.MaxConcurrentTurns, o.Roles, o.LeaderElect = databaseURL, name, slots, roles, true
	}
}

// boundTo counts the running Turns of the test environment by executor.
func (s *testEnv) boundTo(ctx context.Context) map[string]int {
	GinkgoHelper()
	var turns v1alpha1.TurnList
	Expect(apiClient.List(ctx, &turns, client.InNamespace(s.namespace))).To(Succeed())
	counts := map[string]int{}
	for i := range turns.Items {
		if name := turns.Items[i].BoundTo(); name != "" {
			counts[name]++
		}
	}
	return counts
}

var _ = Describe("Two managers with PostgreSQL", func() {
	It("run Turns at the same time; a manager that stops hands its Turns over immediately", func(ctx SpecContext) {
		s := newTestEnv(ctx, ``)
		databaseURL := postgrestest.Database(GinkgoTB())
		s.create(ctx, s.basics()...)
		first := s.run(sharedStore(databaseURL, "first", 10))
		Eventually(first.logs.String).Should(ContainSubstring("Starting workers"), "the first manager must lead")
		second := s.run(sharedStore(databaseURL, "second", 10))
		Eventually(second.logs.String).Should(ContainSubstring("Executor is ready"), "a manager that is not the leader runs Turns, too")
		const each = 10
		release := s.hold()
		s.create(ctx, newTurns(2*each, timeout(600))...)
		s.awaitHeld(ctx, 2*each)
		Expect(s.boundTo(ctx)).To(Equal(map[string]int{"first": each, "second": each}))

		third := s.run(sharedStore(databaseURL, "third", each))
		Eventually(third.logs.String).Should(ContainSubstring("Executor is ready"))
		first.stop() // the leader
		Eventually(s.boundTo).WithContext(ctx).WithArguments(ctx).Should(Equal(map[string]int{"third": each, "second": each}))
		Eventually(func() int { return strings.Count(first.logs.String(), "Handed a turn back") }).WithContext(ctx).Should(Equal(each),
			"the first manager hands its Turns back, and no Lease has to expire")
		release()
		for _, t := range s.awaitAll(ctx, 2*each, v1alpha1.TurnReasonCompleted) {
			moved := int64(0)
			if t.Status.Executor.Name == "third" {
				moved = 1
			}
			Expect(t.Status.Executor.Epoch).To(BeNumerically(">=", 1+moved), t.Name)
			Expect(t.Status.Steps).To(HaveValue(Equal(v1alpha1.StepCounts{
				Count: 1, ModelRequests: int32(1 + moved), ModelRetries: int32(moved), Resumes: int32(moved),
			})), t.Name)
		}
	}, SpecTimeout(4*patience))
})

var _ = Describe("An executor that is cut off", func() {
	It("loses its Turns when its Lease has expired, and can no longer write to journals or statuses", func(ctx SpecContext) {
		s := newTestEnv(ctx, ``)
		databaseURL := postgrestest.Database(GinkgoTB())
		s.create(ctx, s.basics()...)
		s.run(sharedStore(databaseURL, "controller", 1, manager.RoleController))
		api := newCuttableProxy()
		const turns = 5
		o := s.options(sharedStore(databaseURL, "zombie", turns, manager.RoleExecutor))
		zombie := startAs(api.config, o)
		release := s.hold()
		s.create(ctx, newTurns(turns, timeout(600))...)
		s.awaitHeld(ctx, turns)
		Expect(s.boundTo(ctx)).To(Equal(map[string]int{"zombie": turns}))

		s.run(sharedStore(databaseURL, "heir", turns, manager.RoleExecutor))
		api.cut()
		Eventually(s.boundTo).WithContext(ctx).WithArguments(ctx).WithTimeout(2 * patience).Should(Equal(map[string]int{"heir": turns}))
		s.awaitHeld(ctx, 2*turns) // the old runs do not know yet that they have lost their Turns
		release()
		for _, t := range s.awaitAll(ctx, turns, v1alpha1.TurnReasonCompleted) {
			Expect(t.Status.Executor).To(beBound("heir", 2), t.Name)
			Expect(t.Status.Steps).To(HaveValue(
				Equal(v1alpha1.StepCounts{Count: 1, ModelRequests: 2, ModelRetries: 1, Resumes: 1})), t.Name)
		}
		before := s.versions(ctx)
		api.mend()
		Eventually(running).Should(BeZero(), "the old runs must end")
		zombie.stop()
		Expect(s.versions(ctx)).To(Equal(before), "the old runs must have written nothing")
		for name := range before {
			Eventually(s.events).WithArguments(ctx, "Turn", name).Should(ConsistOf("Normal Resumed", "Normal Succeeded"))
		}
	}, SpecTimeout(6*patience))

	It("gets no new Turns while the store works for another executor", func(ctx SpecContext) {
		s := newTestEnv(ctx, ``)
		databaseURL := postgrestest.Database(GinkgoTB())
		store := postgrestest.NewProxy(GinkgoTB(), databaseURL)
		s.create(ctx, s.basics()...)
		s.run(sharedStore(databaseURL, "controller", 1, manager.RoleController))
		const turns = 6
		for name, url := range map[string]string{"well": databaseURL, "alone": store.URL} {
			e := s.run(sharedStore(url, name, turns, manager.RoleExecutor))
			Eventually(e.logs.String).Should(ContainSubstring("Executor is ready"))
		}
		store.Shut()
		awaitText(ctx, s, &coordinationv1.Lease{}, executor.LeasePrefix+"alone", func(l *coordinationv1.Lease) string {
			return l.Annotations[executor.StoreReachableAnnotation]
		}, Equal("false"))
		s.create(ctx, newTurns(turns)...)
		for _, t := range s.awaitAll(ctx, turns, v1alpha1.TurnReasonCompleted) {
			Expect(t.Status.Executor).To(beBound("well", 1), t.Name)
		}
	}, SpecTimeout(6*patience))
})

// versions returns the resource versions of the test environment's Turns, by name.
func (s *testEnv) versions(ctx context.Context) map[string]string {
	GinkgoHelper()
	var turns v1alpha1.TurnList
	Expect(apiClient.List(ctx, &turns, client.InNamespace(s.namespace))).To(Succeed())
	versions := map[string]string{}
	for i := range turns.Items {
		versions[turns.Items[i].Name] = turns.Items[i].ResourceVersion
	}
	return versions
}

// cuttableProxy is a proxy whose connections can be cut. config is nil unless the proxy leads to the API server.
type cuttableProxy struct {
	config *rest.Config
	web    *httptest.Server
	broken atomic.Bool
}

func newCuttableProxy() *cuttableProxy {
	GinkgoHelper()
	c := serveCuttable(apiProxy())
	c.config = &rest.Config{Host: c.web.URL}
	return c
}

// serveCuttable serves a handler behind connections that can be cut. The end of the spec stops the proxy.
func serveCuttable(next http.Handler) *cuttableProxy {
	c := &cuttableProxy{}
	c.web = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c.broken.Load() {
			panic(http.ErrAbortHandler)
		}
		next.ServeHTTP(w, r)
	}))
	DeferCleanup(c.web.Close)
	DeferCleanup(c.web.CloseClientConnections) // runs before Close, which waits for open streams
	return c
}

// apiProxy returns a proxy to the API server, with the permissions of an administrator.
func apiProxy() *httputil.ReverseProxy {
	GinkgoHelper()
	transport, err := rest.TransportFor(apiConfig)
	Expect(err).NotTo(HaveOccurred())
	target, err := url.Parse(apiConfig.Host)
	Expect(err).NotTo(HaveOccurred())
	return &httputil.ReverseProxy{
		Transport: transport, FlushInterval: -1, // so that watches see each event immediately
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) },
	}
}

// cut breaks all connections and refuses all later requests.
func (c *cuttableProxy) cut() {
	c.broken.Store(true)
	c.web.CloseClientConnections()
}

func (c *cuttableProxy) mend() { c.broken.Store(false) }
