package charts_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/approvals"
	"github.com/capstan-dev/capstan/test/harness/harnesstest"
)

const mutationKind = "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy"

// TestHelmKeepsPoliciesWithCRDs checks that the policies stay as long as the objects whose authors they verify.
func TestHelmKeepsPoliciesWithCRDs(t *testing.T) {
	for keep, want := range map[string]string{"true": "keep", "false": ""} {
		objects := renderForAPI(t, mutationKind, "crds.install=false,crds.keep="+keep, "agentUsePolicy.install=true")
		policies := map[string]string{}
		for _, o := range objects {
			kind := o.GetObjectKind().GroupVersionKind().Kind
			if object, ok := o.(client.Object); ok && strings.Contains(kind, "AdmissionPolicy") {
				policies[kind+"/"+object.GetName()] = object.GetAnnotations()["helm.sh/resource-policy"]
			}
		}
		if len(policies) != 10 {
			t.Errorf("crds.keep=%s: got %d policies and bindings, want 10", keep, len(policies))
		}
		for name, got := range policies {
			if got != want {
				t.Errorf("crds.keep=%s: resource-policy of %s = %q, want %q", keep, name, got, want)
			}
		}
	}
}

// installed returns the UIDs of all policies for admission and their bindings, by their kinds and names. An object that
// was deleted and created again has another UID.
func (c cluster) installed(t *testing.T) map[string]string {
	t.Helper()
	out := c.run(t, kubectlPath, "get", "validatingadmissionpolicies,validatingadmissionpolicybindings,"+
		"mutatingadmissionpolicies,mutatingadmissionpolicybindings", "-o",
		`jsonpath={range .items[*]}{.kind}/{.metadata.name} {.metadata.uid}{"\n"}{end}`)
	policies := map[string]string{}
	for line := range strings.Lines(out) {
		if name, uid, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			policies[name] = uid
		}
	}
	return policies
}

// of returns the names of policies and bindings, as kind/name, for the names of policies without their prefix.
func of(prefix string, validating, mutating []string) []string {
	var names []string
	for _, name := range validating {
		names = append(names, "ValidatingAdmissionPolicy/"+prefix+name, "ValidatingAdmissionPolicyBinding/"+prefix+name)
	}
	for _, name := range mutating {
		names = append(names, "MutatingAdmissionPolicy/"+prefix+name, "MutatingAdmissionPolicyBinding/"+prefix+name)
	}
	slices.Sort(names)
	return names
}

// checkPolicies checks which policies and bindings exist.
func (c cluster) checkPolicies(t *testing.T, after string, want []string) {
	t.Helper()
	if diff := cmp.Diff(want, slices.Sorted(maps.Keys(c.installed(t)))); diff != "" {
		t.Errorf("policies and bindings after %s (-want +got):\n%s", after, diff)
	}
}

// unchecked returns why a manager would not trust the requester of a Turn that was created at this time.
func (c cluster) unchecked(ctx context.Context, t *testing.T, policy string, created time.Time) string {
	t.Helper()
	api := c.clients(t).AdmissionregistrationV1()
	why, err := approvals.NewRequesterPolicy(policy, api, time.Now, logr.Discard()).CheckRequester(ctx, created)
	if err != nil {
		t.Fatal(err)
	}
	return why
}

// turnOf returns a Turn with a requester.
func turnOf(name, requester string) *v1alpha1.Turn {
	turn := &v1alpha1.Turn{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	turn.Spec.AgentRef.Name = "support"
	turn.Spec.Message = "Hello"
	if requester != "" {
		turn.Spec.RequestedBy = &v1alpha1.Requester{Username: requester}
	}
	return turn
}

// TestRequestersCountAfterReinstall removes a release and installs it again. The requester of a Turn from before must
// still count, because the policy that has verified it was in force all the time. The policies that stay must refuse
// nothing that a later manager does, with whichever ServiceAccount.
func TestRequestersCountAfterReinstall(t *testing.T) {
	c := startCluster(t)
	install := func(args ...string) {
		t.Helper()
		c.run(t, helmPath, append([]string{
			"install", "capstan", "capstan", "--namespace", "capstan-system", "--create-namespace",
		}, args...)...)
	}
	uninstall := func() {
		t.Helper()
		// No controller creates the Pod of a Job here. make e2e removes the release with its hook.
		c.run(t, helmPath, "uninstall", "capstan", "--namespace", "capstan-system", "--no-hooks")
	}
	install()
	// The spec of the policy has changed once, so any later change of the policy is the time since which it counts.
	const required = "requesterPolicy.required=true"
	c.run(t, helmPath, "upgrade", "capstan", "capstan", "--namespace", "capstan-system", "--set", required)
	c.run(t, kubectlPath, "wait", "--for=condition=Established", "crd", "-l", "app.kubernetes.io/part-of=capstan", "--timeout=30s")
	admin := c.client(t, c.Config)
	const policy = "capstan-system-capstan-requesters"
	if err := wait.PollUntilContextTimeout(t.Context(), 250*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		return c.unchecked(ctx, t, policy, time.Now()) == "", nil
	}); err != nil {
		t.Fatal(err)
	}
	before := turnOf("before", "")
	c.createTurn(t, admin, before)
	if before.Requester() == "" {
		t.Fatal("the API server has set no requester")
	}
	if why := c.unchecked(t.Context(), t, policy, before.CreationTimestamp.Time); why != "" {
		t.Fatalf("the requester does not count before helm uninstall: %s", why)
	}
	kept := c.installed(t)

	uninstall()
	if diff := cmp.Diff(kept, c.installed(t)); diff != "" {
		t.Errorf("policies after helm uninstall (-before +after):\n%s", diff)
	}
	// Without a manager, an administrator can still create, change, finish and delete Turns, but not forge a requester.
	between := turnOf("between", "")
	c.createTurn(t, admin, between)
	between.Labels = map[string]string{"changed": "true"}
	if err := admin.Update(t.Context(), between); err != nil {
		t.Errorf("update of a Turn without a manager: %v", err)
	}
	if err := admin.Status().Update(t.Context(), between); err != nil {
		t.Errorf("update of the status of a Turn without a manager: %v", err)
	}
	if err := admin.Delete(t.Context(), between); err != nil {
		t.Errorf("deletion of a Turn without a manager: %v", err)
	}
	err := admin.Create(t.Context(), turnOf("forged", "ada"))
	if err == nil || !strings.Contains(err.Error(), "you cannot ask as another user") {
		t.Errorf("creation of a Turn in another user's name without a manager: %v, want it refused", err)
	}

	install("--set", "serviceAccount.name=another,"+required)
	if diff := cmp.Diff(kept, c.installed(t)); diff != "" {
		t.Errorf("policies after helm install (-before +after):\n%s", diff)
	}
	if why := c.unchecked(t.Context(), t, policy, before.CreationTimestamp.Time); why != "" {
		t.Errorf("the requester does not count after helm uninstall and helm install: %s", why)
	}
	c.checkManagerOf(t, "system:serviceaccount:capstan-system:another", before)
	uninstall()

	// A release of another namespace gets the CRDs with the command of the chart's README. It has policies of its own,
	// and the kept ones must not get in its way until they are deleted, also with a command of the README.
	c.shell(t, adoption(t, "capstan", "elsewhere"))
	c.run(t, helmPath, "install", "capstan", "capstan", "--namespace", "elsewhere", "--create-namespace")
	c.checkManagerOf(t, "system:serviceaccount:elsewhere:capstan", before)
	c.shell(t, chartCommand(t, "grep /capstan-system-capstan-"))
	c.checkPolicies(t, "the deletion of the kept policies",
		of("elsewhere-capstan-", []string{"toolapprovals", "references", "requesters"}, []string{"requesters"}))
	c.run(t, helmPath, "uninstall", "capstan", "--namespace", "elsewhere", "--no-hooks")
	c.shell(t, removal(t))
	c.checkNothingIsLeft(t, "the removal of everything")
}

// createTurn creates a Turn. Soon after the CRD of Turns was created, the MutatingAdmissionPolicy refuses Turns until
// the API server has read the schemas again.
func (c cluster) createTurn(t *testing.T, as client.Client, turn *v1alpha1.Turn) {
	t.Helper()
	var err error
	_ = wait.PollUntilContextTimeout(t.Context(), 250*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		err = as.Create(ctx, turn)
		return err == nil || !strings.Contains(err.Error(), "There can be a delay"), nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// checkManagerOf checks that a manager with this ServiceAccount may do what the policies could refuse: change the
// status of a Turn, and create the Turn of a sub-agent with the requester of the Turn that calls it.
func (c cluster) checkManagerOf(t *testing.T, account string, turn *v1alpha1.Turn) {
	t.Helper()
	harnesstest.AwaitAccess(t.Context(), t, c.clients(t), "default", account,
		rbacv1.PolicyRule{APIGroups: []string{"capstan.dev"}, Resources: []string{"turns"}, Verbs: []string{"create", "get"}},
		rbacv1.PolicyRule{APIGroups: []string{"capstan.dev"}, Resources: []string{"turns/status"}, Verbs: []string{"update"}})
	harnesstest.AwaitAccess(t.Context(), t, c.clients(t), "", account,
		rbacv1.PolicyRule{APIGroups: []string{"capstan.dev"}, Resources: []string{"requesters"}, Verbs: []string{"impersonate"}})
	manager := c.client(t, c.as(account))
	if err := manager.Get(t.Context(), client.ObjectKeyFromObject(turn), turn); err != nil {
		t.Fatal(err)
	}
	turn.Status.ObservedGeneration++
	if err := manager.Status().Update(t.Context(), turn); err != nil {
		t.Errorf("update of the status by %s: %v", account, err)
	}
	child := turnOf("", turn.Requester())
	child.GenerateName = turn.Name + "-"
	child.Spec.Depth = new(int32(1))
	child.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(turn, v1alpha1.GroupVersion.WithKind("Turn"))}
	c.createTurn(t, manager, child)
	if child.Requester() != turn.Requester() {
		t.Errorf("the Turn of a sub-agent has the requester %q, want %q", child.Requester(), turn.Requester())
	}
}

// client returns a client for the kinds of capstan.dev.
func (c cluster) client(t *testing.T, cfg *rest.Config) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(v1alpha1.GroupVersion.WithKind("Turn"), meta.RESTScopeNamespace)
	found, err := client.New(cfg, client.Options{Scheme: scheme, Mapper: mapper})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// chartCommand returns the code block of the chart's README that contains a text.
func chartCommand(t *testing.T, text string) string {
	t.Helper()
	for _, block := range commandsOf(t, "capstan/README.md") {
		if strings.Contains(block, text) {
			return block
		}
	}
	t.Fatalf("the README of the chart has no command with %q", text)
	return ""
}

// adoption returns the command of the chart's README that assigns the CRDs to a release.
func adoption(t *testing.T, name, namespace string) string {
	t.Helper()
	command := chartCommand(t, "kubectl annotate crd")
	return strings.NewReplacer("release-namespace=NAMESPACE", "release-namespace="+namespace, "release-name=NAME", "release-name="+name).
		Replace(command)
}

// removal returns the commands of the chart's README that remove everything, without helm uninstall, whose hooks need
// controllers.
func removal(t *testing.T) string {
	t.Helper()
	uninstall, rest, _ := strings.Cut(chartCommand(t, "kubectl delete crd"), "\n")
	if !strings.HasPrefix(uninstall, "helm uninstall ") {
		t.Errorf("the commands that remove everything begin with %q, want helm uninstall", uninstall)
	}
	return rest
}

// TestHelmTakesOverCRDs runs the commands of the chart's README for CRDs that make install and make deploy have
// installed. TestRequestersCountAfterReinstall does so for those of another release.
func TestHelmTakesOverCRDs(t *testing.T) {
	c := startCluster(t)
	run := func(args ...string) {
		t.Helper()
		if err := c.make(t, args...); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		name    string
		install func()
		values  string
	}{
		{"make install", func() { run("install") }, "replicas=1"},
		{"make deploy", func() {
			run("deploy", "IMG=capstan:1")
			run("install") // an update of the CRDs must keep the labels
			run("undeploy")
		}, "persistence.existingClaim=capstan-data"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.install()
			c.shell(t, adoption(t, "agents", "capstan-system"))
			c.run(t, helmPath, "install", "agents", "capstan", "--namespace", "capstan-system", "--create-namespace", "--set", tc.values)
			c.run(t, helmPath, "uninstall", "agents", "--namespace", "capstan-system", "--no-hooks")
			c.shell(t, removal(t))
			c.checkNothingIsLeft(t, "the removal of everything")
		})
	}
}

// TestHelmDeletesPoliciesThatAreTurnedOff changes the values of a release. Helm itself would leave a policy in force
// that it keeps, although the values say that there is none.
func TestHelmDeletesPoliciesThatAreTurnedOff(t *testing.T) {
	c := startCluster(t)
	c.run(t, kubectlPath, "create", "namespace", "capstan-system")
	upgrade := func(values ...string) {
		t.Helper()
		args := []string{"upgrade", "--install", "capstan", "capstan", "--namespace", "capstan-system", "--set", "crds.install=false"}
		for _, value := range values {
			args = append(args, "--set", value)
		}
		c.run(t, helmPath, args...)
	}
	const prefix = "capstan-system-capstan-"
	all := of(prefix, []string{"toolapprovals", "references", "requesters", "agent-use"}, []string{"requesters"})

	// A chart before 0.2.76 kept no policy. The upgrade must not create the policies anew: the requesters of Turns from
	// before it would no longer count.
	upgrade("agentUsePolicy.install=true", "crds.keep=false")
	c.checkPolicies(t, "helm install", all)
	first := c.installed(t)
	upgrade("agentUsePolicy.install=true")
	if diff := cmp.Diff(first, c.installed(t)); diff != "" {
		t.Errorf("policies after an upgrade that keeps them (-before +after):\n%s", diff)
	}
	for _, name := range []string{"requesters", "toolapprovals"} {
		generation := c.run(t, kubectlPath, "get", "validatingadmissionpolicy/"+prefix+name, "-o", "jsonpath={.metadata.generation}")
		if generation != "1" {
			t.Errorf("the policy %s has generation %s, want 1: the manager takes a change for a new policy", name, generation)
		}
	}

	upgrade()
	c.checkPolicies(t, "agentUsePolicy.install=false",
		of(prefix, []string{"toolapprovals", "references", "requesters"}, []string{"requesters"}))
	upgrade("requesterPolicy.set=false")
	c.checkPolicies(t, "requesterPolicy.set=false", of(prefix, []string{"toolapprovals", "references", "requesters"}, nil))
	left := maps.Clone(first)
	maps.DeleteFunc(left, func(name, _ string) bool {
		return strings.HasPrefix(name, "Mutating") || strings.HasSuffix(name, "-agent-use")
	})
	if diff := cmp.Diff(left, c.installed(t)); diff != "" {
		t.Errorf("policies after others were turned off (-before +after):\n%s", diff)
	}
	// The annotation that names the policies may be forged. Helm must not delete a policy of others.
	annotate := func(policies string) {
		t.Helper()
		c.run(t, kubectlPath, "-n", "capstan-system", "annotate", "--overwrite", "deployment/capstan",
			"capstan.dev/kept-policies="+policies)
	}
	kept := c.run(t, kubectlPath, "-n", "capstan-system", "get", "deployment/capstan", "-o",
		`jsonpath={.metadata.annotations.capstan\.dev/kept-policies}`)
	c.run(t, kubectlPath, "apply", "-k", "../config/requester")
	others := of("capstan-", nil, []string{"requesters"})
	annotate(kept + ",MutatingAdmissionPolicy/capstan-requesters")
	upgrade("requesterPolicy.install=false", "referencePolicy.install=false", "approvalPolicy.install=false")
	c.checkPolicies(t, "all values are false", others)
	c.run(t, kubectlPath, "delete", "-k", "../config/requester")

	// A rollback has the hooks of the revision to which it goes back.
	c.run(t, helmPath, "rollback", "capstan", "2", "--namespace", "capstan-system")
	c.checkPolicies(t, "helm rollback to all policies", all)
	c.run(t, helmPath, "rollback", "capstan", "3", "--namespace", "capstan-system")
	c.checkPolicies(t, "helm rollback to agentUsePolicy.install=false",
		of(prefix, []string{"toolapprovals", "references", "requesters"}, []string{"requesters"}))

	// Other names: the policies with the old ones are deleted.
	upgrade("fullnameOverride=renamed")
	c.checkPolicies(t, "fullnameOverride=renamed",
		of("capstan-system-renamed-", []string{"toolapprovals", "references", "requesters"}, []string{"requesters"}))

	// With crds.keep=false, the policies are those from before, and helm uninstall deletes them.
	before := c.installed(t)
	upgrade("fullnameOverride=renamed", "crds.keep=false")
	if diff := cmp.Diff(before, c.installed(t)); diff != "" {
		t.Errorf("policies after crds.keep=false (-before +after):\n%s", diff)
	}
	c.run(t, helmPath, "uninstall", "capstan", "--namespace", "capstan-system", "--no-hooks")
	c.checkPolicies(t, "helm uninstall with crds.keep=false", nil)
}

// TestHelmRefusesReleasesWhoseNamesCollide installs two releases whose namespaces and names join to the same text, so
// that their cluster-wide objects have the same names. Helm must refuse the second one, and change nothing.
func TestHelmRefusesReleasesWhoseNamesCollide(t *testing.T) {
	c := startCluster(t)
	const set = "crds.install=false"
	c.run(t, helmPath, "install", "a-capstan", "capstan", "--namespace", "team", "--create-namespace", "--set", set)
	objects := func() string {
		return c.run(t, kubectlPath, "get", "validatingadmissionpolicies,clusterroles,clusterrolebindings,flowschemas", "-o",
			`jsonpath={range .items[*]}{.kind}/{.metadata.name} {.metadata.uid} {.metadata.resourceVersion}{"\n"}{end}`,
			"-l", "app.kubernetes.io/part-of=capstan")
	}
	before := objects()
	if !strings.Contains(before, "ClusterRole/team-a-capstan ") {
		t.Fatalf("the first release has the objects %s, want the ClusterRole team-a-capstan", before)
	}
	_, err := output(t.Context(), helmPath, "--kubeconfig", c.Kubeconfig, "install", "capstan", "capstan", "--namespace", "team-a",
		"--create-namespace", "--set", set)
	for _, want := range []string{
		"invalid ownership metadata", `must equal "capstan": current value is "a-capstan"`, `must equal "team-a": current value is "team"`,
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("helm install of the second release: %v, want an error with %q", err, want)
		}
	}
	if diff := cmp.Diff(before, objects()); diff != "" {
		t.Errorf("cluster-wide objects of the first release (-before +after):\n%s", diff)
	}
	// With another full name, the second release can be installed.
	c.run(t, helmPath, "install", "capstan", "capstan", "--namespace", "team-a", "--create-namespace", "--set",
		set+",fullnameOverride=other")
}
