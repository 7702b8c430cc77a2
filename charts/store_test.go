package charts_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"

	"github.com/capstan-dev/capstan/internal/manager"
)

const storeURL = "store.url=postgres://capstan@db.example.com:5432/capstan?sslmode=verify-full"

func TestPostgreSQLNeedsNoVolume(t *testing.T) {
	objects := renderChart(t, storeURL, "replicas=3")
	deployment, container := managerOf(t, objects)
	if got := *deployment.Spec.Replicas; got != 3 {
		t.Errorf("replicas = %d, want 3, the value replicas", got)
	}
	if got := deployment.Spec.Strategy.Type; got != appsv1.RollingUpdateDeploymentStrategyType {
		t.Errorf("strategy = %s, want RollingUpdate: Pods share the database", got)
	}
	if claims := every[*corev1.PersistentVolumeClaim](objects); len(claims) != 0 {
		t.Errorf("got %d claims, want none", len(claims))
	}
	var volumes, mounts []string
	for _, v := range deployment.Spec.Template.Spec.Volumes {
		volumes = append(volumes, v.Name)
	}
	for _, m := range container.VolumeMounts {
		mounts = append(mounts, m.Name)
	}
	if diff := cmp.Diff([][]string{{"tmp"}, {"tmp"}}, [][]string{volumes, mounts}); diff != "" {
		t.Errorf("volumes and mounts (-want +got):\n%s", diff)
	}
	if slices.ContainsFunc(container.Args, func(arg string) bool { return flagOf(arg) == "data-dir" }) {
		t.Errorf("args = %v, want no --data-dir: the directory does not exist", container.Args)
	}
	checkFlags(t, container)
}

func TestManagerAcceptsStoreOfChart(t *testing.T) {
	_, container := managerOf(t, renderChart(t, storeURL))
	i := slices.IndexFunc(container.Args, func(arg string) bool { return flagOf(arg) == "store" })
	if i < 0 {
		t.Fatalf("args = %v, want --store", container.Args)
	}
	o := manager.Options{
		Store: strings.TrimPrefix(container.Args[i], "--store="), Namespace: "capstan-system", ExecutorName: "capstan-0",
		MaxConcurrentTurns: 1, MaxRecordsPerNamespace: 1,
		MetricsBindAddress: "0", HealthProbeBindAddress: "0", LogFormat: "json", LogLevel: "info", ProbeIntervalSeconds: 1,
	}
	if err := o.Validate(); err != nil {
		t.Errorf("the manager rejects the store of the chart: %v", err)
	}
}

func TestPasswordComesFromSecret(t *testing.T) {
	deployment, container := managerOf(t, renderChart(t, storeURL, "store.passwordSecret.name=db", "store.passwordSecret.key=pw",
		"store.caSecret.name=db-ca", "store.caSecret.key=root.pem"))
	want := []corev1.EnvVar{
		{Name: "PGPASSWORD", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
			LocalObjectReference: corev1.LocalObjectReference{Name: "db"}, Key: "pw",
		}}},
		{Name: "PGSSLROOTCERT", Value: "/etc/capstan/store/ca.crt"},
	}
	if diff := cmp.Diff(want, container.Env[2:]); diff != "" {
		t.Errorf("variables after the two that every manager has (-want +got):\n%s", diff)
	}
	i := slices.IndexFunc(container.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == "store-ca" })
	if i < 0 || container.VolumeMounts[i].MountPath != "/etc/capstan/store" || !container.VolumeMounts[i].ReadOnly {
		t.Errorf("mounts = %v, want the authority's certificate in the directory of PGSSLROOTCERT, mounted read-only",
			container.VolumeMounts)
	}
	volumes := deployment.Spec.Template.Spec.Volumes
	i = slices.IndexFunc(volumes, func(v corev1.Volume) bool { return v.Name == "store-ca" })
	source := &corev1.SecretVolumeSource{SecretName: "db-ca", Items: []corev1.KeyToPath{{Key: "root.pem", Path: "ca.crt"}}}
	if i < 0 || cmp.Diff(source, volumes[i].Secret) != "" {
		t.Errorf("volumes = %v, want the one key of the Secret", volumes)
	}
}

func TestInvalidStoreValuesAreRejected(t *testing.T) {
	const secret = "hunter2"
	tests := map[string]struct {
		values []string
		want   string
	}{
		"Password":         {[]string{"store.url=postgres://capstan:" + secret + "@db/capstan"}, "store.passwordSecret"},
		"PasswordAsOption": {[]string{"store.url=postgres://capstan@db/capstan?password=" + secret}, "store.passwordSecret"},
		"OddPassword":      {[]string{"store.url=postgres://capstan:a/" + secret + "@db/capstan"}, "store.passwordSecret"},
		"AtInPassword":     {[]string{"store.url=postgres://capstan:a@" + secret + "@db/capstan"}, "store.passwordSecret"},
		"AnotherKind":      {[]string{"store.url=mysql://capstan@db/capstan"}, "must be of the form postgres://"},
		"SQLite":           {[]string{"store.url=sqlite:///var/lib/capstan/x.db"}, "to use SQLite, leave it empty"},
		"NoDatabase":       {[]string{"store.url=postgres://capstan@db"}, "must be of the form postgres://"},
		"PasswordAlone":    {[]string{"store.passwordSecret.name=db"}, "store.passwordSecret needs store.url"},
		"AuthorityAlone":   {[]string{"store.caSecret.name=db"}, "store.caSecret needs store.url"},
		"SecretName":       {[]string{storeURL, "store.passwordSecret.name=Not_A_Name"}, "/store/passwordSecret/name"},
		"TwoReplicas":      {[]string{"replicas=2"}, "set store.url to use PostgreSQL"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := template(t.Context(), tc.values...)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("message = %v, want %q in it", err, tc.want)
			}
			if strings.Contains(err.Error(), secret) {
				t.Errorf("Helm shows the password: %v", err)
			}
		})
	}
}

// TestSeparateExecutors checks that the chart has two Deployments of the manager, and that each Pod has one role.
func TestSeparateExecutors(t *testing.T) {
	objects := renderChart(t, storeURL, "executor.separate=true", "executor.replicas=5", "replicas=2", "podDisruptionBudget.enabled=true")
	deployments := every[*appsv1.Deployment](objects)
	if len(deployments) != 2 {
		t.Fatalf("got %d Deployments, want one of the controller and one of the executors", len(deployments))
	}
	service := one[*corev1.Service](t, objects)
	budgets := every[*policyv1.PodDisruptionBudget](objects)
	for i, want := range []struct {
		name, roles, leaderElect string
		replicas                 int32
	}{{"capstan", "controller", "true", 2}, {"capstan-executor", "executor", "", 5}} {
		d := deployments[i]
		if d.Name != want.name || *d.Spec.Replicas != want.replicas {
			t.Errorf("got %d Pods of %s, want %d of %s", *d.Spec.Replicas, d.Name, want.replicas, want.name)
		}
		container := d.Spec.Template.Spec.Containers[0]
		args := map[string]string{}
		for _, arg := range container.Args {
			args[flagOf(arg)] = strings.TrimPrefix(arg, "--"+flagOf(arg)+"=")
		}
		if args["roles"] != want.roles || args["leader-elect"] != want.leaderElect {
			t.Errorf("%s has args %v, want --roles=%s and --leader-elect=%s", d.Name, container.Args, want.roles, want.leaderElect)
		}
		checkFlags(t, container)
		var o manager.Options
		flags := pflag.NewFlagSet("manager", pflag.ContinueOnError)
		o.AddFlags(flags)
		if err := flags.Parse(slices.DeleteFunc(slices.Clone(container.Args),
			func(arg string) bool { return strings.Contains(arg, "$(") })); err != nil { // the kubelet expands $(NAME)
			t.Error(err)
		}
		o.ExecutorName = "capstan-0"
		if err := o.Validate(); err != nil {
			t.Errorf("the manager rejects the arguments of %s: %v", d.Name, err)
		}
		labels := d.Spec.Template.Labels
		for name, selector := range map[string]map[string]string{
			"Deployment": d.Spec.Selector.MatchLabels, "Service": service.Spec.Selector,
			"PodDisruptionBudget": budgetSelector(budgets, d.Name),
		} {
			if !selects(selector, labels) {
				t.Errorf("the %s of %s selects %v, but its Pods have the labels %v", name, d.Name, selector, labels)
			}
		}
		if other := deployments[1-i]; selects(other.Spec.Selector.MatchLabels, labels) ||
			selects(budgetSelector(budgets, other.Name), labels) {
			t.Errorf("the Deployment or the PodDisruptionBudget %s also selects the Pods of %s", other.Name, d.Name)
		}
	}
}

// budgetSelector returns the selector of the PodDisruptionBudget with this name, or nil if there is none.
func budgetSelector(all []*policyv1.PodDisruptionBudget, name string) map[string]string {
	for _, b := range all {
		if b.Name == name {
			return b.Spec.Selector.MatchLabels
		}
	}
	return nil
}

func selects(selector, labels map[string]string) bool {
	for key, value := range selector {
		if labels[key] != value {
			return false
		}
	}
	return len(selector) > 0
}
