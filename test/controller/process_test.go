package controller_test

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gexec"
	"k8s.io/client-go/rest"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/manager"
	"github.com/capstan-dev/capstan/test/fakemodel/server"
	"github.com/capstan-dev/capstan/test/harness"
)

var _ = Describe("A manager process that is killed", func() {
	It("continues its Turns when it is restarted under the same name", func(ctx SpecContext) {
		program := buildManager(ctx)
		const turns = 20
		// The first request of each Turn hangs, so that the process is killed during all of them.
		s := newTestEnv(ctx, fmt.Sprintf(`rules: [{times: %d, fault: {hang: BeforeHeaders}}, {}]`, turns))
		o := s.options()
		s.create(ctx, s.basics()...)
		first := startProcess(ctx, program, o)
		s.create(ctx, newTurns(turns, timeout(600))...)
		s.awaitInFlight(ctx, turns)
		Eventually(first.Kill()).Should(gexec.Exit(137))
		s.awaitInFlight(ctx, 0)
		Expect(s.states(ctx)).To(Equal(map[string]int{v1alpha1.TurnReasonRunning: turns}), "a killed process cleans nothing up")

		second := startProcess(ctx, program, o)
		for _, t := range s.awaitAll(ctx, turns, v1alpha1.TurnReasonCompleted) {
			Expect(t.Status.Executor).To(beBound(o.ExecutorName, 2))
			Expect(t.Status.Steps.Resumes).To(BeEquivalentTo(1))
		}
		Expect(s.fake.Stats().ByOutcome).To(Equal(map[server.Outcome]int64{
			server.OutcomeCancelled: turns, server.OutcomeAnswered: turns,
		}))
		Eventually(second.Interrupt()).Should(gexec.Exit(0), "it must stop without an error when it is asked to")
		started, _, _ := strings.Cut(string(second.Err.Contents()), `"msg":"Stopping"`)
		Expect(strings.Split(strings.TrimSpace(started), "\n")).To(HaveEach(Not(ContainSubstring("Taking over a turn"))),
			"there must be one line for all Turns")
		Expect(started).To(ContainSubstring(fmt.Sprintf(`"turns":%d`, turns)))
	}, SpecTimeout(6*patience))
})

var _ = Describe("The log of a manager process", func() {
	It("has at most five lines at the start, and a fatal error in its own format", func(ctx SpecContext) {
		program := buildManager(ctx)
		s := newTestEnv(ctx, ``)
		s.create(ctx, s.basics()...)
		process := startProcess(ctx, program, s.options(), "--leader-elect", "--read-bind-address", "127.0.0.1:0",
			"--metrics-bind-address", "127.0.0.1:0",
			"--health-probe-bind-address", "127.0.0.1:0")
		s.create(ctx, newTurns(1)...)
		s.awaitAll(ctx, 1, v1alpha1.TurnReasonCompleted)
		Eventually(process.Interrupt()).Should(gexec.Exit(0))
		started, _, _ := strings.Cut(string(process.Err.Contents()), `"msg":"Stopping"`)
		lines := strings.Split(strings.TrimSpace(started), "\n")
		Expect(len(lines)-1).To(BeNumerically("<=", 5), "the log before the manager stops:\n%s", started)
		Expect(started).To(ContainSubstring(`"msg":"Starting"`))

		lastLine := func(args ...string) string {
			GinkgoHelper()
			session, err := gexec.Start(exec.CommandContext(ctx, program, args...), GinkgoWriter, GinkgoWriter)
			Expect(err).NotTo(HaveOccurred())
			Eventually(session).WithTimeout(patience).Should(gexec.Exit(1))
			output := strings.TrimSpace(string(session.Err.Contents()))
			return output[strings.LastIndex(output, "\n")+1:]
		}
		absent := []string{
			"--kubeconfig", kubeconfig, "--data-dir", GinkgoT().TempDir(), "--namespace", "absent",
			"--health-probe-bind-address", "0", "--metrics-bind-address", "0",
		}
		for name, args := range map[string][]string{
			"the cluster": absent, "an option": {"--log-level", "loud"},
			"a flag": {"--no-such-flag"},
		} {
			var line struct{ Level, Msg, Error string }
			output := lastLine(args...)
			Expect(json.Unmarshal([]byte(output), &line)).To(Succeed(), "%s: %s", name, output)
			Expect(line.Level).To(Equal("error"), name)
			Expect(line.Error).NotTo(BeEmpty(), name)
		}
		Expect(lastLine(append(absent, "--log-format", "console")...)).To(
			And(ContainSubstring("ERROR"), ContainSubstring(`does not exist in the cluster`), Not(HavePrefix("{"))))
	}, SpecTimeout(6*patience))
})

var _ = Describe("A manager without permissions in a namespace that it should watch", func() {
	It("names the namespace and the remedy", func(ctx SpecContext) {
		s := newTestEnv(ctx, ``)
		unprivileged := rest.CopyConfig(apiConfig)
		unprivileged.Impersonate = rest.ImpersonationConfig{UserName: "nobody", Groups: []string{"system:authenticated"}}
		err := manager.Run(ctx, s.options(func(o *manager.Options) { o.WatchNamespaces = []string{"no-such-namespace"} }),
			unprivileged, (&logs{}).logger())
		Expect(err).To(MatchError(ContainSubstring(
			`--watch-namespaces: namespace "no-such-namespace" does not exist, or the manager lacks permissions in it: ` +
				`create the namespace`)))
	}, SpecTimeout(patience))

	It("warns about a namespace that does not exist yet", func(ctx SpecContext) {
		s := newTestEnv(ctx, ``)
		m := s.run(func(o *manager.Options) { o.WatchNamespaces = append(o.WatchNamespaces, "no-such-namespace") })
		Eventually(m.logs.String).Should(ContainSubstring("a namespace of --watch-namespaces does not exist"))
		s.create(ctx, s.basics()...)
		s.create(ctx, newTurns(1)...)
		s.awaitAll(ctx, 1, v1alpha1.TurnReasonCompleted)
	}, SpecTimeout(patience))
})

// buildManager builds the manager and returns the path of the program.
func buildManager(ctx SpecContext) string {
	GinkgoHelper()
	program, err := harness.Build(ctx, filepath.Join("..", ".."), GinkgoT().TempDir(), "manager")
	Expect(err).NotTo(HaveOccurred())
	return program
}

// startProcess starts a manager as a process. The end of the spec kills it.
func startProcess(ctx SpecContext, program string, o manager.Options, more ...string) *gexec.Session {
	GinkgoHelper()
	cmd := exec.CommandContext(ctx, program, append([]string{
		"--kubeconfig", kubeconfig, "--data-dir", o.DataDir, "--namespace", o.Namespace, "--executor-name", o.ExecutorName,
		"--watch-namespaces", o.Namespace, "--metrics-bind-address", "0", "--read-bind-address", "0", "--health-probe-bind-address", "0",
		"--probe-interval-seconds", strconv.Itoa(o.ProbeIntervalSeconds), "--shutdown-grace-seconds", "5",
		"--tool-allow-cidrs", strings.Join(o.ToolAllowCIDRs, ","),
	}, more...)...)
	session, err := gexec.Start(cmd, GinkgoWriter, GinkgoWriter)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { Eventually(session.Kill()).Should(gexec.Exit()) })
	return session
}
