package controller_test

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/manager"
	"github.com/capstan-dev/capstan/internal/metrics"
	"github.com/capstan-dev/capstan/internal/runtime/loop"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/runtime/turnrecord"
)

var _ = Describe("The alerts, the dashboard, the query of the autoscaler and the page of SLIs", func() {
	It("name only metrics and labels that a manager serves", func(ctx SpecContext) {
		// The time to the first chunk is a metric only if it is at least one millisecond.
		s := newTestEnv(ctx, `rules: [{fault: {latencyMilliseconds: 20}}]`)
		address := s.run(func(o *manager.Options) { o.MetricsBindAddress = "127.0.0.1:0" }).servedAt(ctx, "metrics")
		s.create(ctx, append(s.basics(), newBudget("month"))...)
		s.create(ctx, newTurns(1)...)
		s.create(ctx, build(newTurns(2)[1].(*v1alpha1.Turn), []func(*v1alpha1.Turn){func(t *v1alpha1.Turn) {
			t.Name, t.Spec.AgentRef.Name = "waits", "absent"
		}}))
		s.awaitStates(ctx, map[string]int{v1alpha1.TurnReasonCompleted: 1, v1alpha1.TurnReasonWaitingForAgent: 1})
		// Metrics that a successful Turn does not count.
		lost := &v1alpha1.Turn{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace}}
		metrics.JournalLost(lost, metrics.LossRerun)
		metrics.Parked(lost)
		metrics.Waited(s.namespace, "Queued", time.Second)
		metrics.Evaluated(s.namespace, "a", &turnrecord.Evaluation{Judge: "j", Score: "0.5"})
		metrics.EvaluationSkipped(s.namespace, "HourlyLimit")
		metrics.Requested(s.namespace, "a", &turn.Span{
			Kind: turn.SpanRequest, Request: &loop.Request{Provider: "p", Model: "m"}, Failure: "Timeout",
			Failed: &loop.FailedRequest{Kind: "Timeout"},
		})

		var series []string
		Eventually(func() (string, error) {
			client := http.Client{Timeout: 5 * time.Second}
			defer client.CloseIdleConnections()
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/metrics", http.NoBody)
			if err != nil {
				return "", err
			}
			response, err := client.Do(request)
			if err != nil {
				return "", err
			}
			defer response.Body.Close() //nolint:errcheck // because it was read
			body, err := io.ReadAll(response.Body)
			series = strings.Split(string(body), "\n")
			return string(body), err
		}).WithContext(ctx).Should(And(ContainSubstring("capstan_journal_namespace_used_bytes"),
			ContainSubstring(`reason="WaitingForAgent"`), ContainSubstring("capstan_cost_total"),
			ContainSubstring("capstan_budget_spent{")))

		named := 0
		files := filepath.Join("charts", "capstan", "files")
		for _, file := range []string{
			filepath.Join(files, "alerts.yaml"), filepath.Join(files, "dashboard.json"), filepath.Join("docs", "slis.md"),
			filepath.Join("charts", "capstan", "values.yaml"),
		} {
			text, err := os.ReadFile(filepath.Join("..", "..", file))
			Expect(err).NotTo(HaveOccurred())
			uses := regexp.MustCompile(`((?:capstan|gen_ai_client)_[a-z0-9_]+)(\{[^}]*\})?`)
			for _, use := range uses.FindAllStringSubmatch(string(text), -1) {
				name := use[1]
				if name == "capstan_turns_load" { // an adapter serves it
					continue
				}
				found := slices.IndexFunc(series, func(
					line string,
				) bool {
					return strings.HasPrefix(line, name+"{") || strings.HasPrefix(line, name+" ")
				})
				Expect(found).To(BeNumerically(">=", 0), "%s names %s, which the manager does not serve", file, name)
				for _, label := range regexp.MustCompile(`([a-z_]+)[!=]~?=?\\?"`).FindAllStringSubmatch(use[2], -1) {
					Expect(series[found]).To(ContainSubstring(label[1]+`="`), "%s: %s has no label %s", file, name, label[1])
				}
				named++
			}
		}
		Expect(named).To(BeNumerically(">", 20), "the files name more metrics than the search has found")
	}, SpecTimeout(patience))
})
