package controller_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gexec"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/hack/fakemodel/server"
	"github.com/capstan-dev/capstan/internal/manager"
)

var _ = Describe("A manager process that is killed", func() {
	It("takes its Turns up again when it is started under the same name", func(ctx SpecContext) {
		program := filepath.Join(GinkgoT().TempDir(), "manager")
		build, err := gexec.Start(exec.CommandContext(ctx, "go", "build", "-o", program, "../../cmd/manager"), GinkgoWriter, GinkgoWriter)
		Expect(err).NotTo(HaveOccurred())
		Eventually(build).WithTimeout(4*patience).Should(gexec.Exit(0), "the manager must build")

		s := newStage(ctx, `rules: [{fault: {latencyMilliseconds: 4000}}]`)
		o := s.options()
		s.create(ctx, s.basics()...)
		const turns = 20
		first := startProcess(ctx, program, o)
		s.create(ctx, newTurns(turns)...)
		s.inFlight(ctx, turns)
		Eventually(first.Kill()).Should(gexec.Exit(137))
		s.inFlight(ctx, 0)
		Expect(s.states(ctx)).To(Equal(map[string]int{v1alpha1.TurnReasonRunning: turns}), "a killed process tidies nothing up")

		second := startProcess(ctx, program, o)
		for _, t := range s.allReach(ctx, turns, v1alpha1.TurnReasonCompleted) {
			Expect(t.Status.Executor).To(beBound(o.ExecutorName, 2))
			Expect(t.Status.Steps.Resumes).To(BeEquivalentTo(1))
		}
		Expect(s.fake.Stats().ByOutcome).To(Equal(map[server.Outcome]int64{
			server.OutcomeCancelled: turns, server.OutcomeAnswered: turns,
		}))
		Eventually(second.Interrupt()).Should(gexec.Exit(0), "it must stop without an error when it is asked to")
	}, SpecTimeout(6*patience))
})

// startProcess starts a manager as a process; the end of the spec kills it.
func startProcess(ctx SpecContext, program string, o manager.Options) *gexec.Session {
	GinkgoHelper()
	kubeconfig := filepath.Join(o.DataDir, "kubeconfig")
	Expect(os.WriteFile(kubeconfig, controlPlane.KubeConfig, 0o600)).To(Succeed())
	cmd := exec.CommandContext(ctx, program,
		"--kubeconfig", kubeconfig, "--data-dir", o.DataDir, "--namespace", o.Namespace, "--executor-name", o.ExecutorName,
		"--watch-namespaces", o.Namespace, "--metrics-bind-address", "0", "--read-bind-address", "0", "--health-probe-bind-address", "0",
		"--probe-interval-seconds", strconv.Itoa(o.ProbeIntervalSeconds), "--shutdown-grace-seconds", "5",
		"--tool-allow-cidrs", strings.Join(o.ToolAllowCIDRs, ","))
	session, err := gexec.Start(cmd, GinkgoWriter, GinkgoWriter)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(func() { Eventually(session.Kill()).Should(gexec.Exit()) })
	return session
}
