package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/test/harness"
)

const (
	// modelAddress and toolsAddress are the addresses of the model server and of the tool server in the manifests of
	// the examples.
	modelAddress = "127.0.0.1:8089"
	toolsAddress = "127.0.0.1:8090"
	// loopback lists the loopback networks. A manager connects to them only if a flag allows it.
	loopback = "127.0.0.0/8,::1/128"
	// systemNamespace is the namespace of the manager's Leases.
	systemNamespace = "capstan-system"
	// turnNamespace is the namespace for manifests without a namespace.
	turnNamespace = metav1.NamespaceDefault
	// tailLines is the number of lines of each log that a failure shows.
	tailLines = 12
)

var scheme = runtime.NewScheme()

func init() {
	utilruntime.Must(corev1.AddToScheme(scheme))
	utilruntime.Must(rbacv1.AddToScheme(scheme))
	utilruntime.Must(authenticationv1.AddToScheme(scheme))
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
}

// demo is one run of the demo.
type demo struct {
	options
	workspace workspace
	out       io.Writer
	started   time.Time

	// The following fields are set when the parts are ready.
	harness *harness.Harness
	cluster *harness.ControlPlane
	api     client.WithWatch
	// token is the approver's token. approvable is the time from which Capstan accepts decisions. Capstan ignores
	// decisions in the first seconds after the installation of the policy.
	token      string
	approvable time.Time
	// shown holds the last printed states of the Turns, by name.
	shown map[string]string
}

// act is a part of the demo: a title, manifests, and the Turn in them that the demo waits for.
type act struct{ title, manifests, turn string }

func (d *demo) acts() []act {
	all := []act{{"One Turn: a question, with facts for the answer", d.manifests, d.turn}}
	if d.tools != "" {
		all = append(all, act{
			"One Turn with tools: it searches, reads, delegates to another agent, and asks before it closes a ticket",
			d.tools, d.toolsTurn,
		})
	}
	return all
}

func newDemo(o options, w workspace, out io.Writer) *demo {
	return &demo{options: o, workspace: w, out: out, started: time.Now(), shown: map[string]string{}}
}

// run runs the whole demo: it starts the programs, applies the manifests, watches the Turns and shows the results. With
// --keep it then waits for a signal. At the end it always stops the programs that it has started.
func (d *demo) run(signals context.Context) (err error) {
	ctx, cancel := context.WithCancelCause(signals)
	defer cancel(nil)
	if err := d.workspace.clear(); err != nil {
		return err
	}
	d.harness = harness.New(d.workspace.dir, cancel)
	defer func() {
		if cause := context.Cause(ctx); err != nil && cause != nil {
			err = cause // the exit of a program explains more than the error of the interrupted call
		}
		err = d.finish(err, signals.Err() != nil)
	}()

	d.print("Capstan demo: Turns on a real Kubernetes API server\n\n")
	for _, phase := range []func(context.Context) error{d.startControlPlane, d.startPrograms, d.play} {
		if err := phase(ctx); err != nil {
			return err
		}
	}
	if !d.keep {
		d.printNextSteps()
		return nil
	}
	return d.keepRunning(ctx, signals)
}

// finish prints the error, if there is one, and stops everything.
func (d *demo) finish(err error, interrupted bool) error {
	switch {
	case err != nil && interrupted:
		d.print("\nInterrupted.\n\n")
	case err != nil:
		d.explain(err)
	}
	d.step("Stopping everything")
	if stopErr := d.harness.Stop(); stopErr != nil {
		d.print("\nFailed to stop everything: %v\n", stopErr)
		err = errors.Join(err, stopErr)
	}
	if err != nil {
		return shownError{err}
	}
	return nil
}

func (d *demo) startControlPlane(ctx context.Context) error {
	d.step("Starting etcd and kube-apiserver, and installing Capstan's CRDs")
	var err error
	if d.cluster, err = d.harness.StartControlPlane(ctx, harness.Install{CRDs: d.crds}); err != nil {
		return err
	}
	if d.api, err = client.NewWithWatch(d.cluster.Config, client.Options{Scheme: scheme}); err != nil {
		return fmt.Errorf("failed to make a client: %w", err)
	}
	if err := d.api.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: systemNamespace}}); err != nil {
		return fmt.Errorf("failed to create the manager's namespace: %w", err)
	}
	return d.allowApprovals(ctx)
}

func (d *demo) startPrograms(ctx context.Context) error {
	d.step("Starting a fake model server on %s, and a tool server on %s", modelAddress, toolsAddress)
	for _, p := range []harness.Program{
		{
			Name: "fakemodel", Path: d.fakemodel, Args: []string{"--listen", modelAddress, "--rules", d.rules},
			Listen: []string{modelAddress}, ReadyURL: "http://" + modelAddress + "/_fake/stats",
		},
		{
			Name: "toolserver", Path: d.toolserver, Args: []string{"--listen", toolsAddress},
			Listen: []string{toolsAddress}, ReadyURL: "http://" + toolsAddress + "/healthz",
		},
	} {
		if _, err := d.harness.StartProgram(ctx, p); err != nil {
			return err
		}
	}
	d.step("Starting the Capstan manager")
	probes, err := harness.FreeAddress(ctx)
	if err != nil {
		return err
	}
	_, err = d.harness.StartProgram(ctx, harness.Program{
		Name: "manager", Path: d.manager,
		Args: []string{
			"--kubeconfig", d.cluster.Kubeconfig, "--namespace", systemNamespace, "--executor-name", "demo",
			"--data-dir", d.workspace.path("data"), "--metrics-bind-address", "0", "--read-bind-address", "127.0.0.1:0",
			"--health-probe-bind-address", probes,
			"--tool-allow-cidrs", loopback, "--log-format", "console",
		},
		Listen: []string{probes}, ReadyURL: "http://" + probes + "/readyz",
	})
	return err
}

// play shows one act after another.
func (d *demo) play(ctx context.Context) error {
	for _, a := range d.acts() {
		d.print("\n%s\n\n", a.title)
		if err := d.apply(ctx, a.manifests); err != nil {
			return err
		}
		turn, err := d.waitForTurn(ctx, a.turn)
		if err != nil {
			return err
		}
		if err := d.report(ctx, turn); err != nil {
			return err
		}
	}
	return nil
}

// apply applies manifests as a user would.
func (d *demo) apply(ctx context.Context, manifests string) error {
	d.step("kubectl apply -f %s", manifests)
	output, _, err := d.cluster.RunKubectl(ctx, "apply", "-f", manifests)
	if err != nil {
		return err
	}
	d.print("%s", indent(output, len("  00.0s  ")))
	return nil
}

// explain prints why the demo failed, and the last lines of the programs' logs.
func (d *demo) explain(err error) {
	d.print("\nFailed: %v\n\n", err)
	for _, log := range d.harness.Logs() {
		// Leave out the control plane's logs, which are long, and logs that the error already contains.
		name := filepath.Base(log)
		if !slices.Contains([]string{"manager.log", "fakemodel.log", "toolserver.log"}, name) || strings.Contains(err.Error(), log) {
			continue
		}
		if tail := harness.Tail(log, tailLines); tail != "" {
			d.print("The end of %s:\n%s\n", log, indent(tail, 4))
		}
	}
	d.print("All logs are in %s.\n\n", d.workspace.path("logs"))
}

// step prints a line of progress with the seconds since the start.
func (d *demo) step(format string, args ...any) {
	d.print("%6.1fs  %s\n", time.Since(d.started).Seconds(), fmt.Sprintf(format, args...))
}

// print writes to the output. It ignores errors, so that a closed terminal does not prevent the cleanup.
func (d *demo) print(format string, args ...any) {
	_, _ = fmt.Fprintf(d.out, format, args...)
}

// indent indents each line and ends the last line with a line break.
func indent(text string, by int) string {
	margin := strings.Repeat(" ", by)
	return margin + strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n"+margin) + "\n"
}
