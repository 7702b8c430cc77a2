// Command bench measures what Capstan costs: many Turns at once, on a real control plane, against a fake model of a fixed
// latency, beside a bare client-go program (the floor) that does for each Turn only what nobody can do without.
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

// floorCommand is the argument that makes this program the floor instead.
const floorCommand = "floor"

// options are the flags.
type options struct {
	manager    string
	crds       string
	turns      int
	warmup     int
	latency    time.Duration
	replyChars int
	payload    int
	timeout    time.Duration
	output     string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out, progress io.Writer) error {
	// What is worth knowing comes back as errors.
	klog.SetLogger(logr.Discard())
	ctrllog.SetLogger(logr.Discard())
	if len(args) > 0 && args[0] == floorCommand {
		return runFloor(ctx, args[1:])
	}
	o, err := parse(args, progress)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("failed to find this program's own file: %w", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, o.timeout, fmt.Errorf("not done within --timeout %s", o.timeout))
	defer cancel()
	report, err := measure(ctx, o, managerContender(o.manager), floorContender(self), progress)
	if err != nil {
		return err
	}
	if err := report.write(out, o.output); err != nil {
		return fmt.Errorf("failed to print the report: %w", err)
	}
	return report.failure()
}

func parse(args []string, usage io.Writer) (options, error) {
	var o options
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.SetOutput(usage)
	f.StringVar(&o.manager, "manager", "bin/manager", "the manager's executable file")
	f.StringVar(&o.crds, "crds", "config/crd/bases", "folder of the CRDs")
	f.IntVar(&o.turns, "turns", 300, "Turns to create at once")
	f.IntVar(&o.warmup, "warmup", 50, "Turns to run before, unmeasured")
	f.DurationVar(&o.latency, "latency", 2*time.Second, "time the model takes until its answer begins")
	f.IntVar(&o.replyChars, "reply-chars", 400, "length of the model's answer, in characters, at least 1")
	f.IntVar(&o.payload, "payload", 0, "length of the facts in each Turn, in characters, at most 262144")
	f.DurationVar(&o.timeout, "timeout", 5*time.Minute, "time for the whole benchmark")
	f.StringVar(&o.output, "o", outputTable, "output: table or json")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	switch {
	case f.NArg() > 0:
		return o, fmt.Errorf("unknown argument %q", f.Arg(0))
	case o.turns < 1 || o.warmup < 0 || o.latency < 0:
		return o, errors.New("--turns must be at least 1, --warmup and --latency at least 0")
	case o.replyChars < 1 || o.replyChars > 1_000_000:
		return o, errors.New("--reply-chars must be from 1 to 1000000")
	case o.payload < 0 || o.payload > maxFacts*maxFactChars:
		return o, fmt.Errorf("--payload must be from 0 to %d", maxFacts*maxFactChars)
	case o.output != outputTable && o.output != outputJSON:
		return o, fmt.Errorf("-o must be %s or %s", outputTable, outputJSON)
	}
	return o, nil
}
