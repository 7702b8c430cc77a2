// Command manager is Capstan's manager with the kill test's hooks: it dies or stops at a
// point in the life of a Turn if it is told one, and writes down what it does to the world. It takes the flags of cmd/manager.
package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap/zapcore"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	"github.com/capstan-dev/capstan/hack/chaos/failpoint"
	"github.com/capstan-dev/capstan/internal/manager"
)

// The environment variables that the kill test sets.
const (
	// crashVariable is a point to die at, and pauseVariable one to stop at until SIGCONT, as failpoint.Parse reads them;
	// empty for none.
	crashVariable = "CAPSTAN_CRASH_AT"
	pauseVariable = "CAPSTAN_PAUSE_AT"
	// traceVariable is the path of a file for the trace of all effects; empty for none.
	traceVariable = "CAPSTAN_CHAOS_TRACE"
)

func main() {
	if err := command().Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "manager:", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	var o manager.Options
	cmd := &cobra.Command{
		Use: "manager", Short: "Run Capstan's manager for the kill test",
		Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := manager.FromEnvironment(cmd.Flags(), os.LookupEnv); err != nil {
				return err
			}
			o.NameGiven = cmd.Flags().Changed("executor-name")
			if err := o.Validate(); err != nil {
				return err
			}
			return run(o)
		},
	}
	o.AddFlags(cmd.Flags())
	return cmd
}

func run(o manager.Options) (err error) {
	log := zap.New(zap.StacktraceLevel(zapcore.PanicLevel))
	ctrl.SetLogger(log)
	klog.SetLogger(log)
	line, closeTrace, err := newLine()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeTrace()) }()
	o.Hooks = manager.Hooks{Journal: line.Journal, Provider: line.Provider, Servers: line.Servers, Status: line.Status}
	cfg, err := o.RESTConfig()
	if err != nil {
		return err
	}
	// The API server notes the first part as who wrote a field.
	cfg.UserAgent = cmp.Or(o.ExecutorName, "manager") + "/chaos"
	return manager.Run(ctrl.SetupSignalHandler(), o, cfg, log)
}

// newLine reads what the kill test wants of this process.
func newLine() (*failpoint.Line, func() error, error) {
	line := &failpoint.Line{Now: time.Now}
	for variable, strike := range map[string]func(){crashVariable: die, pauseVariable: sleep} {
		text := os.Getenv(variable)
		if text == "" {
			continue
		}
		p, err := failpoint.Parse(text)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", variable, err)
		}
		line.Point, line.Strike = &p, strike
	}
	path := os.Getenv(traceVariable)
	if path == "" {
		return line, func() error { return nil }, nil
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", traceVariable, err)
	}
	line.Trace = f
	return line, f.Close, nil
}

// die ends this process as the kernel or a power cut would: nothing is tidied up.
func die() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // until the signal has arrived
}

// stopTime is what the kernel gets to stop all threads in. The stopped time does not count.
const stopTime = 200 * time.Millisecond

// sleep stops this process, as a frozen machine would, until it gets SIGCONT.
func sleep() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	time.Sleep(stopTime)
}
