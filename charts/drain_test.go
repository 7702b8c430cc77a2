package charts_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	appsclient "k8s.io/client-go/kubernetes/typed/apps/v1"
	podsecurity "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/capstan-dev/capstan/internal/drain"
)

// drainOptions returns the options of the chart's Job for the manager's command drain, which must know every
// argument.
func drainOptions(t *testing.T, job *batchv1.Job) drain.Options {
	t.Helper()
	var o drain.Options
	parseCommand(t, "drain", job.Spec.Template.Spec.Containers[0].Args, o.AddFlags)
	return o
}

func TestUninstallStopsThePodsFirst(t *testing.T) {
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		values      []string
		deployments []string
		timeout     time.Duration
	}{
		"one Deployment": {nil, []string{"capstan"}, 70 * time.Second},
		"separate executors": {
			[]string{storeURL, "executor.separate=true"},
			[]string{"capstan", "capstan-executor"},
			70 * time.Second,
		},
		"a long grace period":                 {[]string{"terminationGracePeriodSeconds=600"}, []string{"capstan"}, 630 * time.Second},
		"a user ID that the platform chooses": {[]string{"runAsUser=null"}, []string{"capstan"}, 70 * time.Second},
		"a PodDisruptionBudget and watchNamespaces": {
			[]string{"podDisruptionBudget.enabled=true", "watchNamespaces={a}"},
			[]string{"capstan"},
			70 * time.Second,
		},
	} {
		t.Run(name, func(t *testing.T) {
			hooks, objects := renderHooks(t, "pre-delete", tc.values...), renderChart(t, tc.values...)
			for _, hook := range hooks {
				annotations := hook.(client.Object).GetAnnotations()
				if annotations["helm.sh/hook"] != "pre-delete" ||
					annotations["helm.sh/hook-delete-policy"] != "before-hook-creation,hook-succeeded" {
					t.Errorf("annotations of %T = %v, want a hook that exists only while the release is removed", hook, annotations)
				}
				want := "-1" // Helm creates the permissions before the Job, which needs them
				if isJob(hook) {
					want = "0"
				}
				if weight := annotations["helm.sh/hook-weight"]; weight != want {
					t.Errorf("weight of %T = %s, want %s", hook, weight, want)
				}
			}
			job := one[*batchv1.Job](t, hooks)
			if diff := cmp.Diff(drain.Options{Namespace: "capstan-system", Deployments: tc.deployments, Timeout: tc.timeout},
				drainOptions(t, job)); diff != "" {
				t.Errorf("options (-want +got):\n%s", diff)
			}
			deadline := time.Duration(*job.Spec.ActiveDeadlineSeconds) * time.Second
			grace := time.Duration(*every[*appsv1.Deployment](objects)[0].Spec.Template.Spec.TerminationGracePeriodSeconds) * time.Second
			if deadline <= tc.timeout || tc.timeout <= grace {
				t.Errorf("the Job ends after %s, waits %s, and Pods may take %s; want each longer than the next",
					deadline, tc.timeout, grace)
			}
			pod := job.Spec.Template
			restricted := podsecurity.LevelVersion{Level: podsecurity.LevelRestricted, Version: podsecurity.LatestVersion()}
			if result := policy.AggregateCheckResults(evaluator.EvaluatePod(restricted, &pod.ObjectMeta, &pod.Spec)); !result.Allowed {
				t.Errorf("restricted Pod Security rejects the Pod: %s", result.ForbiddenDetail())
			}
			selectors := []map[string]string{one[*corev1.Service](t, objects).Spec.Selector}
			for _, d := range every[*appsv1.Deployment](objects) {
				selectors = append(selectors, d.Spec.Selector.MatchLabels)
			}
			for _, b := range every[*policyv1.PodDisruptionBudget](objects) {
				selectors = append(selectors, b.Spec.Selector.MatchLabels)
			}
			for _, selector := range selectors {
				if selects(selector, pod.Labels) {
					t.Errorf("%v selects the Pod of the Job: it would wait for itself", selector)
				}
			}
			want := []rbacv1.PolicyRule{
				{APIGroups: []string{"apps"}, ResourceNames: tc.deployments, Resources: []string{"deployments"}, Verbs: []string{"get"}},
				{
					APIGroups: []string{"apps"}, ResourceNames: tc.deployments, Resources: []string{"deployments/scale"},
					Verbs: []string{"patch"},
				},
				{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list"}},
			}
			role := one[*rbacv1.Role](t, hooks)
			if diff := cmp.Diff(want, role.Rules); diff != "" {
				t.Errorf("rules (-want +got):\n%s", diff)
			}
			binding, account := one[*rbacv1.RoleBinding](t, hooks), one[*corev1.ServiceAccount](t, hooks)
			subject := rbacv1.Subject{Kind: "ServiceAccount", Name: account.Name, Namespace: account.Namespace}
			if binding.RoleRef.Name != role.Name || !cmp.Equal([]rbacv1.Subject{subject}, binding.Subjects) ||
				pod.Spec.ServiceAccountName != account.Name {
				t.Errorf("the binding joins %v and %v; want the Role and the ServiceAccount of the Job", binding.RoleRef, binding.Subjects)
			}
		})
	}
	for _, value := range []string{"uninstall.drain=false", "rbac.create=false"} {
		if hooks := renderHooks(t, "pre-delete", value); len(hooks) != 0 {
			t.Errorf("got %d hooks with %s, want none", len(hooks), value)
		}
	}
}

func isJob(o runtime.Object) bool {
	_, ok := o.(*batchv1.Job)
	return ok
}

// checkDrain drains the installed Deployment with the command and the permissions of the pre-delete hook, which the API
// server loads late. The test does the work of the Deployment's controller and of the kubelet, which do not run here.
func (c cluster) checkDrain(t *testing.T) {
	t.Helper()
	hooks := renderHooks(t, "pre-delete")
	job, binding := one[*batchv1.Job](t, hooks), one[*rbacv1.RoleBinding](t, hooks)
	for _, hook := range hooks {
		if hook != runtime.Object(job) && hook != runtime.Object(binding) {
			c.apply(t, hook)
		}
	}
	o := drainOptions(t, job)
	drainer, err := kubernetes.NewForConfig(c.as("system:serviceaccount:capstan-system:" + job.Spec.Template.Spec.ServiceAccountName))
	if err != nil {
		t.Fatal(err)
	}
	config := c.as("admin")
	config.Impersonate.Groups = []string{"system:masters"}
	admin, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	deployments, pods := admin.AppsV1().Deployments(o.Namespace), admin.CoreV1().Pods(o.Namespace)
	deployment, err := deployments.Get(t.Context(), "capstan", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{ObjectMeta: deployment.Spec.Template.ObjectMeta, Spec: deployment.Spec.Template.Spec}
	pod.Name = "capstan-0"
	if _, err := pods.Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	early, stop := context.WithCancel(t.Context())
	ended, forbidden := make(chan error, 1), make(chan string, 1)
	go func() {
		ended <- drain.Run(early, drainer, o, funcr.New(func(_, args string) {
			if strings.Contains(args, "forbids") {
				forbidden <- args
			}
		}, funcr.Options{}))
	}()
	select {
	case <-forbidden:
	case err := <-ended:
		t.Fatalf("without its permissions, the drain ends at once: %v; want it to try again", err)
	}
	c.apply(t, binding)
	c.awaitScaledToZero(t, deployments, ended)
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("after its context has ended, the drain returns %v; want %v", err, context.Canceled)
	}

	short := o
	short.Timeout = 3 * time.Second
	err = drain.Run(t.Context(), drainer, short, logr.Discard())
	if err == nil || !strings.Contains(err.Error(), "capstan-0") || !strings.Contains(err.Error(), "--no-hooks") {
		t.Errorf("a Pod that does not stop: %v; want an error that names it and the remedy", err)
	}
	if deployment, err = deployments.Get(t.Context(), "capstan", metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}

	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { done <- drain.Run(ctx, drainer, o, logr.Discard()) }()
	if err := pods.Delete(t.Context(), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}); err != nil {
		t.Fatal(err)
	}
	deployment.Status.ObservedGeneration = deployment.Generation
	if _, err := deployments.UpdateStatus(t.Context(), deployment, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Errorf("after the Pod was deleted: drain = %v, want no error", err)
	}
	if err := drain.Run(t.Context(), drainer,
		drain.Options{Namespace: "default", Deployments: o.Deployments, Timeout: short.Timeout}, logr.Discard()); err == nil {
		t.Error("the hook may drain another namespace, want only its own")
	}
}

// awaitScaledToZero waits until the Deployment has no replicas, and fails if the drain ends before.
func (c cluster) awaitScaledToZero(t *testing.T, deployments appsclient.DeploymentInterface, ended <-chan error) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		select {
		case err := <-ended:
			return false, fmt.Errorf("the drain has ended: %w", err)
		default:
		}
		d, err := deployments.Get(ctx, "capstan", metav1.GetOptions{})
		return err == nil && *d.Spec.Replicas == 0, err
	})
	if err != nil {
		t.Fatalf("the drain must try again when it has its permissions: %v", err)
	}
}

// apply creates an object of the chart.
func (c cluster) apply(t *testing.T, object runtime.Object) {
	t.Helper()
	manifest, err := yaml.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	path := t.TempDir() + "/object.yaml"
	if err := os.WriteFile(path, manifest, 0o600); err != nil {
		t.Fatal(err)
	}
	c.run(t, kubectlPath, "apply", "-f", path)
}
