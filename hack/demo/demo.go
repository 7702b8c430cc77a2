package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/hack/stack"
)

const (
	// modelAddress is where the quickstart's ModelProvider expects the model.
	modelAddress = "127.0.0.1:8089"
	// systemNamespace is where the manager keeps its Leases.
	systemNamespace = "capstan-system"
	// turnNamespace is where kubectl applies manifests that name none.
	turnNamespace = metav1.NamespaceDefault
	// tailLines is how much of each log a failure shows.
	tailLines = 12
)

var scheme = runtime.NewScheme()

func init() {
	utilruntime.Must(corev1.AddToScheme(scheme))
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
}

// demo is one run.
type demo struct {
	options
	workspace workspace
	out       io.Writer
	started   time.Time

	// Set as the parts come up.
	stack   *stack.Stack
	cluster *stack.ControlPlane
	api     client.WithWatch
}

func newDemo(o options, w workspace, out io.Writer) *demo {
	return &demo{options: o, workspace: w, out: out, started: time.Now()}
}

// run is the whole story: start, apply, watch, show; then stop, or stay until a signal. It always stops what it started.
func (d *demo) run(signals context.Context) (err error) {
	ctx, cancel := context.WithCancelCause(signals)
	defer cancel(nil)
	if err := d.workspace.clear(); err != nil {
		return err
	}
	d.stack = stack.New(d.workspace.dir, cancel)
	defer func() {
		if cause := context.Cause(ctx); err != nil && cause != nil {
			err = cause // a program that ended says more than the call that this broke off
		}
		err = d.finish(err, signals.Err() != nil)
	}()

	d.print("Capstan demo: one Turn on a real Kubernetes API server\n\n")
	for _, phase := range []func(context.Context) error{d.startControlPlane, d.startPrograms, d.apply} {
		if err := phase(ctx); err != nil {
			return err
		}
	}
	turn, err := d.waitForTurn(ctx)
	if err != nil {
		return err
	}
	if err := d.report(ctx, turn); err != nil {
		return err
	}
	if !d.keep {
		d.sayNext()
		return nil
	}
	return d.stay(ctx, signals)
}

// finish says what went wrong, if anything did, and stops everything.
func (d *demo) finish(err error, interrupted bool) error {
	switch {
	case err != nil && interrupted:
		d.print("\nInterrupted.\n\n")
	case err != nil:
		d.explain(err)
	}
	d.step("Stopping everything")
	if stopErr := d.stack.Stop(); stopErr != nil {
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
	if d.cluster, err = d.stack.StartControlPlane(ctx, d.crds); err != nil {
		return err
	}
	if d.api, err = client.NewWithWatch(d.cluster.Config, client.Options{Scheme: scheme}); err != nil {
		return fmt.Errorf("failed to make a client: %w", err)
	}
	if err := d.api.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: systemNamespace}}); err != nil {
		return fmt.Errorf("failed to create the manager's namespace: %w", err)
	}
	return nil
}

func (d *demo) startPrograms(ctx context.Context) error {
	d.step("Starting a fake model server on %s", modelAddress)
	_, err := d.stack.StartProgram(ctx, stack.Program{
		Name: "fakemodel", Path: d.fakemodel,
		Args:   []string{"--listen", modelAddress, "--rules", d.rules},
		Listen: []string{modelAddress}, ReadyURL: "http://" + modelAddress + "/_fake/stats",
	})
	if err != nil {
		return err
	}
	d.step("Starting the Capstan manager")
	probes, err := stack.FreeAddress(ctx)
	if err != nil {
		return err
	}
	_, err = d.stack.StartProgram(ctx, stack.Program{
		Name: "manager", Path: d.manager,
		Args: []string{
			"--kubeconfig", d.cluster.Kubeconfig, "--namespace", systemNamespace, "--executor-name", "demo",
			"--data-dir", d.workspace.path("data"), "--metrics-bind-address", "0", "--read-bind-address", "127.0.0.1:0", "--health-probe-bind-address", probes,
			"--log-format", "console",
		},
		Listen: []string{probes}, ReadyURL: "http://" + probes + "/readyz",
	})
	return err
}

// apply sends the manifests to the API server as a user would.
func (d *demo) apply(ctx context.Context) error {
	d.step("kubectl apply -f %s", d.manifests)
	output, err := d.kubectl(ctx, "apply", "-f", d.manifests)
	if err != nil {
		return err
	}
	d.print("%s", indent(output, len("  00.0s  ")))
	return nil
}

// explain says why the demo failed, and what the programs last said.
func (d *demo) explain(err error) {
	d.print("\nFailed: %v\n\n", err)
	for _, log := range d.stack.Logs() {
		// The control plane's logs are long; what the error tells already is not repeated.
		name := filepath.Base(log)
		if (name != "manager.log" && name != "fakemodel.log") || strings.Contains(err.Error(), log) {
			continue
		}
		if tail := stack.Tail(log, tailLines); tail != "" {
			d.print("The end of %s:\n%s\n", log, indent(tail, 4))
		}
	}
	d.print("All logs are in %s.\n\n", d.workspace.path("logs"))
}

// step prints a line of progress with the seconds since the start.
func (d *demo) step(format string, args ...any) {
	d.print("%6.1fs  %s\n", time.Since(d.started).Seconds(), fmt.Sprintf(format, args...))
}

// print writes to the reader; one who has gone away does not end the demo before it has cleaned up.
func (d *demo) print(format string, args ...any) {
	_, _ = fmt.Fprintf(d.out, format, args...)
}

// indent puts spaces before each line and a line break after the last.
func indent(text string, by int) string {
	margin := strings.Repeat(" ", by)
	return margin + strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n"+margin) + "\n"
}
