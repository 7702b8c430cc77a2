package controller_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gexec"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/client-go/rest"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/executor"
	"github.com/capstan-dev/capstan/internal/manager"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/store/postgres"
	"github.com/capstan-dev/capstan/internal/store/postgres/postgrestest"
	"github.com/capstan-dev/capstan/test/fakemodel/server"
	"github.com/capstan-dev/capstan/test/harness/harnesstest"
)

// slowTurns is the number of Turns whose first request hangs.
const slowTurns = 10

// partlyStuck never answers the first requests whose message contains the word "slow", one for each slow Turn. It
// answers all other requests immediately.
var partlyStuck = fmt.Sprintf(`rules: [{when: {contains: slow}, times: %d, fault: {hang: BeforeHeaders}}, {}]`, slowTurns)

var _ = Describe("Two managers that share a PostgreSQL", func() {
	It("continue the Turns of a killed manager, and pay for no reply twice", func(ctx SpecContext) {
		program := buildManager(ctx)
		s := newTestEnv(ctx, partlyStuck)
		databaseURL := postgrestest.Database(GinkgoTB())
		s.create(ctx, s.basics()...)
		ready := func(name string) {
			GinkgoHelper()
			awaitText(ctx, s, &coordinationv1.Lease{}, executor.LeasePrefix+name, func(l *coordinationv1.Lease) string {
				return *l.Spec.HolderIdentity
			}, Equal(name))
		}
		// The first manager cannot write the end of a Turn. When it is killed, only the journal has its results.
		first := s.share(ctx, program, "first", databaseURL, refusing(http.MethodPut, "/status", `"completionTime"`))
		ready("first")

		const each = slowTurns
		s.create(ctx, newTurns(each)...)
		s.awaitRecorded(ctx, databaseURL, each)
		for i := range each {
			s.create(ctx, newTurn(fmt.Sprintf("slow-%03d", i), timeout(600)))
		}
		s.awaitInFlight(ctx, each)
		s.share(ctx, program, "second", databaseURL, apiConfig)
		ready("second")
		Eventually(first.Kill()).Should(gexec.Exit(137))
		s.awaitInFlight(ctx, 0)
		Expect(s.states(ctx)).To(Equal(map[string]int{v1alpha1.TurnReasonRunning: 2 * each}), "a killed process cleans nothing up")

		// The first manager was also the leader: first its Lease as the leader expires, then its Lease as an executor.
		Eventually(s.boundTo).WithContext(ctx).WithArguments(ctx).WithTimeout(2 * patience).ShouldNot(HaveKey("first"))
		for _, t := range s.awaitAll(ctx, 2*each, v1alpha1.TurnReasonCompleted) {
			Expect(t.Status.Executor).To(beBound("second", 2), t.Name)
			requests := int32(1)
			if strings.HasPrefix(t.Name, "slow") {
				requests = 2 // the request that was cut off, and the repeated one
			}
			Expect(t.Status.Steps).To(HaveValue(
				Equal(v1alpha1.StepCounts{Count: 1, ModelRequests: requests, ModelRetries: requests - 1, Resumes: requests - 1})), t.Name)
		}
		Expect(s.fake.Stats().ByOutcome).To(Equal(map[server.Outcome]int64{
			server.OutcomeAnswered: 2 * each, server.OutcomeCancelled: each,
		}), "replies that were recorded are not requested again")
	}, SpecTimeout(8*patience))
})

// share starts a manager process that shares a store with other processes, of which one leads. env holds further
// environment variables of the process. The end of the spec kills the process.
func (s *testEnv) share(ctx context.Context, program, name, databaseURL string, api *rest.Config, env ...string) *gexec.Session {
	GinkgoHelper()
	path := kubeconfig
	if api != apiConfig {
		path = filepath.Join(GinkgoT().TempDir(), "kubeconfig")
		text := fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Config","clusters":[{"name":"c","cluster":{"server":%q}}],`+
			`"contexts":[{"name":"c","context":{"cluster":"c"}}],"current-context":"c"}`, api.Host)
		Expect(os.WriteFile(path, text, 0o600)).To(Succeed())
	}
	cmd := exec.CommandContext(ctx, program, "--kubeconfig", path, "--namespace", s.namespace, "--executor-name", name,
		"--watch-namespaces", s.namespace, "--metrics-bind-address", "0", "--read-bind-address", "0",
		"--health-probe-bind-address", "0", "--leader-elect",
		"--tool-allow-cidrs", "127.0.0.0/8,::1/128")
	// The URL is not an argument, because it contains a password.
	cmd.Env = append(append(os.Environ(), env...), manager.EnvPrefix+"STORE="+databaseURL)
	session, err := gexec.Start(cmd, GinkgoWriter, GinkgoWriter)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { Eventually(session.Kill()).Should(gexec.Exit()) })
	return session
}

// refusing returns a configuration for a proxy to the API server. The proxy refuses requests with this method, whose
// path ends with pathSuffix and whose body contains text.
func refusing(method, pathSuffix, text string) *rest.Config {
	GinkgoHelper()
	proxy := apiProxy()
	address := harnesstest.Serve(GinkgoTB(), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == method && strings.HasSuffix(r.URL.Path, pathSuffix) {
			content, err := io.ReadAll(r.Body)
			if err != nil || strings.Contains(string(content), text) {
				http.Error(w, "not now", http.StatusServiceUnavailable)
				return
			}
			r.Body = io.NopCloser(strings.NewReader(string(content)))
		}
		proxy.ServeHTTP(w, r)
	}))
	return &rest.Config{Host: address}
}

// awaitRecorded waits until the journals of this many Turns contain the whole result.
func (s *testEnv) awaitRecorded(ctx context.Context, databaseURL string, count int) {
	GinkgoHelper()
	store, err := postgres.Open(ctx, databaseURL)
	Expect(err).NotTo(HaveOccurred())
	defer func() { Expect(store.Close()).To(Succeed()) }()
	Eventually(func(g Gomega) {
		uids, err := store.UIDs(ctx, "", 1000)
		g.Expect(err).NotTo(HaveOccurred())
		done := 0
		for _, uid := range uids {
			entries, err := journal.Collect(ctx, store, uid)
			g.Expect(err).NotTo(HaveOccurred())
			if n := len(entries); n > 0 && entries[n-1].Kind == journal.Finalized {
				done++
			}
		}
		g.Expect(done).To(Equal(count), "Turns whose result is in the journal")
	}).WithContext(ctx).Should(Succeed())
}

var _ = Describe("A PostgreSQL that restarts in the middle of 30 Turns", func() {
	const turns = 30

	DescribeTable("loses none of them", func(ctx SpecContext, mode postgrestest.Mode) {
		s := newTestEnv(ctx, `rules: [{fault: {latencyMilliseconds: 1000}}]`)
		databaseURL, restart := postgrestest.Restartable(GinkgoTB())
		s.create(ctx, s.basics()...)
		// Ten at a time, so that Turns begin and end all the time.
		m := s.run(func(o *manager.Options) { o.Store, o.MaxConcurrentTurns = databaseURL, 10 })
		s.create(ctx, newTurns(turns)...)
		for _, answered := range []int64{1, 11} {
			Eventually(func() int64 { return s.fake.Stats().ByOutcome[server.OutcomeAnswered] }).WithContext(ctx).Should(
				BeNumerically(">=", answered))
			restart(mode)
		}
		for _, t := range s.awaitAll(ctx, turns, v1alpha1.TurnReasonCompleted) {
			Expect(t.Status.Steps.ModelRequests).To(BeEquivalentTo(1), t.Name)
		}
		Expect(s.fake.Stats().Requests).To(BeEquivalentTo(turns), "no reply is lost or paid for twice")
		location, err := url.Parse(databaseURL)
		Expect(err).NotTo(HaveOccurred())
		Expect(m.logs.String()).NotTo(ContainSubstring(location.User.String()+"@"), "no log may show the URL and its password")
	},
		Entry("by its administrator", SpecTimeout(3*patience), postgrestest.Fast),
		Entry("by a crash", SpecTimeout(3*patience), postgrestest.Immediate),
	)
})

var _ = Describe("A manager whose store does not work", func() {
	DescribeTable("is not ready, reports the reason, and is ready again when the store works",
		func(ctx SpecContext, prepare func() (storeURL string, harm, heal func()), reason string) {
			s := newTestEnv(ctx, ``)
			var address string
			probe := func(path string) (string, error) {
				request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, http.NoBody)
				if err != nil {
					return "", err
				}
				response, err := http.DefaultClient.Do(request)
				if err != nil {
					return "", err
				}
				body, err := io.ReadAll(response.Body)
				return response.Status + ": " + string(body), errors.Join(err, response.Body.Close())
			}
			storeURL, harm, heal := prepare()
			m := s.run(func(o *manager.Options) { o.Store, o.HealthProbeBindAddress = storeURL, "127.0.0.1:0" })
			address = m.servedAt(ctx, "health probe")
			Eventually(probe).WithArguments("/readyz").WithContext(ctx).Should(HavePrefix("200 OK"))
			harm()
			Eventually(probe).WithArguments("/readyz").WithContext(ctx).Should(ContainSubstring("[-]store failed"))
			Expect(probe("/readyz/store")).To(And(HavePrefix("500"), ContainSubstring(reason)))
			Expect(probe("/healthz")).To(HavePrefix("200 OK"), "the liveness probe must succeed, because a restart would not help")
			heal()
			Eventually(probe).WithArguments("/readyz").WithContext(ctx).Should(HavePrefix("200 OK"))
		},
		Entry("in SQLite", SpecTimeout(2*patience), func() (string, func(), func()) {
			path := filepath.Join(GinkgoT().TempDir(), "journal.db")
			return "sqlite://" + path,
				func() { Expect(os.Rename(path, path+".away")).To(Succeed()) },
				func() { Expect(os.Rename(path+".away", path)).To(Succeed()) }
		}, "failed to find the file of the journal"),
		Entry("in PostgreSQL", SpecTimeout(2*patience), func() (string, func(), func()) {
			tb := GinkgoTB()
			databaseURL := postgrestest.Database(tb)
			return databaseURL,
				func() { postgrestest.Exec(tb, databaseURL, `ALTER TABLE capstan_turn RENAME TO away`) },
				func() { postgrestest.Exec(tb, databaseURL, `ALTER TABLE away RENAME TO capstan_turn`) }
		}, `relation "capstan_turn" does not exist`),
	)
})
