// Command demo shows Capstan at work on this machine. It starts a real control plane, the fake model server, a tool
// server and the manager. Then it applies the manifests of the quickstart and shows the progress of the Turn. After
// that it does the same for an Agent with tools, and approves a call. At the end it stops all these programs.
//
// With KEEP=1 or --keep, the programs keep running in the background, until demo --stop.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
)

// workDir is the directory of the logs, the data, the kubeconfig and the state of a demo. Its .gitignore excludes the
// whole directory from git.
const workDir = ".demo"

// options holds the values of the flags.
type options struct {
	manager, fakemodel, toolserver, capstan string
	rules, manifests, tools, crds, config   string
	turn, toolsTurn                         string
	timeout                                 time.Duration
	keep, stop                              bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		if _, ok := errors.AsType[shownError](err); !ok {
			fmt.Fprintf(os.Stderr, "demo: %v\n", err)
		}
		os.Exit(1)
	}
}

// shownError is an error that was already printed.
type shownError struct{ error }

func run(ctx context.Context, args []string, out, errOut io.Writer) error {
	// Discard the logs of the libraries. The libraries return what matters as errors.
	klog.SetLogger(logr.Discard())
	ctrllog.SetLogger(logr.Discard())
	o, err := parse(args, errOut)
	if err != nil {
		return err
	}
	w := workspace{dir: workDir}
	switch {
	case o.stop:
		return w.stop(ctx, out)
	case o.keep && os.Getenv(backgroundVariable) == "":
		return w.runInBackground(ctx, args, out)
	}
	release, err := w.claim()
	if err != nil {
		return err
	}
	defer release()
	return newDemo(o, w, out).run(ctx)
}

func parse(args []string, usage io.Writer) (options, error) {
	var o options
	f := flag.NewFlagSet("demo", flag.ContinueOnError)
	f.SetOutput(usage)
	f.StringVar(&o.manager, "manager", "bin/manager", "path of the manager's executable file")
	f.StringVar(&o.fakemodel, "fakemodel", "bin/fakemodel", "path of the fake model server's executable file")
	f.StringVar(&o.toolserver, "toolserver", "bin/toolserver", "path of the tool server's executable file")
	f.StringVar(&o.capstan, "capstan", "bin/capstan", "path of the command line's executable file, which approves a call")
	f.StringVar(&o.rules, "rules", "test/fakemodel/rules.yaml", "rules file of the fake model")
	f.StringVar(&o.manifests, "manifests", "examples/quickstart", "directory of manifests to apply")
	f.StringVar(&o.tools, "tools", "examples/tools", "second directory of manifests to apply, or empty")
	f.StringVar(&o.crds, "crds", "config/crd/bases", "directory of the CRDs")
	f.StringVar(&o.config, "config", "config", "directory of the approver role and of the approval policy")
	f.StringVar(&o.turn, "turn", "open-loops", "name of the Turn to wait for")
	f.StringVar(&o.toolsTurn, "tools-turn", "printer-works", "name of the Turn of --tools")
	f.DurationVar(&o.timeout, "timeout", time.Minute, "time limit of each Turn")
	f.BoolVar(&o.keep, "keep", os.Getenv("KEEP") == "1", "keep everything running (KEEP=1)")
	f.BoolVar(&o.stop, "stop", false, "stop the demo that --keep keeps running")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("unknown argument %q", f.Arg(0))
	}
	return o, nil
}
