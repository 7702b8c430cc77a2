package examples_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/capstan-dev/capstan/internal/cli"
	"github.com/capstan-dev/capstan/internal/cli/exit"
	"github.com/capstan-dev/capstan/internal/cli/terminal"
	"github.com/capstan-dev/capstan/test/harness/harnesstest"
)

// commandLine runs capstan, and returns its exit code and what it prints to standard output and standard error.
func commandLine(ctx context.Context, args ...string) (code int, out, err string) {
	GinkgoHelper()
	var stdout, stderr bytes.Buffer
	code = cli.Execute(ctx, terminal.Environment{
		In: strings.NewReader(""), Out: &stdout, Err: &stderr, Now: time.Now,
		LookupEnv: func(string) (string, bool) { return "", false },
	}, args)
	return code, stdout.String(), stderr.String()
}

var _ = Describe("examples/backtest", func() {
	It("reports the Turns whose prompts change, replays them without calling a tool, and compares the answers", func(ctx SpecContext) {
		_, url := harnesstest.Model(GinkgoTB(), harnesstest.DemoRules(GinkgoTB(), root))
		_, tools := harnesstest.Tickets(GinkgoTB())
		directory := filepath.Join(GinkgoT().TempDir(), "backtest")
		Expect(os.CopyFS(directory, os.DirFS(filepath.Join(root, "examples", "backtest")))).To(Succeed())
		manifests, data := filepath.Join(directory, "manifests"), filepath.Join(directory, "data")
		rewrite(filepath.Join(manifests, "modelprovider.yaml"), strings.NewReplacer(demoURL, url))
		server := filepath.Join(manifests, "toolserver.yaml")
		rewrite(server, strings.NewReplacer("http://127.0.0.1:8090/mcp", tools))
		for _, name := range []string{"triage-printer", "triage-stripes"} {
			code, out, err := commandLine(ctx, "run", "-f", manifests, "--turn", name, "--data-dir", data)
			Expect(code).To(Equal(exit.OK), out+err)
			Expect(out).To(HavePrefix("Ticket "))
		}
		rewrite(server, strings.NewReplacer(tools, "http://127.0.0.1:1/mcp")) // nothing listens there

		args := []string{"backtest", "-f", filepath.Join(directory, "new-profile.yaml"), "--agent", "triage", "--data-dir", data}
		code, out, err := commandLine(ctx, args...)
		Expect(code).To(Equal(exit.OK), out+err)
		Expect(out).To(And(ContainSubstring("The prompts of 2 Turns change: triage-stripes, triage-printer:"),
			ContainSubstring("+Read the ticket before you answer, and say what happens next."),
			ContainSubstring("Prompts: 2 changed, 0 same, 0 cannot be made.")))

		code, out, err = commandLine(ctx, append(args, "--manifests", manifests, "--replay", "-o", "markdown")...)
		Expect(code).To(Equal(exit.OK), out+err)
		Expect(out).To(And(ContainSubstring("### Backtest passed: 2 of 2 Turns passed (100%)"),
			ContainSubstring("| triage-printer | Passed | Changed | 1 |"), ContainSubstring("helpful 0.95")))

		code, out, err = commandLine(ctx, "replay", "triage-printer", "--data-dir", data,
			"-f", filepath.Join(directory, "new-profile.yaml"), "--manifests", manifests)
		Expect(code).To(Equal(exit.OK), out+err)
		Expect(out).To(And(MatchRegexp(`(?m)^\+Ticket 1042 .* A technician will look at it\.$`), ContainSubstring("1 from the journal")))
	}, SpecTimeout(patience))
})
