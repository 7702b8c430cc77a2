package readapi_test

import (
	"cmp"
	"context"
	"encoding/json"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/cli"
	"github.com/capstan-dev/capstan/internal/cli/exit"
	"github.com/capstan-dev/capstan/internal/cli/terminal"
	"github.com/capstan-dev/capstan/internal/runtime/canonical"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/turnstatus"
)

// approverRules are the permissions of an approver.
var approverRules = []rbacv1.PolicyRule{
	{APIGroups: []string{"capstan.dev"}, Resources: []string{"turns"}, Verbs: []string{"get", "list"}},
	{APIGroups: []string{"capstan.dev"}, Resources: []string{"turns/log"}, Verbs: []string{"get"}},
	{APIGroups: []string{"capstan.dev"}, Resources: []string{"toolapprovals"}, Verbs: []string{"create", "get"}},
}

// atTerminal starts the command line at a terminal, and types the given input.
func atTerminal(ctx context.Context, typed string, args ...string) *command {
	c := &command{code: make(chan int, 1)}
	go func() {
		defer GinkgoRecover()
		c.code <- cli.Execute(ctx, terminal.Environment{
			Version: "v1.2.3", In: strings.NewReader(typed), Out: &c.out, Err: &c.err, LookupEnv: os.LookupEnv, Now: time.Now,
			InIsTerminal: true, ErrIsTerminal: true,
		}, args)
	}()
	return c
}

// createWaitingTurn creates a Turn that waits for approvals. arguments maps the ID of each pending call to its
// arguments, which the journal contains.
func (s *testEnv) createWaitingTurn(ctx context.Context, name string, arguments map[string]string) *v1alpha1.Turn {
	GinkgoHelper()
	t := s.turn(ctx, name)
	entries := story()[:1]
	for _, id := range []string{"call_1", "call_2"} {
		text, ok := arguments[id]
		if !ok {
			continue
		}
		hash, err := canonical.Hash(json.RawMessage(text))
		Expect(err).NotTo(HaveOccurred())
		entries = append(entries, entry(int64(len(entries)+1), journal.ApprovalRequested,
			`{"request":"request of `+id+`","step":1,"callID":"`+id+`","name":"close_ticket","toolServerUID":"server",`+
				`"schemaHash":"schema","arguments":`+text+`,"argumentsHash":"`+hash+`"}`))
		t.Status.PendingApprovals = append(t.Status.PendingApprovals, v1alpha1.PendingApproval{
			RequestID: "request of " + id, Step: 1, CallID: id, Name: "close_ticket", ToolServerUID: "server",
			SchemaHash: "schema", ArgumentsHash: hash,
			RequestTime: metav1.Now(), ExpiryTime: metav1.NewTime(time.Now().Add(time.Hour)),
		})
	}
	turnstatus.Wait(t, v1alpha1.TurnReasonAwaitingApproval, "a call waits", 0, time.Now())
	Expect(apiClient.Status().Update(ctx, t)).To(Succeed())
	s.append(ctx, t, entries...)
	return t
}

func resourceVersion(o client.Object) int {
	GinkgoHelper()
	version, err := strconv.Atoi(o.GetResourceVersion())
	Expect(err).NotTo(HaveOccurred())
	return version
}

// approvals returns the ToolApprovals of the namespace.
func (s *testEnv) approvals(ctx context.Context) []v1alpha1.ToolApproval {
	GinkgoHelper()
	var list v1alpha1.ToolApprovalList
	Expect(apiClient.List(ctx, &list, client.InNamespace(s.namespace))).To(Succeed())
	return list.Items
}

// as returns the flags for a user and the server of the test environment. The commands do not wait, because no manager
// runs that could continue a Turn.
func (s *testEnv) as(token string) []string {
	return []string{"--kubeconfig", s.kubeconfig(clientcmdapi.AuthInfo{Token: token}), "--server", s.server.url, "--wait-seconds", "0"}
}

const hostileArguments = `{"id":1042,"note":"done\u001b[2J\nhash     0000\u202e"}`

var _ = Describe("The commands approve and deny", func() {
	It("show a call, ask, and record the approver", func(ctx SpecContext) {
		s := newTestEnv(ctx)
		t := s.createWaitingTurn(ctx, "first", map[string]string{"call_1": hostileArguments})
		as := s.as(s.user(ctx, "ada", approverRules...))
		who := "system:serviceaccount:" + s.namespace + ":ada"

		By("doing nothing without a yes")
		for _, typed := range []string{"n\n", "\n", "maybe\nno\n", ""} {
			no := atTerminal(ctx, typed, append([]string{"approve", "first"}, as...)...).must(ctx, exit.Failed)
			Expect(no.err.String()).To(ContainSubstring("no decision was made about call_1"), typed)
		}
		Expect(s.approvals(ctx)).To(BeEmpty())

		By("showing the call without control characters, which a terminal would act on")
		yes := atTerminal(ctx, "y\n", append([]string{"approve", "first", "--reason", "as agreed"}, as...)...).must(ctx, exit.OK)
		Expect(yes.err.String()).To(And(
			ContainSubstring("  turn     "+s.namespace+"/first\n"), ContainSubstring(
				"  tool     close_ticket\n  server   server\n  schema   schema\n"), ContainSubstring("  call     call_1\n"),
			ContainSubstring("| {\n|   \"id\": 1042,\n|   \"note\": \"done\\u001b[2J\\nhash     0000\\u202e\"\n| }\n"),
			ContainSubstring("approve as "+who+"? [y/N] "), Not(ContainSubstring("\x1b")), Not(ContainSubstring("\u202e"))))
		Expect(yes.out.String()).To(Equal("call call_1 (close_ticket) of Turn " + s.namespace + "/first was approved by " + who + "\n"))
		made := s.approvals(ctx)
		Expect(made).To(HaveLen(1))
		Expect(made[0].Name).To(HavePrefix("first-"))
		Expect(made[0].OwnerReferences).To(ConsistOf(
			metav1.OwnerReference{APIVersion: "capstan.dev/v1alpha1", Kind: "Turn", Name: "first", UID: t.UID}))
		Expect(made[0].Spec).To(Equal(v1alpha1.ToolApprovalSpec{
			TurnRef: v1alpha1.ObjectReference{Name: "first"}, TurnUID: string(t.UID), RequestID: "request of call_1",
			Step: 1, CallID: "call_1",
			ToolName: "close_ticket", ToolServerUID: "server", SchemaHash: "schema",
			ArgumentsHash: t.Status.PendingApprovals[0].ArgumentsHash, Decision: v1alpha1.ApprovalApproved,
			Reason: "as agreed", DecidedBy: who,
			// Without permission to get the Agent, the command names all groups of the user.
			DecidedByGroups: []string{"system:serviceaccounts", "system:serviceaccounts:" + s.namespace, "system:authenticated"},
		}))

		By("reporting that the call has a decision already")
		again := atTerminal(ctx, "y\n", append([]string{"approve", "first"}, as...)...).must(ctx, exit.OK)
		Expect(again.out.String()).To(And(ContainSubstring("was already approved by "+who), ContainSubstring(": as agreed\n")))
		late := atTerminal(ctx, "y\n", append([]string{"deny", "first"}, as...)...).must(ctx, exit.Failed)
		Expect(late.err.String()).To(ContainSubstring("was already approved by " + who))
		Expect(s.approvals(ctx)).To(HaveLen(1))
	})

	It("decide about several calls: one by one, by name, or all together", func(ctx SpecContext) {
		s := newTestEnv(ctx)
		both := map[string]string{"call_1": `{"id":1}`, "call_2": `{"id":2}`}
		s.createWaitingTurn(ctx, "first", both)
		as := s.as(s.user(ctx, "ada", approverRules...))
		one := atTerminal(ctx, "n\ny\n", append([]string{"deny", "first", "-o", "name"}, as...)...).must(ctx, exit.Failed)
		Expect(one.out.String()).To(MatchRegexp(`^toolapproval\.capstan\.dev/first-[0-9a-f]{16}\n$`))
		Expect(s.approvals(ctx)).To(HaveExactElements(
			HaveField("Spec", And(HaveField("CallID", "call_2"), HaveField("Decision", v1alpha1.ApprovalDenied)))))

		unsaid := capstan(ctx, append([]string{"approve", "first", "-y"}, as...)...).must(ctx, exit.Usage)
		Expect(unsaid.err.String()).To(ContainSubstring(
			"has 2 pending calls: select one with --call, or all with --all: call_1 (close_ticket), call_2 (close_ticket)"))
		unasked := capstan(ctx, append([]string{"approve", "first"}, as...)...).must(ctx, exit.Usage)
		Expect(unasked.err.String()).To(ContainSubstring("there is no terminal at which to ask"))
		unasked = capstan(ctx, append([]string{"approve", "first", "--call", "call_1"}, as...)...).must(ctx, exit.Usage)
		Expect(unasked.err.String()).To(ContainSubstring("there is no terminal at which to ask"))
		unknown := capstan(ctx, append([]string{"approve", "first", "--call", "call_3", "-y"}, as...)...).must(ctx, exit.Failed)
		Expect(unknown.err.String()).To(ContainSubstring(
			`has no pending call "call_3"; its pending calls are call_1 (close_ticket), call_2`))
		named := capstan(ctx, append([]string{"approve", "first", "--call", "call_1", "-y", "-o", "json"}, as...)...).must(ctx, exit.OK)
		var made v1alpha1.ToolApproval
		Expect(json.Unmarshal([]byte(named.out.String()), &made)).To(Succeed())
		Expect(made.Kind + "/" + made.Spec.CallID).To(Equal("ToolApproval/call_1"))

		s.createWaitingTurn(ctx, "second", both)
		all := atTerminal(ctx, "y\n", append([]string{"approve", "second", "--all"}, as...)...).must(ctx, exit.OK)
		Expect(strings.Count(all.err.String(), "[y/N]")).To(Equal(1))
		Expect(strings.Count(all.out.String(), " was approved by ")).To(Equal(2))
	})

	It("approve no call that they cannot show, unless a flag allows it", func(ctx SpecContext) {
		s := newTestEnv(ctx)
		t := s.createWaitingTurn(ctx, "first", map[string]string{"call_1": `{"id":1}`})
		other, err := canonical.Hash(json.RawMessage(`{"id":2}`))
		Expect(err).NotTo(HaveOccurred())
		t.Status.PendingApprovals[0].ArgumentsHash = other
		Expect(apiClient.Status().Update(ctx, t)).To(Succeed())
		as := s.as(s.user(ctx, "ada", approverRules...))
		for _, args := range [][]string{{}, {"-y"}} {
			swapped := atTerminal(ctx, "y\n", append(append([]string{"approve", "first"}, args...), as...)...).must(ctx, exit.Failed)
			Expect(swapped.err.String()).To(And(ContainSubstring("the journal has no arguments with the hash in the Turn's status"),
				ContainSubstring("add --without-arguments")))
		}
		Expect(s.approvals(ctx)).To(BeEmpty())

		By("reporting why the arguments cannot be read")
		blind := s.as(s.user(ctx, "eve", approverRules[0], approverRules[2]))
		unread := atTerminal(ctx, "y\n", append([]string{"approve", "first"}, blind...)...).must(ctx, exit.Failed)
		Expect(unread.err.String()).To(And(ContainSubstring("the arguments of call_1 cannot be read, so the call was not approved"),
			ContainSubstring("the ClusterRole team-capstan-turn-reader"), ContainSubstring("add --without-arguments")))
		Expect(s.approvals(ctx)).To(BeEmpty())
		atTerminal(ctx, "y\n", append([]string{"deny", "first"}, blind...)...).must(ctx, exit.OK)
		s.createWaitingTurn(ctx, "second", map[string]string{"call_1": `{"id":1}`})
		unseen := atTerminal(ctx, "y\n", append([]string{"approve", "second", "--without-arguments"}, blind...)...).must(ctx, exit.OK)
		Expect(unseen.err.String()).To(ContainSubstring("note: the arguments of call_1 cannot be shown: "))
		s.createWaitingTurn(ctx, "third", map[string]string{"call_1": `{"id":1}`})
		silent := capstan(ctx, append([]string{"approve", "third", "-y"}, blind...)...).must(ctx, exit.Failed)
		Expect(silent.err.String()).To(And(ContainSubstring("the call was not approved"), ContainSubstring("add --without-arguments")))
		capstan(ctx, append([]string{"approve", "third", "-y", "--without-arguments"}, blind...)...).must(ctx, exit.OK)
	})

	It("wait until the Turn uses the decision, and fail with the reason if it does not", func(ctx SpecContext) {
		s := newTestEnv(ctx)
		t := s.createWaitingTurn(ctx, "first", map[string]string{"call_1": `{"id":1}`})
		as := append(s.as(s.user(ctx, "ada", approverRules...)), "--wait-seconds", "600")
		latest := func() v1alpha1.ToolApproval {
			GinkgoHelper()
			return slices.MaxFunc(s.approvals(ctx), func(a, b v1alpha1.ToolApproval) int {
				return cmp.Compare(resourceVersion(&a), resourceVersion(&b))
			})
		}
		const why = "the API server has checked who decides only since 2026-11-22T04:01:42Z (ValidatingAdmissionPolicy p): decide again"
		var names []string
		for range 2 { // each command makes a new decision, because the Turn does not use the previous one
			approve := atTerminal(ctx, "y\n", append([]string{"approve", "first"}, as...)...)
			Eventually(ctx, func() []v1alpha1.ToolApproval { return s.approvals(ctx) }).Should(HaveLen(len(names) + 1))
			Eventually(ctx, approve.out.String).Should(ContainSubstring("was approved by "), "the command has created its decision")
			Consistently(approve.code).ShouldNot(Receive())
			name := latest().Name
			names = append(names, name)
			unused := "ToolApproval " + name + " is not used: "
			if len(names) > 1 {
				unused = "ToolApprovals " + strings.Join(names, ", ") + " are not used: "
			}
			turnstatus.Wait(t, v1alpha1.TurnReasonAwaitingApproval, "a call waits; "+unused+why, 0, time.Now())
			Expect(apiClient.Status().Update(ctx, t)).To(Succeed())
			approve.must(ctx, exit.Failed)
			Expect(approve.err.String()).To(ContainSubstring("the Turn does not use ToolApproval " + name + ": " + why))
		}

		By("succeeding when the Turn continues")
		approve := atTerminal(ctx, "y\n", append([]string{"approve", "first"}, as...)...)
		Eventually(ctx, func() []v1alpha1.ToolApproval { return s.approvals(ctx) }).Should(HaveLen(len(names) + 1))
		t.Status.PendingApprovals = nil
		turnstatus.Wait(t, v1alpha1.TurnReasonQueued, "continues", 0, time.Now())
		Expect(apiClient.Status().Update(ctx, t)).To(Succeed())
		approve.must(ctx, exit.OK)

		By("reporting that the Turn has not continued yet")
		s.createWaitingTurn(ctx, "second", map[string]string{"call_1": `{"id":1}`})
		slow := atTerminal(ctx, "y\n", append([]string{"deny", "second"}, append(as, "--wait-seconds", "1")...)...).must(ctx, exit.OK)
		Expect(slow.err.String()).To(ContainSubstring(
			"note: the Turn has not continued within 1 s; its state is AwaitingApproval: a call waits\n"))
	})

	It("use the token of --token for all requests", func(ctx SpecContext) {
		s := newTestEnv(ctx)
		s.createWaitingTurn(ctx, "first", map[string]string{"call_1": `{"id":1}`})
		admin := s.kubeconfig(clientcmdapi.AuthInfo{ClientCertificateData: apiConfig.CertData, ClientKeyData: apiConfig.KeyData})
		token := s.user(ctx, "ada", approverRules...)
		atTerminal(ctx, "y\n", "approve", "first", "--kubeconfig", admin, "--server", s.server.url, "--token", token,
			"--wait-seconds", "0").must(ctx, exit.OK)
		Expect(s.approvals(ctx)).To(HaveExactElements(HaveField("Spec.DecidedBy", "system:serviceaccount:"+s.namespace+":ada")))
	})

	It("report errors", func(ctx SpecContext) {
		s := newTestEnv(ctx)
		s.createWaitingTurn(ctx, "first", map[string]string{"call_1": `{"id":1}`})
		s.turn(ctx, "busy")
		end(ctx, s.turn(ctx, "over"))
		parent := s.turn(ctx, "parent")
		parent.Status.AwaitedTurns = []string{"parent-1"}
		turnstatus.Wait(parent, v1alpha1.TurnReasonWaitingForSubAgent, "a child has not ended", 0, time.Now())
		Expect(apiClient.Status().Update(ctx, parent)).To(Succeed())
		reader := s.as(s.user(ctx, "reader", approverRules[0], approverRules[1]))
		user := "system:serviceaccount:" + s.namespace + ":reader"
		for _, tc := range []struct {
			turn, want string
			code       int
		}{
			{"first", `"system:serviceaccount:` + s.namespace + `:reader" may not decide about the call call_1`, exit.Failed},
			{"first", "kubectl create rolebinding approver-" + canonical.Sum([]byte(user))[:8] +
				" -n " + s.namespace + " --clusterrole $(kubectl get clusterroles -l capstan.dev/role=approver -o " +
				"jsonpath='{.items[0].metadata.name}') --user '" + user + "'", exit.Failed},
			{"busy", "Turn " + s.namespace + "/busy has no pending call: its state is not known yet", exit.Failed},
			{"parent", "has no pending call: it waits for its sub-agents, which may have pending calls: see parent-1", exit.Failed},
			{"over", "has no pending call: it has ended (Cancelled)", exit.Failed},
			{"absent", "there is no Turn " + s.namespace + "/absent", exit.Failed},
			{"a/b/c", `"a/b/c" must be NAME or NAMESPACE/NAME of a Turn`, exit.Usage},
		} {
			got := atTerminal(ctx, "y\n", append([]string{"approve", tc.turn}, reader...)...).must(ctx, tc.code)
			Expect(got.err.String()).To(ContainSubstring(tc.want))
		}
		long := capstan(ctx, append([]string{"deny", "first", "-y", "--reason", strings.Repeat("x", 1025)}, reader...)...).must(ctx,
			exit.Usage)
		Expect(long.err.String()).To(ContainSubstring("--reason has 1025 characters: it must have at most 1024"))
		Expect(s.approvals(ctx)).To(BeEmpty())
	})

	It("complete the names of Turns that wait", func(ctx SpecContext) {
		s := newTestEnv(ctx)
		s.createWaitingTurn(ctx, "first", map[string]string{"call_1": `{"id":1}`})
		s.turn(ctx, "second")
		as := s.as(s.user(ctx, "ada", approverRules...))
		for _, verb := range []string{"approve", "deny"} {
			got := capstan(ctx, append(append([]string{"__complete", verb}, as...), "")...).must(ctx, exit.OK)
			Expect(got.out.String()).To(HavePrefix("first\n:"), verb)
		}
	})
})

var _ = Describe("The command cancel", func() {
	It("cancels a Turn once, and reports its earlier state", func(ctx SpecContext) {
		s := newTestEnv(ctx)
		t := s.turn(ctx, "first")
		end(ctx, s.turn(ctx, "over"))
		rule := rbacv1.PolicyRule{APIGroups: []string{"capstan.dev"}, Resources: []string{"turns"}, Verbs: []string{"get", "list", "patch"}}
		as := []string{"--kubeconfig", s.kubeconfig(clientcmdapi.AuthInfo{Token: s.user(ctx, "ada", rule)})}
		done := capstan(ctx, append([]string{"cancel", "first"}, as...)...).must(ctx, exit.OK)
		Expect(done.out.String()).To(Equal("Turn " + s.namespace + "/first is cancelled; its state was not set yet\n"))
		Expect(apiClient.Get(ctx, client.ObjectKeyFromObject(t), t)).To(Succeed())
		Expect(t.Spec.DesiredState).To(Equal(v1alpha1.DesiredStateCancelled))
		again := capstan(ctx, append([]string{"cancel", "first", "-o", "name"}, as...)...).must(ctx, exit.OK)
		Expect(again.out.String()).To(Equal("turn.capstan.dev/first\n"))
		yaml := capstan(ctx, append([]string{"cancel", "first", "-o", "yaml"}, as...)...).must(ctx, exit.OK)
		Expect(yaml.out.String()).To(ContainSubstring("kind: Turn\n"))
		over := capstan(ctx, append([]string{"cancel", "over"}, as...)...).must(ctx, exit.Failed)
		Expect(over.err.String()).To(ContainSubstring("has ended already (Cancelled): there is nothing to cancel"))
		offered := capstan(ctx, append(append([]string{"__complete", "cancel"}, as...), "")...).must(ctx, exit.OK)
		Expect(offered.out.String()).To(HavePrefix("first\n:"))

		By("reporting which permission is missing")
		s.turn(ctx, "second")
		viewer := []string{"--kubeconfig", s.kubeconfig(clientcmdapi.AuthInfo{Token: s.user(ctx, "viewer", approverRules[0])})}
		refused := capstan(ctx, append([]string{"cancel", "second"}, viewer...)...).must(ctx, exit.Failed)
		Expect(refused.err.String()).To(ContainSubstring("this requires permission to patch turns.capstan.dev"))
	})
})
