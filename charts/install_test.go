package charts_test

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/test/harness"
	"github.com/capstan-dev/capstan/test/harness/harnesstest"
)

// cluster is a real API server without Capstan, which each test installs in its own way.
type cluster struct{ *harness.ControlPlane }

func startCluster(t *testing.T) cluster {
	t.Helper()
	return cluster{harnesstest.ControlPlane(t, harness.Install{})}
}

func (c cluster) run(t *testing.T, program string, args ...string) string {
	t.Helper()
	out, err := output(t.Context(), program, append([]string{"--kubeconfig", c.Kubeconfig}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// applyTurns runs kubectl apply with Turns soon after their CRD was created. The MutatingAdmissionPolicy rejects
// Turns until the API server has read the schemas again, which it does every 5 seconds.
func (c cluster) applyTurns(t *testing.T, args ...string) {
	t.Helper()
	args = append([]string{"--kubeconfig", c.Kubeconfig, "apply"}, args...)
	var err error
	_ = wait.PollUntilContextTimeout(t.Context(), 250*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		_, err = output(ctx, kubectlPath, args...)
		return err == nil || !strings.Contains(err.Error(), "There can be a delay"), nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// may reports whether the API server allows an action to a ServiceAccount in capstan-system, like kubectl auth can-i.
func (c cluster) may(t *testing.T, account string, action authorizationv1.ResourceAttributes) bool {
	t.Helper()
	clients, err := kubernetes.NewForConfig(c.as("system:serviceaccount:capstan-system:" + account))
	if err != nil {
		t.Fatal(err)
	}
	review, err := clients.AuthorizationV1().SelfSubjectAccessReviews().Create(t.Context(), &authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &action},
	}, metav1.CreateOptions{})
	if err != nil || review.Status.EvaluationError != "" {
		t.Fatalf("review of %+v: %v, status %+v", action, err, review.Status)
	}
	return review.Status.Allowed
}

// mayGetPolicy reports whether a ServiceAccount in capstan-system may read a policy and its binding.
func (c cluster) mayGetPolicy(t *testing.T, account, policy string) bool {
	t.Helper()
	allowed := 0
	for _, resource := range []string{"validatingadmissionpolicies", "validatingadmissionpolicybindings"} {
		if c.may(t, account, authorizationv1.ResourceAttributes{
			Verb: "get", Group: "admissionregistration.k8s.io", Resource: resource, Name: policy,
		}) {
			allowed++
		}
	}
	if allowed == 1 {
		t.Errorf("%s may get one of the policy %s and its binding, and not the other", account, policy)
	}
	return allowed == 2
}

// checkPolicy fails the test unless the policy exists, and the ServiceAccount may read this policy and no other one.
func (c cluster) checkPolicy(t *testing.T, account, policy string) {
	t.Helper()
	c.run(t, kubectlPath, "get", "validatingadmissionpolicy/"+policy, "validatingadmissionpolicybinding/"+policy)
	if !c.mayGetPolicy(t, account, policy) || c.mayGetPolicy(t, account, "another") {
		t.Errorf("%s may get the policy %s: %v, and another: %v; want only the former", account, policy,
			c.mayGetPolicy(t, account, policy), c.mayGetPolicy(t, account, "another"))
	}
}

// access is one question to the API server and the expected answer. A resource is written as
// RESOURCE[.GROUP][/SUBRESOURCE].
type access struct {
	namespace, verb, resource string
	want                      bool
}

func (c cluster) check(t *testing.T, account string, questions []access) {
	t.Helper()
	for _, q := range questions {
		kind, subresource, _ := strings.Cut(q.resource, "/")
		resource, group, _ := strings.Cut(kind, ".")
		if got := c.may(t, account, authorizationv1.ResourceAttributes{
			Namespace: q.namespace, Verb: q.verb, Group: group, Resource: resource, Subresource: subresource,
		}); got != q.want {
			t.Errorf("%s may %s %s in %s = %v, want %v", account, q.verb, q.resource, q.namespace, got, q.want)
		}
	}
}

// inOwnNamespace lists questions about the manager's own namespace. The answers are the same for every kind of
// installation. The last two questions are about another namespace.
var inOwnNamespace = []access{
	{"capstan-system", "create", "leases.coordination.k8s.io", true},
	{"capstan-system", "create", "events.events.k8s.io", true}, // about the Lease of an executor
	{"capstan-system", "create", "events", false},
	{"capstan-system", "get", "pods", false},
	{"default", "get", "leases.coordination.k8s.io", false},
	{"default", "create", "events", false},
}

// inServedNamespace lists questions about a namespace that the manager serves.
var inServedNamespace = []access{
	{"default", "get", "secrets", true},
	{"default", "list", "secrets", false},
	{"default", "watch", "secrets", false},
	{"default", "get", "configmaps", true},
	{"default", "watch", "configmaps", true},
	{"default", "update", "configmaps", false},
	{"default", "watch", "agents.capstan.dev", true},
	{"default", "update", "agents.capstan.dev", false},
	{"default", "delete", "agents.capstan.dev", false},
	{"default", "delete", "turns.capstan.dev", true},
	{"default", "create", "turns.capstan.dev", true},
	{"default", "patch", "turns.capstan.dev", true},
	{"default", "update", "turns.capstan.dev", false},
	{"default", "watch", "toolservers.capstan.dev", true},
	{"default", "update", "toolservers.capstan.dev/status", true},
	{"default", "watch", "toolapprovals.capstan.dev", true},
	{"default", "create", "toolapprovals.capstan.dev", false},
	{"default", "delete", "toolapprovals.capstan.dev", false},
	{"default", "update", "turns.capstan.dev/status", true},
	{"default", "patch", "turns.capstan.dev/status", false},
	{"default", "update", "promptprofiles.capstan.dev/status", true},
	{"default", "create", "events.events.k8s.io", true},
}

// checkMissingNamespace checks that helm rejects a namespace of watchNamespaces that does not exist before it changes
// anything.
func (c cluster) checkMissingNamespace(t *testing.T) {
	t.Helper()
	for name, tc := range map[string]struct {
		args []string
		want string // part of the error, or empty if helm must accept the values
	}{
		"missing": {
			[]string{"--namespace", "capstan-system", "--set", "watchNamespaces={default,nowhere}"},
			`watchNamespaces: namespace "nowhere" does not exist: create it first (kubectl create namespace nowhere), ` +
				`or remove it from the value`,
		},
		"no roles": {[]string{"--namespace", "capstan-system", "--set", "watchNamespaces={nowhere},rbac.create=false"}, ""},
		"the namespace of the release, which helm creates later": {
			[]string{"--namespace", "new", "--create-namespace", "--set", "watchNamespaces={new},crds.install=false"}, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			args := append([]string{"--kubeconfig", c.Kubeconfig, "upgrade", "--install", "capstan", "capstan", "--dry-run=server"},
				tc.args...)
			_, err := output(t.Context(), helmPath, args...)
			if (err == nil) != (tc.want == "") || (err != nil && !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("helm upgrade = %v, want an error with %q, or none if that is empty", err, tc.want)
			}
		})
	}
}

// checkSecondRelease checks that helm rejects a release in a namespace with another installation. owner describes the
// other installation.
func (c cluster) checkSecondRelease(t *testing.T, owner string) {
	t.Helper()
	install := func(namespace string) error {
		_, err := output(t.Context(), helmPath, "--kubeconfig", c.Kubeconfig, "install", "second", "capstan", "--namespace", namespace,
			"--create-namespace", "--set", "crds.install=false", "--dry-run=server")
		return err
	}
	if err := install("capstan-system"); err == nil || !strings.Contains(err.Error(), owner) ||
		!strings.Contains(err.Error(), "install this release in another namespace") {
		t.Errorf("a second release in the same namespace: %v, want an error with %q and the advice to use another namespace", err, owner)
	}
	if err := install("second"); err != nil {
		t.Errorf("a second release in its own namespace: %v", err)
	}
}

// awaitFlowSchema waits until the API server uses a FlowSchema: its priority level exists.
func (c cluster) awaitFlowSchema(t *testing.T, name string) {
	t.Helper()
	c.run(t, kubectlPath, "wait", "flowschema/"+name, "--timeout=1m", "--for=condition=Dangling=False")
}

func TestInstallUpgradeAndUninstall(t *testing.T) {
	c := startCluster(t)
	upgrade := func(values ...string) string {
		args := []string{"upgrade", "--install", "capstan", "capstan", "--namespace", "capstan-system"}
		for _, value := range values {
			args = append(args, "--set", value)
		}
		return c.run(t, helmPath, args...)
	}
	samples := filepath.Join("..", "config", "samples")

	// The namespace enforces restricted Pod Security, so it must accept the chart's Pods.
	c.run(t, kubectlPath, "apply", "--server-side", "--validate=strict", "-f", "../config/manager/namespace.yaml")
	notes := upgrade()
	for _, want := range []string{
		"PersistentVolumeClaim capstan-data, of the cluster's default StorageClass",
		"kubectl -n capstan-system get pvc capstan-data", "persistence.storageClassName=NAME",
		"persistence.existingClaim=NAME", "store.url", "persistence.enabled=false",
	} {
		if !strings.Contains(notes, want) {
			t.Errorf("NOTES = %q, want %q in them", notes, want)
		}
	}
	c.run(t, kubectlPath, "wait", "--for=condition=Established", "crd", "-l", "app.kubernetes.io/part-of=capstan", "--timeout=30s")
	c.awaitFlowSchema(t, "capstan-system-capstan-leases")
	c.applyTurns(t, "--server-side", "--validate=strict", "-n", "default", "-k", samples)
	c.check(t, "capstan", inOwnNamespace)
	c.check(t, "capstan", inServedNamespace)
	c.check(t, "capstan", []access{{"kube-system", "get", "secrets", true}})
	c.checkPolicy(t, "capstan", "capstan-system-capstan-toolapprovals")

	upgrade("watchNamespaces={default}")
	c.check(t, "capstan", inOwnNamespace)
	c.check(t, "capstan", inServedNamespace)
	c.check(t, "capstan", []access{{"kube-system", "get", "secrets", false}, {"kube-system", "list", "turns.capstan.dev", false}})
	c.checkPolicy(t, "capstan", "capstan-system-capstan-toolapprovals")

	c.checkMissingNamespace(t)
	c.checkSecondRelease(t, `release "capstan"`)

	c.checkDrain(t)
	// No controller creates the Pod of a Job here. make e2e removes the release with its hook.
	c.run(t, helmPath, "uninstall", "capstan", "--namespace", "capstan-system", "--no-hooks")
	if got := c.run(t, kubectlPath, "get", "turns", "-n", "default", "-o", "name"); !strings.Contains(got, "turn.capstan.dev/sample") {
		t.Errorf("Turns after uninstall = %q, want them kept", got)
	}
	c.check(t, "capstan", []access{{"default", "get", "secrets", false}})
	// The claim stays, too, and a new release with the same name uses it again.
	uid := func() string {
		return c.run(t, kubectlPath, "-n", "capstan-system", "get", "pvc/capstan-data", "-o", "jsonpath={.metadata.uid}")
	}
	kept := uid()
	upgrade("podDisruptionBudget.enabled=true")
	if got := uid(); got != kept {
		t.Errorf("the claim has UID %s after the release was installed again, want %s: the old claim has the journal", got, kept)
	}
	// From a volume to an emptyDir and back: the Deployment changes its strategy each time.
	if notes := upgrade("persistence.enabled=false"); !strings.Contains(notes, "WARNING: the journal of Turns is in an emptyDir") {
		t.Errorf("NOTES = %q, want a warning of the emptyDir", notes)
	}
	if notes := upgrade("persistence.enabled=true"); uid() != kept || strings.Contains(notes, "WARNING") {
		t.Errorf("NOTES = %q and a claim of UID %s, want no warning and the claim %s", notes, uid(), kept)
	}
	c.run(t, helmPath, "uninstall", "capstan", "--namespace", "capstan-system", "--no-hooks")

	c.shell(t, chartCommand(t, "grep /capstan-system-capstan-"))
	// Install the plain manifests in place of the chart: they take over the CRDs that the chart left.
	c.run(t, kubectlPath, "apply", "--server-side", "--force-conflicts", "--validate=strict", "-k", "../config/default")
	c.awaitFlowSchema(t, "capstan-leases")
	c.check(t, "capstan-manager", inOwnNamespace)
	c.check(t, "capstan-manager", inServedNamespace)
	c.checkPolicy(t, "capstan-manager", "capstan-toolapprovals")
	c.checkSecondRelease(t, "without Helm")

	// make undeploy keeps the CRDs, the Turns and their journal. The manager has its permissions until its Pods have
	// ended. An object that was deleted and created again would have another UID.
	keptObjects := func() string {
		return c.run(t, kubectlPath, "get", "crds,turns", "-A", "-o",
			`jsonpath={range .items[*]}{.kind}/{.metadata.name} {.metadata.uid}{"\n"}{end}`)
	}
	before := keptObjects()
	if crds := strings.Count(before, "CustomResourceDefinition/"); crds != 8 || !strings.Contains(before, "Turn/sample ") {
		t.Errorf("before make undeploy there are the objects %q, want 8 CRDs and the Turn sample", before)
	}
	c.run(t, kubectlPath, "-n", "capstan-system", "run", "manager", "--image=capstan",
		"--labels=app.kubernetes.io/name=capstan,app.kubernetes.io/component=manager", `--overrides={"spec": {
			"securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
			"containers": [{"name": "manager", "image": "capstan", "securityContext": {
				"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}
			}}]
		}}`)
	for _, more := range []string{"requester", "usepolicy"} {
		c.run(t, kubectlPath, "apply", "-k", "../config/"+more)
	}
	c.checkPolicies(t, "kubectl apply of all manifests",
		of("capstan-", []string{"toolapprovals", "references", "requesters", "agent-use"}, []string{"requesters"}))
	policies := c.installed(t)
	undeployed := make(chan error, 1)
	go func() { undeployed <- c.make(t, "undeploy") }()
	c.run(t, kubectlPath, "-n", "capstan-system", "wait", "deployment/capstan-manager", "--for=jsonpath={.spec.replicas}=0",
		"--timeout=1m")
	c.check(t, "capstan-manager", inOwnNamespace)
	c.run(t, kubectlPath, "-n", "capstan-system", "delete", "pod", "manager")
	if err := <-undeployed; err != nil {
		t.Fatal(err)
	}
	if after := keptObjects(); after != before {
		t.Errorf("make undeploy has left the CRDs and Turns %q, want %q", after, before)
	}
	if diff := cmp.Diff(policies, c.installed(t)); diff != "" {
		t.Errorf("policies after make undeploy (-before +after):\n%s", diff)
	}
	for query, want := range map[string]string{
		"pvc -n capstan-system": "persistentvolumeclaim/capstan-data", "deployments -n capstan-system": "",
		"namespace capstan-system": "namespace/capstan-system", "clusterroles -l app.kubernetes.io/name=capstan": "",
	} {
		got := c.run(t, kubectlPath, append([]string{"get", "-o", "name"}, strings.Fields(query)...)...)
		if want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("kubectl get %s after make undeploy = %q, want %q in it, or nothing if that is empty", query, got, want)
		}
	}

	finalized := c.finalizeNamespace(t, "capstan-system")
	if err := c.make(t, "undeploy", "ALL=1"); err != nil {
		t.Fatal(err)
	}
	finalized()
	c.checkNothingIsLeft(t, "make undeploy ALL=1")
}

// make runs a target of the Makefile on the cluster.
func (c cluster) make(t *testing.T, args ...string) error {
	t.Helper()
	args = append([]string{"-C", "..", "KUBECTL=" + kubectlPath + " --kubeconfig " + c.Kubeconfig}, args...)
	_, err := output(t.Context(), "make", args...)
	return err
}

// checkNothingIsLeft checks that no CRD and no policy of Capstan is left.
func (c cluster) checkNothingIsLeft(t *testing.T, after string) {
	t.Helper()
	if got := c.run(t, kubectlPath, "get", "crds,clusterroles,clusterrolebindings", "-o", "name"); strings.Contains(got, "capstan") {
		t.Errorf("objects after %s: %s, want none of Capstan", after, got)
	}
	c.checkPolicies(t, after, nil)
}

// finalizeNamespace ends the deletion of a namespace and its claim as the controllers of a cluster do, which do not run
// here. The returned function waits until the namespace is gone.
func (c cluster) finalizeNamespace(t *testing.T, name string) (finished func()) {
	t.Helper()
	clients := c.clients(t)
	done := make(chan error, 1)
	go func() {
		done <- wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
			_, err := clients.CoreV1().PersistentVolumeClaims(name).Patch(ctx, "capstan-data", types.MergePatchType,
				[]byte(`{"metadata": {"finalizers": null}}`), metav1.PatchOptions{})
			if err != nil && !apierrors.IsNotFound(err) {
				return false, err
			}
			namespace, err := clients.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
			if err != nil || namespace.DeletionTimestamp == nil {
				return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
			}
			namespace.Spec.Finalizers = nil
			_, err = clients.CoreV1().Namespaces().Finalize(ctx, namespace, metav1.UpdateOptions{})
			return false, client.IgnoreNotFound(err)
		})
	}()
	return func() {
		if err := <-done; err != nil {
			t.Errorf("deletion of the namespace %s: %v", name, err)
		}
	}
}
