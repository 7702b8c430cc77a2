// Command manager runs Capstan's controllers and executor against a cluster.
package main

import (
	"fmt"
	standard "log"
	"os"
	_ "time/tzdata" // the image has no time zone files

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

func main() {
	var o manager.Options
	cmd := command(&o)
	if err := cmd.Execute(); err != nil {
		// The environment may set the format and the level of the log. If a flag is invalid, the command has not read
		// the environment.
		_ = manager.FromEnvironment(cmd.Flags(), os.LookupEnv)
		logger(&o).Error(err, "Failed")
		os.Exit(1)
	}
}

// logger returns a logger with the chosen format and level.
func logger(o *manager.Options) logr.Logger {
	return zap.New(zap.UseDevMode(o.LogFormat == "console"), zap.Level(level(o.LogLevel)), zap.StacktraceLevel(zapcore.PanicLevel))
}

func command(o *manager.Options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "manager",
		Short: "Run Capstan's controllers and executor",
		Long: `manager has two roles. The role controller watches the objects of Capstan, which kubectl get capstan
lists, and the role executor runs the Turns. A process has both roles, unless --roles selects one.

Each flag can also be set by an environment variable: CAPSTAN_ and the flag's name in capitals, with
underscores (--data-dir: CAPSTAN_DATA_DIR).

manager stops on SIGTERM or SIGINT. Model requests in flight may finish within --shutdown-grace-seconds,
and the remaining Turns are handed back.`,
		Example: `  # use the cluster of your kubeconfig, with readable logs
  manager --kubeconfig ~/.kube/config --log-format console

  # watch only two namespaces
  manager --watch-namespaces helpdesk,sales

  # run Turns in another process, in addition to a manager with the same database
  PGPASSWORD=... manager --roles executor --store postgres://capstan@db.example.com/capstan`,
		Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true, Version: version,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := manager.FromEnvironment(cmd.Flags(), os.LookupEnv); err != nil {
				return err
			}
			o.SetDefaultName(cmd.Flags())
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
			standard.SetFlags(0)
			standard.SetOutput(manager.StandardLog(log))
			cfg, err := o.RESTConfig()
			if err != nil {
				return fmt.Errorf("no cluster is configured: set --kubeconfig, or run in a Pod: %w", err)
			}
			cfg.UserAgent = "capstan-manager/" + version
			ctx := ctrl.SetupSignalHandler()
			go limit.LimitGarbage(ctx)
			return manager.Run(ctx, *o, cfg, log)
		},
	}
	o.AddFlags(cmd.Flags())
	cmd.AddCommand(drainCommand(), checkCommand())
	return cmd
}

// clientsOf returns clients for the cluster of a kubeconfig. If kubeconfig is empty, it selects the cluster as the
// manager does.
func clientsOf(kubeconfig, command string) (kubernetes.Interface, error) {
	options := manager.Options{Kubeconfig: kubeconfig}
	cfg, err := options.RESTConfig()
	if err != nil {
		return nil, fmt.Errorf("no cluster is configured: set --kubeconfig, or run in a Pod: %w", err)
	}
	cfg.UserAgent = "capstan-" + command + "/" + version
	clients, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("failed to create a client: %w", err)
	}
	return clients, nil
}

const kubeconfigUsage = "path of a kubeconfig file; default: $KUBECONFIG, else the cluster this process runs in, else ~/.kube/config"

func drainCommand() *cobra.Command {
	var kubeconfig string
	var o drain.Options
	cmd := &cobra.Command{
		Use:   "drain",
		Short: "Stop the Pods of a manager's Deployments and wait until they are gone",
		Long: `drain scales Deployments to zero and waits until their Pods are gone. The Pods hand back their Turns while
they still have the permissions to do so. The Helm chart runs drain before helm uninstall removes anything.`,
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
		Short: "Check whether an installation works",
		Long: `check verifies that the custom resource definitions are served, all Pods of the Deployments are ready, an
executor accepts Turns, a manager leads, and the read API replies. It waits for checks that do not pass
yet, and fails after the timeout. The Helm chart runs check for helm test.`,
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

// quiet is a log sink for the messages of controller-runtime about its own work, such as the start of a server. It logs
// these messages at the debug level; errors stay errors.
type quiet struct{ logr.LogSink }

// Enabled reports whether the wrapped sink logs a message that is one level lower.
func (q quiet) Enabled(level int) bool { return q.LogSink.Enabled(level + 1) }

// Info logs a message one level lower.
func (q quiet) Info(level int, message string, values ...any) {
	q.LogSink.Info(level+1, message, values...)
}

// WithValues returns a quiet sink with these values.
func (q quiet) WithValues(values ...any) logr.LogSink { return quiet{q.LogSink.WithValues(values...)} }

// WithName returns a quiet sink with this name.
func (q quiet) WithName(name string) logr.LogSink { return quiet{q.LogSink.WithName(name)} }
