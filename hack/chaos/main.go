// Command chaos is the kill test. It runs Turns of several steps on a real control plane and a real store. While the
// Turns run, it kills managers at random instants and between any two effects, stops the API server and the store,
// and pauses executors. Then it compares the journals and the statuses with the requests that the model server and
// the tool server have received.
//
// It prints a report, and exits with 1 if a guarantee did not hold.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
)

// options holds the values of the flags.
type options struct {
	manager string
	crds    string
	turns   int
	kills   int
	// executorTurns is the number of Turns in each part of the phase with two executors.
	executorTurns int
	// followUps enables evaluation and learning for the Turns in the first part of the phase executors.
	followUps bool
	outages   int
	points    string
	store     string
	only      string
	seed      uint64
	timeout   time.Duration
	output    string
}

// The values that the flags accept.
const (
	storePostgres = "postgres"
	storeSQLite   = "sqlite"
	pointsAll     = "all"
	pointsAfter   = "after"
	outputText    = "text"
	outputJSON    = "json"
)

// phases lists the phases in the order in which they run.
var phases = []struct {
	name string
	run  func(*rig, context.Context) (*phaseReport, error)
}{
	{"random", (*rig).random},
	{"points", (*rig).points},
	{phaseExecutors, (*rig).executors},
	{"failover", (*rig).failover},
	{"lost", (*rig).lost},
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintf(os.Stderr, "chaos: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out, progress io.Writer) error {
	// The libraries' logs are not needed: the test receives all errors as return values.
	klog.SetLogger(logr.Discard())
	ctrllog.SetLogger(logr.Discard())
	o, err := parse(args, progress)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, o.timeout, fmt.Errorf("timed out after --timeout %s", o.timeout))
	defer cancel()
	return withRig(ctx, o, progress, func(ctx context.Context, r *rig) error {
		report := &report{Seed: o.seed, Store: o.store}
		for _, phase := range phases {
			if o.only != "" && o.only != phase.name {
				continue
			}
			p, err := r.phase(ctx, phase.name, phase.run)
			if err != nil {
				return fmt.Errorf("phase %s: %w", phase.name, err)
			}
			report.Phases = append(report.Phases, p)
		}
		if err := report.write(out, o.output); err != nil {
			return fmt.Errorf("failed to print the report: %w", err)
		}
		return report.failure()
	})
}

func parse(args []string, usage io.Writer) (options, error) {
	var o options
	f := flag.NewFlagSet("chaos", flag.ContinueOnError)
	f.SetOutput(usage)
	f.StringVar(&o.manager, "manager", "bin/chaos-manager", "path of the executable file of the manager with the test's hooks")
	f.StringVar(&o.crds, "crds", "config/crd/bases", "directory of the CRDs")
	f.IntVar(&o.turns, "turns", 200, "Turns of the phase random")
	f.IntVar(&o.kills, "kills", 20, "minimum number of kills of a running manager in the phase random")
	f.IntVar(&o.outages, "outages", 3, "minimum number of outages of the API server, and of the store, in the phase random")
	f.IntVar(&o.executorTurns, "executor-turns", 40, "Turns of each part of the phases executors, failover and lost")
	f.BoolVar(&o.followUps, "follow-ups", true, "evaluate and learn from the Turns in the first part of the phase executors")
	f.StringVar(&o.points, "points", pointsAll, "crash points of the phase points: all, or after for only the points after an effect")
	f.StringVar(&o.store, "store", storePostgres,
		"store of the phases random and points: postgres or sqlite; executors and failover always use PostgreSQL, and lost uses both")
	f.StringVar(&o.only, "only", "", "run only this phase: random, points, executors, failover or lost")
	f.Uint64Var(&o.seed, "seed", 0, "seed of the random numbers; 0: choose a random seed")
	f.DurationVar(&o.timeout, "timeout", 15*time.Minute, "time limit of the whole test")
	f.StringVar(&o.output, "o", outputText, "output: text or json")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if o.seed == 0 {
		o.seed = rand.Uint64N(1_000_000) + 1 //nolint:gosec // because it must be random, not secret
	}
	return o, o.validate(f.Args())
}

func (o options) validate(rest []string) error {
	names := []string{""}
	for _, p := range phases {
		names = append(names, p.name)
	}
	switch {
	case len(rest) > 0:
		return fmt.Errorf("unknown argument %q", rest[0])
	case o.turns < 1 || o.kills < 1 || o.outages < 0 || o.executorTurns < 2:
		return errors.New("--turns and --kills must be at least 1, --outages at least 0, --executor-turns at least 2")
	case o.points != pointsAll && o.points != pointsAfter:
		return fmt.Errorf("--points must be %s or %s", pointsAll, pointsAfter)
	case o.store != storePostgres && o.store != storeSQLite:
		return fmt.Errorf("--store must be %s or %s", storePostgres, storeSQLite)
	case !slices.Contains(names, o.only):
		return fmt.Errorf("--only must be one of%s", strings.Join(names, " "))
	case o.output != outputText && o.output != outputJSON:
		return fmt.Errorf("-o must be %s or %s", outputText, outputJSON)
	}
	return nil
}
