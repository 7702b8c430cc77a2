package controller_test

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gexec"
	"golang.org/x/sys/unix"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/test/harness"
)

// The limit of the size of the process's files takes the place of a full disk, because it needs no permission: SQLite
// can write what fits into its files, and nothing else.
var _ = Describe("A manager whose disk is full", func() {
	It("says so, keeps the Turns, and continues by itself when there is space", func(ctx SpecContext) {
		program := buildManager(ctx)
		const turns = 5
		random := make([]byte, 600<<10)
		_, _ = rand.Read(random) // never fails
		s := newTestEnv(ctx, fmt.Sprintf(`rules: [{when: {contains: small}}, {reply: {text: "%s", chunkChars: 65536}}]`,
			base64.StdEncoding.EncodeToString(random))) // no compression makes it small
		o := s.options()
		health, err := harness.FreeAddress(ctx)
		Expect(err).NotTo(HaveOccurred())
		s.create(ctx, s.basics()...)
		process := startProcess(ctx, program, o, "--health-probe-bind-address", health)
		probe := func(path string) string {
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+health+path, http.NoBody)
			Expect(err).NotTo(HaveOccurred())
			response, err := http.DefaultClient.Do(request)
			if err != nil {
				return err.Error()
			}
			defer func() { _ = response.Body.Close() }()
			body, err := io.ReadAll(response.Body)
			Expect(err).NotTo(HaveOccurred())
			return response.Status + "\n" + string(body)
		}
		s.create(ctx, newTurn("small"))
		s.awaitState(ctx, "small", v1alpha1.TurnReasonCompleted)
		Eventually(probe).WithArguments("/readyz").WithContext(ctx).Should(HavePrefix("200 OK"))

		release := s.hold()
		s.create(ctx, newTurns(turns)...)
		s.awaitHeld(ctx, turns)
		info, err := os.Stat(filepath.Join(o.DataDir, "journal.db-wal"))
		Expect(err).NotTo(HaveOccurred())
		var before unix.Rlimit
		Expect(unix.Prlimit(process.Command.Process.Pid, unix.RLIMIT_FSIZE, nil, &before)).To(Succeed())
		full := unix.Rlimit{Cur: uint64(info.Size()), Max: before.Max}
		Expect(unix.Prlimit(process.Command.Process.Pid, unix.RLIMIT_FSIZE, &full, nil)).To(Succeed())
		release() // so that the answers, which were paid for, meet a full disk
		Eventually(probe).WithArguments("/readyz").WithContext(ctx).Should(ContainSubstring("[-]store failed"))
		Expect(probe("/readyz/store")).To(And(HavePrefix("500"), ContainSubstring("check the volume and its limits")))
		Expect(s.fake.Stats().Requests).To(BeEquivalentTo(1 + turns))
		Eventually(func() string { return string(process.Err.Contents()) }).WithContext(ctx).Should(And(
			ContainSubstring("Failed to write the journal of a turn, trying again"),
			ContainSubstring("Turns wait for it, and continue when it works again, and this manager is not ready")))
		Expect(s.states(ctx)).To(Equal(map[string]int{v1alpha1.TurnReasonCompleted: 1, v1alpha1.TurnReasonRunning: turns}))

		Expect(unix.Prlimit(process.Command.Process.Pid, unix.RLIMIT_FSIZE, &before, nil)).To(Succeed())
		for _, t := range s.awaitAll(ctx, 1+turns, v1alpha1.TurnReasonCompleted) {
			Expect(t.Status.Executor).To(beBound(o.ExecutorName, 1), "the run itself must continue")
			Expect(t.Status.Steps.Resumes).To(BeZero())
		}
		Expect(s.fake.Stats().Requests).To(BeEquivalentTo(1+turns), "no reply is paid for twice")
		Eventually(probe).WithArguments("/readyz").WithContext(ctx).Should(HavePrefix("200 OK"))
		Expect(string(process.Err.Contents())).To(ContainSubstring("the store of the journal works again"))
		Eventually(process.Interrupt()).Should(gexec.Exit(0))
	}, SpecTimeout(4*patience))
})
