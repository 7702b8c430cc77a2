package readapi_test

import (
	"context"
	"fmt"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	rbacv1 "k8s.io/api/rbac/v1"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/cli/exit"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/turnstatus"
)

// undoTurns returns the Turns of the namespace that undo calls.
func (s *testEnv) undoTurns(ctx context.Context) []v1alpha1.Turn {
	GinkgoHelper()
	var list v1alpha1.TurnList
	Expect(apiClient.List(ctx, &list, client.InNamespace(s.namespace))).To(Succeed())
	var all []v1alpha1.Turn
	for _, t := range list.Items {
		if t.Spec.Undo != nil {
			all = append(all, t)
		}
	}
	return all
}

var _ = Describe("The command undo", func() {
	It("shows the calls, asks, creates a Turn, and waits for its end", func(ctx SpecContext) {
		s := newTestEnv(ctx)
		t := s.turn(ctx, "first")
		s.append(ctx, t,
			entry(1, journal.RunStarted, fmt.Sprintf(`{"namespace":%q,"name":"first","agent":%q}`, s.namespace, t.Spec.AgentRef.Name)),
			entry(2, journal.ToolIntended, `{"step":1,"callID":"call_1","name":"open","arguments":{},"effect":"Destructive","attempt":1}`),
			entry(3, journal.ToolFinished, `{"step":1,"callID":"call_1","name":"open","outcome":"Succeeded","content":"",`+
				`"undo":{"server":"desk","tool":"close","arguments":{"id":"T-1"}}}`),
			entry(4, journal.Finalized, `{"stop":"Completed","message":""}`))
		token := s.user(ctx, "ada", append(approverRules, rbacv1.PolicyRule{
			APIGroups: []string{"capstan.dev"}, Resources: []string{"turns"}, Verbs: []string{"create"},
		})...)
		as := func(args ...string) []string {
			kubeconfig := s.kubeconfig(clientcmdapi.AuthInfo{Token: token})
			return append([]string{"undo", "first", "--kubeconfig", kubeconfig, "--server", s.server.url},
				args...)
		}

		By("doing nothing without a yes")
		shown := capstan(ctx, as("--dry-run")...).must(ctx, exit.OK)
		Expect(shown.out.String()).To(Equal("Calls of Turn " + s.namespace + "/first, the newest first:\n  open (call call_1)\n" +
			"    undo with close of ToolServer desk\n| {\n|   \"id\": \"T-1\"\n| }\n"))
		Expect(atTerminal(ctx, "n\n", as()...).must(ctx, exit.Failed).err.String()).To(ContainSubstring("nothing was undone"))
		Expect(s.undoTurns(ctx)).To(BeEmpty())

		By("leaving a call to a Turn that undoes it, until that Turn is deleted")
		other := s.turn(ctx, "other")
		s.append(ctx, t, entry(5, journal.UndoBegun,
			fmt.Sprintf(`{"step":1,"callID":"call_1","turnUID":%q,"turn":"other","repeatable":true}`, other.UID)))
		blocked := capstan(ctx, as("--dry-run")...).must(ctx, exit.OK)
		Expect(blocked.out.String()).To(ContainSubstring(`cannot be undone: the Turn "other" undoes the call`))
		Expect(apiClient.Delete(ctx, other)).To(Succeed())
		Expect(capstan(ctx, as("--dry-run")...).must(ctx, exit.OK).out.String()).To(Equal(shown.out.String()))
		s.append(ctx, t, entry(6, journal.UndoEnded, fmt.Sprintf(`{"step":1,"callID":"call_1","turnUID":%q,"turn":"other"}`, other.UID)))

		By("creating the Turn and waiting")
		c := atTerminal(ctx, "y\n", as("--wait-seconds", "120")...)
		Eventually(s.undoTurns).WithArguments(ctx).WithTimeout(time.Minute).Should(HaveLen(1))
		made := s.undoTurns(ctx)[0]
		Expect(made.Name).To(HavePrefix("first-undo-"))
		Expect(made.Spec.AgentRef).To(Equal(t.Spec.AgentRef))
		Expect(made.Requester()).To(HaveSuffix(":ada"), "a policy may require that users name themselves")
		Expect(made.Spec.Undo).To(Equal(&v1alpha1.TurnUndo{TurnUID: string(t.UID)}))
		turnstatus.Finish(&made, &turn.Result{
			Stop: turn.StopUndoIncomplete, Message: "1 of 1 calls", Text: "open (call call_1): not undone: x\n",
		}, time.Now())
		Expect(apiClient.Status().Update(ctx, &made)).To(Succeed())
		done := c.must(ctx, exit.Failed)
		Expect(done.out.String()).To(Equal("open (call call_1): not undone: x\n"))
		Expect(done.err.String()).To(ContainSubstring("UndoIncomplete: 1 of 1 calls"))

		By("reporting which permission is missing")
		token = s.user(ctx, "grace", approverRules...)
		Expect(capstan(ctx, as("--yes")...).must(ctx, exit.Failed).err.String()).To(
			ContainSubstring("this requires permission to create turns.capstan.dev"))
		token = s.user(ctx, "alan", rbacv1.PolicyRule{
			APIGroups: []string{"capstan.dev"}, Resources: []string{"turns/log"}, Verbs: []string{"get"},
		}, rbacv1.PolicyRule{APIGroups: []string{"capstan.dev"}, Resources: []string{"turns"}, Verbs: []string{"create"}})
		Expect(capstan(ctx, as("--yes", "--wait-seconds", "3600")...).must(ctx, exit.Failed).err.String()).To(And(
			MatchRegexp(`capstan: Turn \S+: it was created and continues, but you may not read it: .* cannot get resource "turns"`),
			HaveSuffix("; to wait for its end requires permission to get turns.capstan.dev\n")))
	})
})
