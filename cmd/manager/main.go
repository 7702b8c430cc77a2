// Command manager runs Capstan's controllers and executor against a cluster.
package main

import (
	"fmt"
	"os"
	"runtime/debug"

	"github.com/spf13/cobra"
	"go.uber.org/zap/zapcore"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	"github.com/capstan-dev/capstan/internal/manager"
)

// version is set by the build.
var version = "dev"

// gcPercent is how much garbage may pile up, in percent of what lives, where GOGC does not say. Go's own 100 doubles what a
// thousand Turns hold while they wait for models; half of it costs a manager little, as it mostly waits, too.
const gcPercent = 50

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if err := command().Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "manager:", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	var o manager.Options
	cmd := &cobra.Command{
		Use:   "manager",
		Short: "Run Capstan's controllers and executor",
		Long: `manager watches the kinds of Capstan, of which kubectl get capstan lists all objects, and runs the Turns. One process does
all of it, unless --roles says otherwise.

Every flag can be set by an environment variable instead: CAPSTAN_ and the flag's name in capitals, with underscores
(--data-dir: CAPSTAN_DATA_DIR). It stops on SIGTERM or SIGINT: model requests in flight may finish within
--shutdown-grace-seconds, and the Turns that are left are handed back.`,
		Example: `  # against the cluster of your kubeconfig, with readable logs
  manager --kubeconfig ~/.kube/config --log-format console

  # for two namespaces only
  manager --watch-namespaces helpdesk,sales

  # one more process that runs Turns, beside a manager with the same database
  PGPASSWORD=... manager --roles executor --store postgres://capstan@db.example.com/capstan`,
		Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true, Version: version,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := manager.FromEnvironment(cmd.Flags(), os.LookupEnv); err != nil {
				return err
			}
			o.NameGiven = cmd.Flags().Changed("executor-name")
			if err := o.Validate(); err != nil {
				return err
			}
			log := zap.New(zap.UseDevMode(o.LogFormat == "console"), zap.Level(level(o.LogLevel)), zap.StacktraceLevel(zapcore.PanicLevel))
			ctrl.SetLogger(log)
			klog.SetLogger(log)
			cfg, err := o.RESTConfig()
			if err != nil {
				return fmt.Errorf("found no cluster to work with: give --kubeconfig, or run in a Pod: %w", err)
			}
			cfg.UserAgent = "capstan-manager/" + version
			return manager.Run(ctrl.SetupSignalHandler(), o, cfg, log)
		},
	}
	o.AddFlags(cmd.Flags())
	return cmd
}

func level(name string) zapcore.Level {
	switch name {
	case "error":
		return zapcore.ErrorLevel
	case "debug":
		return zapcore.DebugLevel
	}
	return zapcore.InfoLevel
}
