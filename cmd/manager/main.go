// Command manager runs Capstan's controllers and executor against a cluster.
package main

import (
	"fmt"
	"os"
	"runtime/debug"
	_ "time/tzdata" // an image has no time zones

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"go.uber.org/zap/zapcore"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	"github.com/capstan-dev/capstan/internal/drain"
	"github.com/capstan-dev/capstan/internal/installation"
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
	var o manager.Options
	cmd := command(&o)
	if err := cmd.Execute(); err != nil {
		_ = manager.FromEnvironment(cmd.Flags(), os.LookupEnv) // a flag may be what is wrong, before the environment was read
		logger(&o).Error(err, "Failed")
		os.Exit(1)
	}
}

// logger logs in the format and at the level that are chosen.
func logger(o *manager.Options) logr.Logger {
	return zap.New(zap.UseDevMode(o.LogFormat == "console"), zap.Level(level(o.LogLevel)), zap.StacktraceLevel(zapcore.PanicLevel))
}

func command(o *manager.Options) *cobra.Command {
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
			limit, err := o.Memory()
			if err != nil {
				return err
			}
			limit.Apply()
			log := logger(o)
			ctrl.SetLogger(logr.New(quiet{log.GetSink()}))
			klog.SetLogger(log)
			cfg, err := o.RESTConfig()
			if err != nil {
				return fmt.Errorf("found no cluster to work with: give --kubeconfig, or run in a Pod: %w", err)
			}
			cfg.UserAgent = "capstan-manager/" + version
			return manager.Run(ctrl.SetupSignalHandler(), *o, cfg, log)
		},
	}
	o.AddFlags(cmd.Flags())
	cmd.AddCommand(drainCommand(), checkCommand())
	return cmd
}

// clientsOf returns clients of the cluster of a kubeconfig, or of the one that this process runs in, for a command.
func clientsOf(kubeconfig, command string) (kubernetes.Interface, error) {
	options := manager.Options{Kubeconfig: kubeconfig}
	cfg, err := options.RESTConfig()
	if err != nil {
		return nil, fmt.Errorf("found no cluster to work with: give --kubeconfig, or run in a Pod: %w", err)
	}
	cfg.UserAgent = "capstan-" + command + "/" + version
	clients, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("failed to make a client: %w", err)
	}
	return clients, nil
}

const kubeconfigUsage = "path of a kubeconfig file; default: the cluster this process runs in, else $KUBECONFIG or ~/.kube/config"

func drainCommand() *cobra.Command {
	var kubeconfig string
	var o drain.Options
	cmd := &cobra.Command{
		Use:   "drain",
		Short: "Stop the Pods of a manager's Deployments and wait until they are gone",
		Long: `drain scales Deployments to zero and waits until their Pods are gone, so that these hand their Turns back while they may. The Helm
chart runs it before helm uninstall removes anything.`,
		Example: `  manager drain --namespace capstan-system --deployments capstan`,
		Args:    cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		RunE: func(*cobra.Command, []string) error {
			clients, err := clientsOf(kubeconfig, "drain")
			if err != nil {
				return err
			}
			return drain.Run(ctrl.SetupSignalHandler(), clients, o, zap.New(zap.StacktraceLevel(zapcore.PanicLevel)))
		},
	}
	cmd.Flags().StringVar(&kubeconfig, "kubeconfig", "", kubeconfigUsage)
	o.AddFlags(cmd.Flags())
	return cmd
}

func checkCommand() *cobra.Command {
	var kubeconfig string
	var o installation.Options
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Say whether an installation works",
		Long: `check looks whether the custom resource definitions are served, all Pods of the Deployments are ready, an executor takes Turns, a manager leads,
and the read API answers. It waits for what does not work yet, and fails when the time is over. The Helm chart runs it for helm test.`,
		Example: `  manager check --namespace capstan-system --deployments capstan`,
		Args:    cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			clients, err := clientsOf(kubeconfig, "check")
			if err != nil {
				return err
			}
			return installation.Check(ctrl.SetupSignalHandler(), clients, o, cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVar(&kubeconfig, "kubeconfig", "", kubeconfigUsage)
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

// quiet is where the library logs what it says of its own parts, such as that a server starts: at debug. Errors stay errors.
type quiet struct{ logr.LogSink }

// Enabled reports whether debug lines are written.
func (q quiet) Enabled(level int) bool { return q.LogSink.Enabled(level + 1) }

// Info writes a line one level below.
func (q quiet) Info(level int, message string, values ...any) {
	q.LogSink.Info(level+1, message, values...)
}

// WithValues returns a sink that is quiet, too.
func (q quiet) WithValues(values ...any) logr.LogSink { return quiet{q.LogSink.WithValues(values...)} }

// WithName returns a sink that is quiet, too.
func (q quiet) WithName(name string) logr.LogSink { return quiet{q.LogSink.WithName(name)} }
