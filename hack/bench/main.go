// Command bench measures the cost of Capstan, on a real control plane and against a fake model with a fixed
// latency. It has seven phases:
//
//   - floor compares a manager that runs many Turns at the same time with a bare client-go program that does the
//     minimum for each Turn;
//   - executors compares one process that runs many Turns at the same time with a controller and two executors, all on
//     one PostgreSQL server;
//   - tools measures a manager with many Turns in flight, each of which has called a tool, and compares Turns of one
//     step with Turns of many steps. It fails if the memory or the number of API writes exceeds its limit;
//   - scale measures a small manager that many namespaces share, a manager with many more Turns in flight, and a long
//     Turn whose manager is killed. It fails unless the numbers of restarts, requests and calls are exactly as
//     expected;
//   - evaluations compares Turns that run while other answers are evaluated with Turns without evaluations. It fails if
//     evaluations slow the Turns down too much;
//   - finished compares a manager with few finished Turns in its API server with a manager with thousands. It fails if
//     the second manager costs much more;
//   - neighbours measures a tenant with a steady load while other tenants attack the manager, one attack at a time. It
//     fails if the tenant or the manager suffers too much.
//
// The phases scale, evaluations and neighbours run only on request.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/capstan-dev/capstan/hack/bench/hostile"
)

// floorCommand is the argument that makes this program run as the floor, the bare client-go program that the manager
// is compared with.
const floorCommand = "floor"

// hostileCommand is the argument that makes this program run as the servers of an attacker.
const hostileCommand = "hostile"

// options holds the values of the flags.
type options struct {
	manager    string
	crds       string
	turns      int
	warmup     int
	latency    time.Duration
	replyChars int
	payload    int
	only       []string
	capacity   int
	inFlight   int
	finished   int
	bursts     int
	quiet      time.Duration
	settle     time.Duration // see settleInterval; tests set a shorter time
	timeout    time.Duration
	output     string
	neighbours neighbourOptions
	scale      scaleOptions
}

// The phases, in the order in which they run.
const (
	phaseFloor     = "floor"
	phaseExecutors = "executors"
	phaseTools     = "tools"
	// phaseEvaluations takes 2 minutes, so it runs only on request.
	phaseEvaluations = "evaluations"
	// phaseScale needs root and takes about 10 minutes, so it runs only on request.
	phaseScale    = "scale"
	phaseFinished = "finished"
	// phaseNeighbours needs root and takes 20 to 25 minutes, so it runs only on request.
	phaseNeighbours = "neighbours"
)

var (
	phases    = []string{phaseFloor, phaseExecutors, phaseTools, phaseEvaluations, phaseScale, phaseFinished, phaseNeighbours}
	onRequest = []string{phaseEvaluations, phaseScale, phaseNeighbours}
)

// runs reports whether a phase runs. Without --only, all phases run except those in onRequest.
func (o *options) runs(phase string) bool {
	return len(o.only) == 0 && !slices.Contains(onRequest, phase) || slices.Contains(o.only, phase)
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
	// Discard the logs of the libraries. The libraries return what matters as errors.
	klog.SetLogger(logr.Discard())
	ctrllog.SetLogger(logr.Discard())
	switch {
	case len(args) > 0 && args[0] == floorCommand:
		return runFloor(ctx, args[1:])
	case len(args) > 0 && args[0] == hostileCommand:
		return hostile.Serve(ctx, os.Stdin, out)
	}
	o, err := parse(args, progress)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("failed to find this program's own file: %w", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, o.timeout, fmt.Errorf("timed out after --timeout %s", o.timeout))
	defer cancel()
	report, err := measure(ctx, o, contendersOf(o.manager, self), progress)
	if err != nil {
		return err
	}
	if err := report.write(out, o.output); err != nil {
		return fmt.Errorf("failed to print the report: %w", err)
	}
	return report.failure()
}

func parse(args []string, usage io.Writer) (options, error) {
	o := options{settle: settleInterval}
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.SetOutput(usage)
	f.StringVar(&o.manager, "manager", "bin/manager", "path of the manager's executable file")
	f.StringVar(&o.crds, "crds", "config/crd/bases", "directory of the CRDs")
	f.IntVar(&o.turns, "turns", 300, "floor, executors, finished: number of Turns to create at the same time")
	f.IntVar(&o.warmup, "warmup", 50,
		"floor, executors, tools, evaluations, scale, finished: number of Turns to run before the measurement")
	f.DurationVar(&o.latency, "latency", 2*time.Second, "floor, executors, evaluations, finished: time until the model begins its answer")
	f.IntVar(&o.replyChars, "reply-chars", 400, "all phases: length of the model's answer, in characters, at least 1")
	f.IntVar(&o.payload, "payload", 0, "all phases except neighbours: length of the facts in each Turn, in characters, at most 262144")
	f.Func("only", "phases to run, separated by commas: "+strings.Join(phases, ", ")+"; default: all but "+strings.Join(onRequest, ", "),
		func(list string) error {
			o.only = strings.Split(list, ",")
			return nil
		})
	f.IntVar(&o.capacity, "capacity", 50, "executors: slots of the process that is compared with two executors, an even number")
	f.IntVar(&o.inFlight, "in-flight", 1000, "tools: number of Turns in flight at the same time, from 1 to 100000")
	f.IntVar(&o.finished, "finished", 20_000, fmt.Sprintf("finished: number of finished Turns to create, more than %d", fewFinished))
	f.IntVar(&o.bursts, "bursts", 5, "finished: number of bursts to measure with few, and then with many, finished Turns. "+
		"The report shows medians. If a ratio exceeds its limit, three times as many bursts are run")
	f.DurationVar(&o.quiet, "quiet", 10*time.Second, "finished: time for which the memory of an idle process must be stable")
	var attackNames []string
	f.Func("attacks", "neighbours: attacks, separated by commas: "+namesOf(attacks())+"; default: all",
		func(list string) error {
			attackNames = strings.Split(list, ",")
			return nil
		})
	sizes := map[string]int{}
	f.Func("attack-sizes", "neighbours: sizes of attacks, as ATTACK=NUMBER, such as names=100000,burst=10000", func(list string) error {
		for one := range strings.SplitSeq(list, ",") {
			name, size, ok := strings.Cut(one, "=")
			n, err := strconv.Atoi(size)
			if !ok || err != nil {
				return fmt.Errorf("%q must be NAME=NUMBER", one)
			}
			sizes[name] = n
		}
		return nil
	})
	f.DurationVar(&o.neighbours.window, "window", 15*time.Second,
		"neighbours: time for which the victim is measured without the attacker, and minimum time with the attacker, from 1s to 10m")
	f.DurationVar(&o.neighbours.interval, "victim-interval", 200*time.Millisecond,
		"neighbours: time between two Turns of the victim, from 10ms to 10s")
	f.DurationVar(&o.neighbours.wait, "victim-wait", 30*time.Second,
		"neighbours: how long to wait for the victim's last Turns before they count as failed, from 1s to 30m")
	f.IntVar(&o.neighbours.memoryMiB, "memory-mib", 512, "neighbours: memory limit of the manager under attack, in MiB, from 64 to 65536")
	o.scale.addFlags(f)
	f.DurationVar(&o.timeout, "timeout", 30*time.Minute, "time limit of the whole benchmark")
	f.StringVar(&o.output, "o", outputTable, "output: table or json")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	for _, phase := range o.only {
		if !slices.Contains(phases, phase) {
			return o, fmt.Errorf("--only: %q must be one of %s", phase, strings.Join(phases, ", "))
		}
	}
	var err error
	if o.neighbours.attacks, err = parseAttacks(attackNames, sizes); err != nil {
		return o, err
	}
	if err := o.scale.check(); err != nil {
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
	case o.capacity < 2 || o.capacity > 100_000 || o.capacity%2 != 0:
		return o, errors.New("--capacity must be an even number from 2 to 100000: two executors share it")
	case o.inFlight < 1 || o.inFlight > 100_000:
		return o, errors.New("--in-flight must be from 1 to 100000")
	case o.finished <= fewFinished || o.bursts < 1 || o.quiet <= 0:
		return o, fmt.Errorf("--finished must be above %d, --bursts at least 1, --quiet above 0", fewFinished)
	case o.neighbours.window < time.Second || o.neighbours.window > 10*time.Minute:
		return o, errors.New("--window must be from 1s to 10m")
	case o.neighbours.interval < 10*time.Millisecond || o.neighbours.interval > 10*time.Second:
		return o, errors.New("--victim-interval must be from 10ms to 10s")
	case o.neighbours.wait < time.Second || o.neighbours.wait > 30*time.Minute:
		return o, errors.New("--victim-wait must be from 1s to 30m")
	case o.neighbours.memoryMiB < 64 || o.neighbours.memoryMiB > 65_536:
		return o, errors.New("--memory-mib must be from 64 to 65536")
	case o.output != outputTable && o.output != outputJSON:
		return o, fmt.Errorf("-o must be %s or %s", outputTable, outputJSON)
	}
	return o, nil
}
