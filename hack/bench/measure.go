package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"time"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/hack/fakemodel/server"
	"github.com/capstan-dev/capstan/hack/stack"
)

// contender is a program that runs Turns.
type contender struct {
	name string
	path string
	// args for the manager or the floor: the cluster, the model's base URL, an address for its probes, a folder for data.
	args func(kubeconfig, modelURL, probes, dir string) []string
	// ready is the path of the readiness probe.
	ready string
}

func managerContender(path string) contender {
	return contender{name: "manager", path: path, ready: "/readyz", args: func(kubeconfig, _, probes, dir string) []string {
		return []string{
			"--kubeconfig", kubeconfig, "--data-dir", dir, "--namespace", systemNamespace, "--executor-name", "bench",
			"--metrics-bind-address", "0", "--health-probe-bind-address", probes, "--log-format", "json",
		}
	}}
}

func floorContender(self string) contender {
	return contender{name: floorCommand, path: self, ready: "/", args: func(kubeconfig, modelURL, probes, _ string) []string {
		return []string{floorCommand, "--kubeconfig", kubeconfig, "--model-url", modelURL, "--listen", probes}
	}}
}

// bench is one benchmark under way.
type bench struct {
	options
	stack    *stack.Stack
	cluster  *stack.ControlPlane
	api      client.Client
	turns    rest.Interface
	model    *server.Server
	modelURL string
	dir      string
	progress io.Writer
}

// measure runs the floor and then the manager, each alone with the same control plane and model. Logs are kept if it fails.
func measure(ctx context.Context, o options, manager, floor contender, progress io.Writer) (report *Report, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	b := &bench{options: o, progress: progress}
	if b.dir, err = os.MkdirTemp("", "capstan-bench-"); err != nil {
		return nil, fmt.Errorf("failed to make a folder: %w", err)
	}
	b.stack = stack.New(b.dir, cancel)
	defer func() {
		// What ended the benchmark says more than the request that it broke off.
		if cause := context.Cause(ctx); err != nil && cause != nil {
			err = cause
		}
		if err = errors.Join(err, b.stack.Stop()); err != nil {
			err = fmt.Errorf("%w\nlogs are kept in %s", err, b.dir)
			return
		}
		err = os.RemoveAll(b.dir)
	}()
	stopModel, err := b.startModel(ctx)
	if err != nil {
		return nil, err
	}
	defer stopModel()
	b.say("starting etcd and kube-apiserver")
	if err := b.startCluster(ctx); err != nil {
		return nil, err
	}

	report = &Report{Setup: setupOf(o, runtime.NumCPU())}
	if report.Floor, err = b.contend(ctx, floor); err != nil {
		return nil, fmt.Errorf("failed to measure the floor: %w", err)
	}
	if report.Manager, err = b.contend(ctx, manager); err != nil {
		return nil, fmt.Errorf("failed to measure the manager: %w", err)
	}
	return report, nil
}

func (b *bench) say(format string, args ...any) {
	_, _ = fmt.Fprintf(b.progress, "bench: "+format+"\n", args...) // progress that nobody reads is no failure
}

// startModel serves the fake model from this process; the processes that are measured are others.
func (b *bench) startModel(ctx context.Context) (stop func(), err error) {
	text := "x"
	b.model, err = server.New(server.Config{Rules: []server.Rule{{
		Reply: server.Reply{Text: &text, Repeat: b.replyChars, IgnoreMaxTokens: true},
		Fault: server.Fault{LatencyMilliseconds: int(b.latency.Milliseconds())},
	}}}, server.WithKeptRequests(0))
	if err != nil {
		return nil, fmt.Errorf("failed to set up the fake model: %w", err)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("failed to start the fake model: %w", err)
	}
	b.modelURL = "http://" + listener.Addr().String() + "/v1"
	httpServer := &http.Server{Handler: b.model, ReadHeaderTimeout: 10 * time.Second}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = httpServer.Serve(listener) // always http.ErrServerClosed: a listener that is there does not fail otherwise
	}()
	return func() {
		b.model.Close()
		_ = httpServer.Close() // its connections are of no more use to anybody
		<-done
	}, nil
}

func (b *bench) startCluster(ctx context.Context) error {
	var err error
	if b.cluster, err = b.stack.StartControlPlane(ctx, b.crds); err != nil {
		return err
	}
	b.cluster.Config.QPS = -1 // no limit of this client's own
	if b.api, err = client.New(b.cluster.Config, client.Options{Scheme: scheme}); err != nil {
		return fmt.Errorf("failed to make a client: %w", err)
	}
	if b.turns, err = turnClient(b.cluster.Config); err != nil {
		return err
	}
	for _, object := range objects(b.modelURL, b.latency) {
		if err := b.api.Create(ctx, object); err != nil {
			return fmt.Errorf("failed to create %T %q: %w", object, object.GetName(), err)
		}
	}
	return nil
}

// contend starts a contender, lets it run some Turns to warm up, measures it over the Turns proper, stops it and
// deletes its Turns.
func (b *bench) contend(ctx context.Context, c contender) (Measurement, error) {
	probes, err := stack.FreeAddress(ctx)
	if err != nil {
		return Measurement{}, err
	}
	process, err := b.stack.StartProgram(ctx, stack.Program{
		Name: c.name, Path: c.path, Args: c.args(b.cluster.Kubeconfig, b.modelURL, probes, b.dir),
		Listen: []string{probes}, ReadyURL: "http://" + probes + c.ready,
	})
	if err != nil {
		return Measurement{}, err
	}
	if b.warmup > 0 {
		if _, err := b.burst(ctx, c.name+"-warmup", b.warmup); err != nil {
			return Measurement{}, fmt.Errorf("failed to warm up: %w", err)
		}
	}
	b.say("%s: %d Turns", c.name, b.options.turns)
	before, err := b.settled(ctx, process)
	if err != nil {
		return Measurement{}, err
	}
	result, err := b.burst(ctx, c.name, b.options.turns)
	if err != nil {
		return Measurement{}, err
	}
	after, err := b.settled(ctx, process)
	if err != nil {
		return Measurement{}, err
	}
	if err := process.Stop(); err != nil {
		return Measurement{}, err
	}
	return newMeasurement(result, before, after, b.latency), b.deleteTurns(ctx)
}
