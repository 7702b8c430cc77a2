package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"time"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/test/fakemodel/server"
	"github.com/capstan-dev/capstan/test/harness"
)

// bench is a benchmark that is running.
type bench struct {
	options
	harness  *harness.Harness
	cluster  *harness.ControlPlane
	api      client.Client
	turns    rest.Interface // the client for Turns; options.turns is the number of Turns
	model    *server.Server
	modelURL string
	dir      string
	progress io.Writer
	fail     func(error) // ends the benchmark
}

// measure runs the selected phases one after another, with the same control plane and model. It keeps the logs if a
// phase fails.
func measure(ctx context.Context, o options, c contenders, progress io.Writer) (report *Report, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	b := &bench{options: o, progress: progress, fail: cancel}
	if b.dir, err = os.MkdirTemp("", "capstan-bench-"); err != nil {
		return nil, fmt.Errorf("failed to make a directory: %w", err)
	}
	b.harness = harness.New(b.dir, cancel)
	defer func() {
		// The cause of the cancellation is more useful than the error of the interrupted request.
		if cause := context.Cause(ctx); err != nil && cause != nil {
			err = cause
		}
		if err = errors.Join(err, b.harness.Stop()); err != nil {
			err = fmt.Errorf("%w\nthe logs are in %s", err, b.dir)
			return
		}
		err = os.RemoveAll(b.dir)
	}()
	if b.model, b.modelURL, err = b.serveModel(ctx, b.latency); err != nil {
		return nil, err
	}
	b.logf("starting etcd and kube-apiserver")
	if err := b.startCluster(ctx); err != nil {
		return nil, err
	}
	return b.phases(ctx, c)
}

// phases runs the selected phases. phaseFinished runs after the phases that count the Turns of the same namespace,
// because its finished Turns are not deleted.
func (b *bench) phases(ctx context.Context, c contenders) (*Report, error) {
	report := &Report{Setup: setupOf(b.options, runtime.NumCPU())}
	var err error
	if b.runs(phaseFloor) {
		if report.Minimal, err = b.contendMinimal(ctx, c.minimal); err != nil {
			return nil, fmt.Errorf("failed to measure the floor with minimal objects: %w", err)
		}
		if report.Floor, err = b.contend(ctx, c.floor); err != nil {
			return nil, fmt.Errorf("failed to measure the floor: %w", err)
		}
		if report.Manager, err = b.contend(ctx, c.manager); err != nil {
			return nil, fmt.Errorf("failed to measure the manager: %w", err)
		}
	}
	if b.runs(phaseExecutors) {
		if report.Executors, err = b.compareExecutors(ctx); err != nil {
			return nil, fmt.Errorf("failed to measure two executors: %w", err)
		}
	}
	if b.runs(phaseTools) {
		if report.Tools, err = b.compareTools(ctx); err != nil {
			return nil, fmt.Errorf("failed to measure Turns with tools: %w", err)
		}
	}
	if b.runs(phaseEvaluations) {
		if report.Evaluations, err = b.compareEvaluations(ctx); err != nil {
			return nil, fmt.Errorf("failed to measure answers during evaluations: %w", err)
		}
	}
	if b.runs(phaseScale) {
		if report.Scale, err = b.measureScale(ctx); err != nil {
			return nil, fmt.Errorf("failed to measure the limits of one manager: %w", err)
		}
	}
	if b.runs(phaseFinished) {
		if report.Finished, err = b.compareFinished(ctx); err != nil {
			return nil, fmt.Errorf("failed to measure a manager with finished Turns: %w", err)
		}
	}
	if b.runs(phaseNeighbours) {
		if report.Neighbours, err = b.compareNeighbours(ctx); err != nil {
			return nil, fmt.Errorf("failed to measure a victim of attackers: %w", err)
		}
	}
	return report, nil
}

// singleTurns is the number of Turns that run one after another.
const singleTurns = 10

// singles runs Turns one after another, on a machine without other load.
func (b *bench) singles(ctx context.Context, name string) (Percentiles, error) {
	b.logf("%s: %d Turns, one after another", name, singleTurns)
	var latencies []time.Duration
	for i := range singleTurns {
		result, err := b.burst(ctx, fmt.Sprintf("%s-single-%d", name, i), 1)
		if err != nil {
			return Percentiles{}, err
		}
		latencies = append(latencies, result.latencies...)
	}
	return percentiles(latencies, b.latency), nil
}

// logf prints a line of progress.
func (b *bench) logf(format string, args ...any) {
	// A failure to print progress must not fail the benchmark.
	_, _ = fmt.Fprintf(b.progress, "bench: "+format+"\n", args...)
}

// serveModel serves a fake model from this process, so that the model is not part of the measured processes. The model
// begins each answer after latency.
func (b *bench) serveModel(ctx context.Context, latency time.Duration) (model *server.Server, baseURL string, err error) {
	text := "x"
	return b.harness.ServeModel(ctx, server.Config{Rules: []server.Rule{{
		Reply: server.Reply{Text: &text, Repeat: b.replyChars, IgnoreMaxTokens: true},
		Fault: server.Fault{LatencyMilliseconds: int(latency.Milliseconds())},
	}}}, server.WithKeptRequests(0))
}

func (b *bench) startCluster(ctx context.Context) error {
	var err error
	if b.cluster, err = b.harness.StartControlPlane(ctx, harness.Install{CRDs: b.crds}); err != nil {
		return err
	}
	if b.api, err = client.New(b.cluster.Config, client.Options{Scheme: scheme}); err != nil {
		return fmt.Errorf("failed to make a client: %w", err)
	}
	if b.turns, err = turnClient(b.cluster.Config, v1alpha1.GroupVersion); err != nil {
		return err
	}
	return b.createAll(ctx, append([]client.Object{newNamespace(systemNamespace)}, objects(namespace, b.modelURL, b.latency)...))
}

// createAll creates objects one after another.
func (b *bench) createAll(ctx context.Context, objects []client.Object) error {
	for _, object := range objects {
		if err := b.api.Create(ctx, object); err != nil {
			return fmt.Errorf("failed to create %T %q: %w", object, object.GetName(), err)
		}
	}
	return nil
}

// contend starts a contender, runs some Turns to warm it up, and then measures a burst and single Turns. At the end it
// stops the contender and deletes the Turns.
func (b *bench) contend(ctx context.Context, c contender) (*Measurement, error) {
	t, err := b.start(ctx, c)
	if err != nil {
		return nil, err
	}
	if err := b.warmUp(ctx, t, c.name); err != nil {
		return nil, err
	}
	b.logf("%s: %d Turns", c.name, b.options.turns)
	before, err := b.sampleAfterWrites(ctx, t)
	if err != nil {
		return nil, err
	}
	result, err := b.burst(ctx, c.name, b.options.turns)
	if err != nil {
		return nil, err
	}
	after, err := b.sampleAfterWrites(ctx, t)
	if err != nil {
		return nil, err
	}
	m := newMeasurement(result, t, before, after, b.latency)
	if m.Single, err = b.singles(ctx, c.name); err != nil {
		return nil, err
	}
	if err := t.stop(); err != nil {
		return nil, err
	}
	return m, b.deleteTurns(ctx)
}
