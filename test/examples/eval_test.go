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

// demoURL is the address of the model in the examples.
const demoURL = "http://127.0.0.1:8089/v1"

// evaluate runs capstan eval over a copy of examples/eval with the model of the demo. change replaces texts of the
// cases.
func evaluate(ctx context.Context, change *strings.Replacer, args ...string) (code int, out, err string) {
	GinkgoHelper()
	_, url := harnesstest.Model(GinkgoTB(), harnesstest.DemoRules(GinkgoTB(), root))
	directory := filepath.Join(GinkgoT().TempDir(), "eval")
	Expect(os.CopyFS(directory, os.DirFS(filepath.Join(root, "examples", "eval")))).To(Succeed())
	provider, cases := filepath.Join(directory, "manifests", "modelprovider.yaml"), filepath.Join(directory, "cases.yaml")
	rewrite(provider, strings.NewReplacer(demoURL, url))
	rewrite(cases, change)
	var stdout, stderr bytes.Buffer
	code = cli.Execute(ctx, terminal.Environment{
		In: strings.NewReader(""), Out: &stdout, Err: &stderr, Now: time.Now,
		LookupEnv: func(string) (string, bool) { return "", false },
	}, append([]string{"eval", "-f", cases}, args...))
	return code, stdout.String(), stderr.String()
}

func rewrite(path string, change *strings.Replacer) {
	GinkgoHelper()
	text, err := os.ReadFile(path)
	Expect(err).NotTo(HaveOccurred())
	changed := change.Replace(string(text))
	Expect(os.WriteFile(path, []byte(changed), 0o600)).To(Succeed())
}

var _ = Describe("examples/eval", func() {
	It("passes with the model of the demo", func(ctx SpecContext) {
		code, out, err := evaluate(ctx, strings.NewReplacer())
		Expect(code).To(Equal(exit.OK), out+err)
		Expect(out).To(ContainSubstring("2 of 2 cases passed (100%)"))
		Expect(out).To(ContainSubstring("faithful 0.95, polite 0.95"))
	})

	It("fails if an answer does not meet an expectation", func(ctx SpecContext) {
		code, out, _ := evaluate(ctx, strings.NewReplacer(`"30 days"`, `"14 days"`), "-o", "markdown")
		Expect(code).To(Equal(exit.Failed))
		Expect(out).To(ContainSubstring(`the answer must contain "14 days"`))
	})
})
