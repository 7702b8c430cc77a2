// Command e2e tests an installed Capstan. It runs a cluster with a real kubelet on this machine and then:
//
//  1. runs the five commands of the installation page, which install the packaged chart and lead to a first answer;
//  2. installs the chart with its default values, runs helm test, and applies the same example with one command;
//  3. applies the quickstart and the example with tools;
//  4. follows the page about access for two people without permissions in the manager's namespace. One person asks. The
//     other person reads the journal and approves a call at the read API, whose certificate is then replaced without a
//     restart;
//  5. lets Turns make destructive calls while the manager is disturbed: its Pod is deleted, upgraded, drained from
//     the node, removed with the release, and more: see the variable rounds;
//  6. checks what operators rely on: an upgrade with --reuse-values, ceilings of limits, the columns of kubectl get,
//     monitors, who may read the metrics, volumes of extraVolumes, Events, the rights of the cluster's roles view and
//     edit, a manager without a custom resource definition, and, with --leases, the deletion of the Leases of executors
//     that are gone.
//
// A tool server in the cluster counts the effects. The command prints a table. It fails if an effect happened twice
// or a Turn did not end.
//
// It removes everything that it created, even after a failure or Ctrl-C. After a failure, it keeps the logs.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/capstan-dev/capstan/hack/e2e/node"
)

const (
	// cleanUpPatience is the time limit of the cleanup, which Ctrl-C does not interrupt.
	cleanUpPatience = 2 * time.Minute
)

// options holds the values of the flags.
type options struct {
	kubernetes, postgres, programs, image, cni, state, logs, root string
	rounds                                                        []round
	timeout                                                       time.Duration
	leases                                                        bool
	down, keep                                                    bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	err := start(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintf(os.Stderr, "e2e: %v\n", err)
		os.Exit(1)
	}
}

func start(ctx context.Context, args []string, out io.Writer) (err error) {
	klog.SetLogger(logr.Discard())
	ctrllog.SetLogger(logr.Discard())
	var o options
	f := flag.NewFlagSet("e2e", flag.ContinueOnError)
	f.StringVar(&o.kubernetes, "kubernetes", "", "directory with etcd and the programs of Kubernetes")
	f.StringVar(&o.postgres, "postgres", "", "directory with the programs of PostgreSQL's server")
	f.StringVar(&o.programs, "programs", "bin/e2e", "directory with the static programs that make e2e builds")
	f.StringVar(&o.image, "image", "", "OCI archive of the manager's image, as make image writes it, under the "+
		"name that the chart gives it")
	f.StringVar(&o.cni, "cni", "/usr/lib/cni", "directory with the CNI plugins bridge, host-local and loopback")
	f.StringVar(&o.state, "state", "/run/capstan-e2e", "directory for the cluster's files, removed at the end")
	f.StringVar(&o.logs, "logs", ".e2e", "directory for logs, which are kept after a failure")
	f.StringVar(&o.root, "root", ".", "the root of the repository")
	names := f.String("rounds", "", "rounds to run, separated by commas; default: all")
	f.BoolVar(&o.leases, "leases", false, "also wait until the Leases of executors that are gone are deleted, which takes some minutes")
	f.DurationVar(&o.timeout, "timeout", 15*time.Minute, "time limit of the whole run, without the wait for the Leases")
	f.BoolVar(&o.down, "down", false, "only remove the remains of an earlier run")
	f.BoolVar(&o.keep, "keep", false, "keep the cluster running; --down removes it")
	if err := f.Parse(args); err != nil {
		return err
	}
	if o.rounds, err = selectRounds(*names); err != nil {
		return err
	}
	for _, path := range []*string{&o.kubernetes, &o.programs, &o.image, &o.logs, &o.root} {
		if *path, err = filepath.Abs(*path); err != nil {
			return err
		}
	}
	cluster, err := newCluster(o)
	if err != nil {
		return err
	}
	if o.down {
		return cluster.Down(ctx)
	}
	if err := os.RemoveAll(o.logs); err != nil {
		return err
	}
	if o.leases {
		o.timeout += leasesTimeout
	}
	ctx, cancel := context.WithTimeoutCause(ctx, o.timeout, fmt.Errorf("the run took longer than %s", o.timeout))
	defer cancel()
	return run(ctx, o, cluster, out)
}

func newCluster(o options) (*node.Cluster, error) {
	version, err := appVersion(filepath.Join(o.root, "charts/capstan/Chart.yaml"))
	if err != nil {
		return nil, err
	}
	archive := func(name string) string { return filepath.Join(o.programs, "images", name+"_1_image.tar") }
	// make image writes the two archives into the same directory.
	examples := filepath.Join(filepath.Dir(o.image), strings.Replace(filepath.Base(o.image), "capstan_", "capstan-examples_", 1))
	return node.New(node.Config{
		Kubernetes: o.kubernetes, CoreDNS: archive("coredns"), Pause: archive("pause"), CNI: o.cni, State: o.state, Logs: o.logs,
		Images: []node.Image{
			// The default image name of the chart.
			{Reference: "docker.io/capstan-dev/capstan:" + version, Archive: o.image, Alias: exampleRegistry + "/capstan:" + version},
			{Reference: "e2e.local/fakemodel:1", Archive: archive("fakemodel")},
			{Reference: "e2e.local/toolserver:1", Archive: archive("toolserver")},
			{
				Reference: "docker.io/capstan-dev/capstan-examples:" + version, Archive: examples,
				Alias: exampleRegistry + "/capstan-examples:" + version,
			},
			{Reference: "e2e.local/wiper:1", Archive: archive("wiper")},
			{Reference: "e2e.local/scrape:1", Archive: archive("scrape")},
			{Reference: "e2e.local/previous:v1", Archive: archive("previous")},
		},
	})
}

// run starts the cluster, runs the test, and removes the cluster in any case.
func run(ctx context.Context, o options, cluster *node.Cluster, out io.Writer) (err error) {
	t := &test{options: o, cluster: cluster, out: out, begun: time.Now()}
	defer func() {
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpPatience)
		defer cancel()
		if ctx.Err() != nil {
			err = errors.Join(context.Cause(ctx), err)
		}
		if err != nil {
			t.saveEvidence(ending)
			t.say("The logs are in %s", o.logs)
		}
		if o.keep {
			// PostgreSQL stops when this process exits. With --keep, a manager with its journal in PostgreSQL then no
			// longer works.
			t.say("The cluster keeps running: export KUBECONFIG=%s; make e2e-down removes it", cluster.Kubeconfig)
			return
		}
		if t.database != nil {
			err = errors.Join(err, t.database.Close())
		}
		if err = errors.Join(err, cluster.Down(ending)); err == nil {
			err = os.RemoveAll(o.logs)
		}
	}()
	t.say("Starting a cluster of one node")
	if err := cluster.Up(ctx); err != nil {
		return err
	}
	return t.run(ctx)
}
