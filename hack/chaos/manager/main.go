// Command manager is Capstan's manager with the hooks of the kill test. Environment variables can make it die or
// stop at a point in the life of a Turn, and make it trace its effects. It takes the flags of cmd/manager.
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
	// crashVariable is the point at which the process dies. pauseVariable is the point at which it stops until
	// SIGCONT. Both have the format of failpoint.Parse; empty means never.
	crashVariable = "CAPSTAN_CRASH_AT"
	pauseVariable = "CAPSTAN_PAUSE_AT"
	// traceVariable is the path of the file for the trace of all effects. If it is empty, no trace is written.
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
			o.SetDefaultName(cmd.Flags())
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
	// The API server uses the part before the slash as the field manager.
	cfg.UserAgent = cmp.Or(o.ExecutorName, "manager") + "/chaos"
	return manager.Run(ctrl.SetupSignalHandler(), o, cfg, log)
}

// newLine creates the line that the environment variables describe.
func newLine() (*failpoint.Line, func() error, error) {
	line := &failpoint.Line{Now: time.Now}
	for variable, interrupt := range map[string]func(){crashVariable: die, pauseVariable: sleep} {
		text := os.Getenv(variable)
		if text == "" {
			continue
		}
		p, err := failpoint.Parse(text)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", variable, err)
		}
		line.Point, line.Interrupt = &p, interrupt
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

// die ends this process without any cleanup, like a power cut.
func die() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // until the signal has arrived
}

// stopTime is the time for the kernel to stop all threads. Time in the stopped state does not count.
const stopTime = 200 * time.Millisecond

// sleep stops this process until it receives SIGCONT, like a machine that freezes.
func sleep() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	time.Sleep(stopTime)
}
