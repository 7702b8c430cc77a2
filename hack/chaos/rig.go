package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/test/fakemodel/server"
	"github.com/capstan-dev/capstan/test/harness"
)

// rig is the environment of the phases: one control plane, one model server and one tool server.
type rig struct {
	options
	dir     string
	harness *harness.Harness
	cluster *harness.ControlPlane
	api     client.Client
	// user is the name of the test's user, who is the requester of all Turns.
	user     string
	model    *server.Server
	modelURL string
	tools    *toolServer
	toolsURL string
	progress io.Writer
	started  time.Time
	// source provides the random numbers of the test. Only one goroutine may use it; other goroutines use fork.
	source *rand.Rand
	// sharedPostgres is the PostgreSQL server of all phases. It starts when a phase needs it for the first time.
	sharedPostgres journalStore
}

// withRig starts a rig, calls use with it, and stops it. It keeps the logs if anything fails.
func withRig(ctx context.Context, o options, progress io.Writer, use func(context.Context, *rig) error) (err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	//nolint:gosec // because it must be repeatable
	r := &rig{options: o, progress: progress, started: time.Now(), source: rand.New(rand.NewPCG(o.seed, 1))}
	if r.dir, err = os.MkdirTemp("", "capstan-chaos-"); err != nil {
		return fmt.Errorf("failed to make a directory: %w", err)
	}
	r.harness = harness.New(r.dir, cancel)
	defer func() {
		// The cause of the cancellation explains more than the error of the request that it interrupted.
		if cause := context.Cause(ctx); err != nil && cause != nil {
			err = cause
		}
		if err = errors.Join(err, r.harness.Stop()); err != nil {
			err = fmt.Errorf("%w\nthe logs are in %s; to use the same kills and plans again, run with the same flags and --seed %d "+
				"(delays of requests and tools differ)", err, filepath.Join(r.dir, "logs"), o.seed)
			return
		}
		err = os.RemoveAll(r.dir)
	}()
	r.logf("seed %d, logs in %s", o.seed, filepath.Join(r.dir, "logs"))
	if err := r.start(ctx); err != nil {
		return err
	}
	return use(ctx, r)
}

func (r *rig) start(ctx context.Context) error {
	r.tools = newToolServer(slowestCall)
	var err error
	if r.toolsURL, err = r.harness.Serve(ctx, r.tools); err != nil {
		return err
	}
	r.model, err = server.New(server.Config{Rules: rules(r.fork())}, server.WithKeptRequests(100_000))
	if err != nil {
		return fmt.Errorf("failed to set up the fake model: %w", err)
	}
	r.harness.OnStop(func() error {
		r.model.Close()
		return nil
	})
	// Delay each request on its way, so that a kill can hit a request that was sent and has not arrived.
	delayed := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if pause(req.Context(), rand.N(maxRequestDelay)) { //nolint:gosec // because it must be random, not secret
			r.model.ServeHTTP(w, req)
		}
	})
	if r.modelURL, err = r.harness.Serve(ctx, delayed); err != nil {
		return err
	}
	r.modelURL += "/v1"
	r.logf("starting etcd and kube-apiserver")
	if r.cluster, err = r.harness.StartControlPlane(ctx, harness.Install{CRDs: r.crds, Policy: "config/policy"}); err != nil {
		return err
	}
	r.cluster.Config.Timeout = 5 * time.Second // an API server that is paused does not answer
	if r.api, err = client.New(r.cluster.Config, client.Options{Scheme: scheme}); err != nil {
		return fmt.Errorf("failed to make a client: %w", err)
	}
	var me authenticationv1.SelfSubjectReview
	if err := r.api.Create(ctx, &me); err != nil {
		return fmt.Errorf("failed to get the name of the user: %w", err)
	}
	r.user = me.Status.UserInfo.Username
	return nil
}

// logf prints a line of progress.
func (r *rig) logf(format string, args ...any) {
	// A failure to print progress must not fail the test.
	_, _ = fmt.Fprintf(r.progress, "chaos: %6.1fs  %s\n", time.Since(r.started).Seconds(), fmt.Sprintf(format, args...))
}

// fork returns a source of random numbers for another goroutine.
func (r *rig) fork() *rand.Rand {
	return rand.New(rand.NewPCG(r.source.Uint64(), r.source.Uint64())) //nolint:gosec // because it must be repeatable
}

// between returns a random duration in the range from..to.
func between(r *rand.Rand, from, to time.Duration) time.Duration {
	return from + time.Duration(r.Int64N(int64(to-from)+1))
}

// postgres returns the PostgreSQL server that all phases share.
func (r *rig) postgres(ctx context.Context) (journalStore, error) {
	var err error
	if r.sharedPostgres == nil {
		r.logf("starting PostgreSQL")
		r.sharedPostgres, err = r.startPostgres(ctx)
	}
	return r.sharedPostgres, err
}

// storeOf returns the store of a phase that works with either kind of store.
func (r *rig) storeOf(ctx context.Context, phase string) (journalStore, error) {
	if r.store == storeSQLite {
		return r.newSQLite(phase), nil
	}
	return r.postgres(ctx)
}

// phase runs one phase after it has reset the records of the servers.
func (r *rig) phase(ctx context.Context, name string, run func(*rig, context.Context) (*phaseReport, error)) (*phaseReport, error) {
	r.model.Reset()
	r.tools.reset()
	begin := time.Now()
	if err := r.prepare(ctx, name); err != nil {
		return nil, err
	}
	p, err := run(r, ctx)
	if err != nil {
		return nil, err
	}
	p.Name, p.Seconds = name, time.Since(begin).Seconds()
	r.logf("%s: %s", name, p.verdict())
	return p, nil
}
