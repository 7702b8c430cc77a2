package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/capstan-dev/capstan/hack/e2e/node"
	"github.com/capstan-dev/capstan/internal/manager"
	"github.com/capstan-dev/capstan/internal/store/postgres/postgrestest"
)

const (
	// system is the namespace of Capstan, and work the namespace of the Turns that wipe disks.
	system, work = "capstan-system", "wipes"
	// managerPods selects the manager's Pods.
	managerPods = "app.kubernetes.io/name=capstan,app.kubernetes.io/component=manager"
	// pollInterval is the time between two reads of the Turns.
	pollInterval = 200 * time.Millisecond
	// patience is the time limit of operations that take a few seconds on a busy machine with two cores.
	patience = 2 * time.Minute
)

// test is a run of the test against one cluster.
type test struct {
	options options
	cluster *node.Cluster
	out     io.Writer
	begun   time.Time
	config  *rest.Config
	api     client.Client
	results []result
	// chart is the path of the packaged chart.
	chart string
	// database is the PostgreSQL of the rounds that need one, or nil before the first of these rounds.
	database *postgrestest.Server
}

func (t *test) say(format string, args ...any) {
	// A failure to print progress must not fail the test.
	_, _ = fmt.Fprintf(t.out, "%6.1f s  %s\n", time.Since(t.begun).Seconds(), fmt.Sprintf(format, args...))
}

// run runs the whole test: it installs the chart, runs the examples and the rounds, and prints the table.
func (t *test) run(ctx context.Context) error {
	if err := t.connect(); err != nil {
		return err
	}
	if err := t.addVolume(ctx); err != nil {
		return err
	}
	if err := t.packageChart(ctx); err != nil {
		return err
	}
	t.say("Following %s to a first answer", installPage)
	if err := t.firstAnswer(ctx); err != nil {
		return err
	}
	t.say("Starting the fake models and the tool servers as Pods")
	if err := t.startServers(ctx); err != nil {
		return err
	}
	t.say("Installing the packaged chart with its default values, in a namespace that enforces restricted Pod Security")
	if err := t.install(ctx); err != nil {
		return err
	}
	t.say("Running helm test")
	if err := t.helmTest(ctx); err != nil {
		return err
	}
	t.say("Applying the example of the installation with one command, the servers last")
	if err := t.applyAtOnce(ctx); err != nil {
		return err
	}
	t.say("Running examples/quickstart and examples/tools, whose call is approved")
	errs := errors.Join(t.quickstart(ctx), t.tools(ctx))
	t.say("Giving a team access: one person asks, another approves at the read API, and its certificate is replaced")
	if err := t.team(ctx); err != nil {
		errs = errors.Join(errs, fmt.Errorf("access for a team: %w", err))
	}
	for _, r := range t.options.rounds {
		// A failed round does not affect the later ones, unless the whole test has been stopped.
		if err := t.round(ctx, r); err != nil {
			errs = errors.Join(errs, fmt.Errorf("round %s: %w", r.name, err))
			if ctx.Err() != nil {
				break
			}
		}
	}
	t.printTable()
	if ctx.Err() == nil {
		if err := t.operations(ctx); err != nil {
			errs = errors.Join(errs, fmt.Errorf("operations: %w", err))
		}
	}
	if errs == nil {
		t.say("Passed")
	}
	return errs
}

// connect creates a client for the kinds of Capstan.
func (t *test) connect() error {
	var err error
	if t.config, err = clientcmd.BuildConfigFromFlags("", t.cluster.Kubeconfig); err != nil {
		return err
	}
	t.api, err = clientOf(t.config)
	return err
}

// clientOf returns a client for the kinds of Capstan.
func clientOf(config *rest.Config) (client.Client, error) {
	scheme, err := manager.Scheme()
	if err != nil {
		return nil, err
	}
	return client.New(config, client.Options{Scheme: scheme, Mapper: nil})
}

// addVolume creates the default StorageClass with a volume.
func (t *test) addVolume(ctx context.Context) error {
	//nolint:gosec // because the kubelet gives it to the Pod's group
	if err := os.MkdirAll(filepath.Join(t.cluster.Volumes(), "journal"), 0o755); err != nil {
		return err
	}
	return t.apply(ctx, strings.ReplaceAll(storageManifest, "$VOLUMES", t.cluster.Volumes()))
}

// startServers creates the servers, the namespaces, and the kinds of other operators.
func (t *test) startServers(ctx context.Context) error {
	rules, err := os.ReadFile(filepath.Join(t.options.root, "test/fakemodel/rules.yaml"))
	if err != nil {
		return err
	}
	if err := errors.Join(t.apply(ctx, serversManifest), t.apply(ctx, otherKindsManifest)); err != nil {
		return err
	}
	configs, err := yaml.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "demo-model", "namespace": "examples"},
		"data": map[string]string{"rules.yaml": string(rules)},
	})
	if err != nil {
		return err
	}
	if err := t.apply(ctx, string(configs)); err != nil {
		return err
	}
	for _, namespace := range []string{"examples", "wipes"} {
		if err := t.kubectl(ctx, "-n", namespace, "rollout", "status", "deployment", "--timeout", patience.String()); err != nil {
			return err
		}
	}
	return nil
}

// install installs the chart or upgrades the release, and waits until the manager is ready.
func (t *test) install(ctx context.Context, values ...string) error {
	if err := t.upgrade(ctx, values...); err != nil {
		return err
	}
	if err := t.ready(ctx); err != nil {
		return err
	}
	return t.apply(ctx, wipeManifest)
}

// packageChart packages the chart as for a release.
func (t *test) packageChart(ctx context.Context) error {
	if err := t.helm(ctx, "package", filepath.Join(t.options.root, "charts/capstan"), "--destination", t.options.logs); err != nil {
		return err
	}
	found, err := filepath.Glob(filepath.Join(t.options.logs, "capstan-*.tgz"))
	if err != nil || len(found) != 1 {
		return fmt.Errorf("helm package wrote %d archives, want one: %w", len(found), err)
	}
	t.chart = found[0]
	return nil
}

// upgrade changes the release and does not wait. Values that are not given have the chart's defaults.
func (t *test) upgrade(ctx context.Context, values ...string) error {
	return t.upgradeTo(ctx, t.chart, values...)
}

func (t *test) upgradeTo(ctx context.Context, chart string, values ...string) error {
	args := []string{"upgrade", "--install", "capstan", chart, "--namespace", system, "--create-namespace", "--reset-values"}
	for _, value := range values {
		args = append(args, "--set", value)
	}
	return t.helm(ctx, args...)
}

// ready waits until the manager and separate executors, if there are any, are ready.
func (t *test) ready(ctx context.Context) error {
	return t.kubectl(ctx, "-n", system, "rollout", "status", "deployment", "-l", "app.kubernetes.io/name=capstan",
		"--timeout", patience.String())
}

// helmTest runs the chart's test of the installation. The test's log must contain the usual lines and each
// string in more. helmTest removes the test's Pod, so that nothing is left after the release is removed.
func (t *test) helmTest(ctx context.Context, more ...string) error {
	if err := t.helm(ctx, "test", "capstan", "--namespace", system); err != nil {
		return err
	}
	out, err := t.output(ctx, "", t.cluster.Kubectl, "-n", system, "logs", "pod/capstan-test")
	if err != nil {
		return err
	}
	for _, want := range append([]string{
		"ok: custom resource definitions: ", "ok: Deployment capstan: ",
		"ok: executors: ", "ok: leader: ",
	}, more...) {
		if !strings.Contains(out, want) {
			return fmt.Errorf("the log of helm test is %s, want %q", out, want)
		}
	}
	return t.kubectl(ctx, "-n", system, "delete", "pod", "capstan-test")
}

func (t *test) quickstart(ctx context.Context) error {
	if err := t.applyExample(ctx, "quickstart"); err != nil {
		return err
	}
	return t.kubectl(ctx, "-n", "examples", "wait", "--for=condition=Succeeded", "turn/open-loops", "--timeout", patience.String())
}

func (t *test) tools(ctx context.Context) error {
	if err := t.applyExample(ctx, "tools"); err != nil {
		return err
	}
	wait := []string{"-n", "examples", "wait", "turn/printer-works", "--timeout", patience.String()}
	if err := t.kubectl(ctx, append(wait, "--for=jsonpath={.status.pendingApprovals}")...); err != nil {
		return err
	}
	// The command shows arguments only to users with a token. The administrator of this cluster has none.
	if _, err := t.output(ctx, "", filepath.Join(t.options.programs, "capstan"), "approve", "printer-works",
		"--namespace", "examples", "-y", "--without-arguments"); err != nil {
		return err
	}
	return t.kubectl(ctx, append(wait, "--for=condition=Succeeded")...)
}

// applyExample applies an example whose servers are Pods of this cluster instead of processes next to the manager.
func (t *test) applyExample(ctx context.Context, name string) error {
	files, err := filepath.Glob(filepath.Join(t.options.root, "examples", name, "*.yaml"))
	if err != nil {
		return err
	}
	var manifest strings.Builder
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		manifest.WriteString("---\n")
		manifest.WriteString(strings.NewReplacer("127.0.0.1:8089", "demo-model.examples:8089", "127.0.0.1:8090",
			"tickets.examples:8090").Replace(string(data)))
	}
	return t.apply(ctx, manifest.String(), "-n", "examples")
}

func (t *test) apply(ctx context.Context, manifest string, args ...string) error {
	_, err := t.output(ctx, manifest, t.cluster.Kubectl, append([]string{"apply", "-f", "-"}, args...)...)
	return err
}

func (t *test) kubectl(ctx context.Context, args ...string) error {
	_, err := t.output(ctx, "", t.cluster.Kubectl, args...)
	return err
}

func (t *test) helm(ctx context.Context, args ...string) error {
	_, err := t.output(ctx, "", filepath.Join(t.options.programs, "helm"), args...)
	return err
}

// output runs a program against the cluster, as its administrator, and returns its standard output.
func (t *test) output(ctx context.Context, stdin, program string, args ...string) (string, error) {
	return t.outputAs(ctx, t.cluster.Kubeconfig, stdin, program, args...)
}

// outputAs runs a program against the cluster with a kubeconfig, and returns its standard output.
func (t *test) outputAs(ctx context.Context, kubeconfig, stdin, program string, args ...string) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd := t.command(ctx, kubeconfig, program, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%s %s: %w: %s", filepath.Base(program), strings.Join(args, " "), err,
			strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

// command returns the command of a program against the cluster with a kubeconfig.
func (t *test) command(ctx context.Context, kubeconfig, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig, "HELM_CACHE_HOME="+t.options.logs,
		"HELM_CONFIG_HOME="+t.options.logs, "HELM_DATA_HOME="+t.options.logs)
	return cmd
}

// poll calls check until it returns true. It retries after an error, which may be a temporary error of the API server.
func (t *test) poll(ctx context.Context, timeout time.Duration, check func(context.Context) (bool, string, error)) error {
	return pollEvery(ctx, pollInterval, timeout, check)
}

// pollEvery is like poll, with another time between two checks.
func pollEvery(ctx context.Context, interval, timeout time.Duration, check func(context.Context) (bool, string, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("timed out after %s", timeout))
	defer cancel()
	for {
		done, state, err := check(ctx)
		if err == nil && done {
			return nil
		}
		if err != nil {
			state = err.Error()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", state, context.Cause(ctx))
		case <-time.After(interval):
		}
	}
}

// saveEvidence writes the files that a person needs to investigate a failure.
func (t *test) saveEvidence(ctx context.Context) {
	for file, args := range map[string][]string{
		"objects.txt":      {"get", "all,pvc,pv,leases", "-A", "-o", "wide"},
		"events.txt":       {"get", "events", "-A", "--sort-by=.lastTimestamp"},
		"pods.txt":         {"describe", "pods", "-A"},
		"turns.yaml":       {"get", "turns", "-A", "-o", "yaml"},
		"manager.log":      {"-n", system, "logs", "-l", "app.kubernetes.io/name=capstan", "--tail=-1", "--prefix"},
		"manager-last.log": {"-n", system, "logs", "-l", "app.kubernetes.io/name=capstan", "--tail=-1", "--prefix", "--previous"},
		"drain.log":        {"-n", system, "logs", "job/capstan-drain"},
		"wiper.log":        {"-n", "wipes", "logs", "deployment/wiper"},
	} {
		out, err := t.output(ctx, "", t.cluster.Kubectl, args...)
		if err != nil {
			out += err.Error()
		}
		_ = os.WriteFile(filepath.Join(t.options.logs, file), []byte(out), 0o600) // a missing log is no reason to stop
	}
}

// appVersion reads the image tag of the chart.
func appVersion(path string) (string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	var chart struct {
		AppVersion string `json:"appVersion"`
	}
	if err := yaml.Unmarshal(data, &chart); err != nil || chart.AppVersion == "" {
		return "", fmt.Errorf("failed to find the version of the image in %s: %w", path, err)
	}
	return chart.AppVersion, nil
}
