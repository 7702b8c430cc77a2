// Package manager wires the parts of the manager together: flags, cache, controllers, executor, journal.
package manager

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/approvals"
	"github.com/capstan-dev/capstan/internal/memory"
	"github.com/capstan-dev/capstan/internal/netpolicy"
	"github.com/capstan-dev/capstan/internal/quota"
	"github.com/capstan-dev/capstan/internal/readapi"
	"github.com/capstan-dev/capstan/internal/scheduler"
	"github.com/capstan-dev/capstan/internal/translate"
)

// EnvPrefix stands before a flag's name, in capitals and with underscores, in the name of its environment variable.
const EnvPrefix = "CAPSTAN_"

// The roles of a process.
const (
	// RoleController binds Turns to executors, ends those that never get to run and looks after the objects of all kinds.
	RoleController = "controller"
	// RoleExecutor runs the Turns that are bound to the process.
	RoleExecutor = "executor"
)

// Options of the manager. Each has a flag and an environment variable; the flag wins. Hooks alone has none.
type Options struct {
	// Roles of this process, RoleController and RoleExecutor; none for both.
	Roles []string
	// Kubeconfig is the path of a kubeconfig file; empty for the cluster the process runs in, or $KUBECONFIG.
	Kubeconfig string
	// DataDir holds the journal unless Store says otherwise.
	DataDir string
	// Store is the URL of the journal's store: sqlite:///PATH, or postgres://... as package postgres takes it. It may hold a
	// password.
	Store string
	// Namespace of the manager's own Leases.
	Namespace string
	// ExecutorName is what Turns are bound to.
	ExecutorName string
	// NameGiven says that somebody chose the name, so that no two processes have it. The leader is then known by it, and
	// leads again at once after a restart; by default, two processes on one host would take each other for the same.
	NameGiven bool
	// WatchNamespaces are the namespaces whose objects count; none for all.
	WatchNamespaces []string
	// LeaderElect makes the controller wait until no other leads, and the executor too if the store belongs to one process.
	LeaderElect bool
	// MaxConcurrentTurns is how many Turns this process runs at once, at least 1; 0 for as many as its memory holds.
	MaxConcurrentTurns int
	// MemoryLimit is how much memory the process may use, as a quantity such as 512Mi; empty for what its cgroup or its machine says.
	MemoryLimit string
	// MaxRunningTurnsPerNamespace is how many Turns of one namespace may run at once, as scheduler.ParseShare reads it; empty for any
	// number. MaxQueuedTurnsPerNamespace is how many may wait for a slot, 0 for any number. Both count for the role controller.
	MaxRunningTurnsPerNamespace string
	MaxQueuedTurnsPerNamespace  int
	// MetricsBindAddress and HealthProbeBindAddress are host:port; "0" for none.
	MetricsBindAddress, HealthProbeBindAddress string
	// MetricsTLSCertFile and MetricsTLSKeyFile are the paths of PEM files, which are read again when they change; empty for a
	// certificate that each process makes for itself, and for plain HTTP on the loopback interface.
	MetricsTLSCertFile, MetricsTLSKeyFile string
	// ReadBindAddress is the host:port of the read API; "0" for none. Beyond the loopback it needs ReadTLSCertFile and
	// ReadTLSKeyFile, the paths of PEM files.
	ReadBindAddress, ReadTLSCertFile, ReadTLSKeyFile string
	// ReadTLSBindAddress is the host:port of the read API over TLS, beside ReadBindAddress, which has plain HTTP then; "0" for none.
	ReadTLSBindAddress string
	// TokenAudiences are those of which a token of the read API and of /metrics must have one; none for that of the API server.
	TokenAudiences []string
	// LogFormat is json or console, LogLevel is error, info or debug.
	LogFormat, LogLevel string
	// ShutdownGraceSeconds is how long runs may go on after the process was asked to stop, from 0.
	ShutdownGraceSeconds int
	// SkillsFile is the path of a file with skills that are available to every Agent; empty for none.
	SkillsFile string
	// ProbeIntervalSeconds is the time between two probes of a model provider, at least 1.
	ProbeIntervalSeconds int
	// JournalRetention is how long the journal of a Turn or a Session is kept after its object was deleted; 0 for not at all.
	JournalRetention time.Duration
	// JournalQuota and JournalQuotaPerNamespace are how much the journals of all namespaces, and of each, may use, such as 20Gi; empty
	// for what follows from the store's volume: see quota.Limits.
	JournalQuota, JournalQuotaPerNamespace string
	// ToolAllowCIDRs and ToolDenyCIDRs are prefixes of addresses that tool servers and model providers may, or may not, be
	// reached at, beyond the built-in table of package netpolicy.
	ToolAllowCIDRs, ToolDenyCIDRs []string
	// ClusterCIDRs are the prefixes of the cluster's Services, Pods and nodes; none to ask the API server for them.
	ClusterCIDRs []string
	// Limits are what no Turn goes beyond, by the names of the fields of limits; none for no such ceiling.
	Limits map[string]string
	// ApprovalPolicy is the name of the ValidatingAdmissionPolicy, and of its binding, without which no decision about a call is
	// used; empty for approvals.DefaultPolicy.
	ApprovalPolicy string
	// RolePrefix is what the names of the ClusterRoles for people begin with in this installation, for messages that name one; empty if
	// there are no such roles.
	RolePrefix string
	// TrustDecidedBy uses decisions without that policy.
	TrustDecidedBy bool
	// Hooks stand between the parts of this process.
	Hooks Hooks
}

// AddFlags adds a flag for each option, with its default and what it does.
func (o *Options) AddFlags(f *pflag.FlagSet) {
	host, _ := os.Hostname()
	f.StringSliceVar(&o.Roles, "roles", []string{RoleController, RoleExecutor}, "what this process does, separated by commas: controller binds Turns to executors, executor runs those that are bound to it. With PostgreSQL they may be processes of their own, and any number of executors work at once")
	f.StringVar(&o.Kubeconfig, "kubeconfig", "", "path of a kubeconfig file; default: the cluster this process runs in, else $KUBECONFIG or ~/.kube/config")
	f.StringVar(&o.DataDir, "data-dir", "data", "folder for the journal, made if it is not there")
	f.StringVar(&o.Store, "store", "", "where the journal is kept, as a URL: sqlite:///PATH, or postgres://USER@HOST:PORT/DATABASE with the password in $PGPASSWORD; default: journal.db in --data-dir")
	f.StringVar(&o.Namespace, "namespace", "capstan-system", "namespace of this manager's own Leases; it must exist")
	f.StringVar(&o.ExecutorName, "executor-name", strings.ToLower(host), "name that Turns are bound to, the same after a restart; default: the host name, which is the pod's name")
	f.StringSliceVar(&o.WatchNamespaces, "watch-namespaces", nil, "namespaces whose objects count, separated by commas; default: all")
	f.BoolVar(&o.LeaderElect, "leader-elect", false, "control only while no other manager leads; needed for more than one replica with the role controller. Executors that share a PostgreSQL work all the same; with SQLite, who does not lead runs no Turns")
	f.IntVar(&o.MaxConcurrentTurns, "max-concurrent-turns", 0, "how many Turns this process runs at once; more wait as Queued. 0 is as many as the memory limit holds: two thirds of what GOMEMLIMIT has beyond 56 MiB, at 64 KiB a Turn, from 16 to 10000")
	f.StringVar(&o.MemoryLimit, "memory-limit", "", "how much memory this process may use, as a quantity of at least 64Mi such as 512Mi; default: the limit of its cgroup, else a quarter of the machine's memory. GOMEMLIMIT is a tenth less, and at least 24 MiB less, unless the environment sets it")
	f.StringVar(&o.MaxRunningTurnsPerNamespace, "max-running-turns-per-namespace", "90%", "how many Turns of one namespace may run at once; more wait as Queued. A number, 0 for any, or a percentage of the slots of all executors, rounded up, which holds while Agents of at least two namespaces exist")
	f.IntVar(&o.MaxQueuedTurnsPerNamespace, "max-queued-turns-per-namespace", 10_000, "how many Turns of one namespace may wait for a slot; a new one beyond that ends as QueueFull. 0 for any number")
	f.StringVar(&o.MetricsBindAddress, "metrics-bind-address", "127.0.0.1:8080", `address of /metrics, "0" for none; on one that is not of this machine alone it is served over TLS, to users who may get the path /metrics`)
	f.StringVar(&o.MetricsTLSCertFile, "metrics-tls-cert-file", "", "path of a PEM file with the certificate of /metrics, read again when it changes; default: one that this process makes for itself, or plain HTTP on the loopback interface")
	f.StringVar(&o.MetricsTLSKeyFile, "metrics-tls-key-file", "", "path of a PEM file with the key of that certificate")
	f.StringVar(&o.HealthProbeBindAddress, "health-probe-bind-address", "127.0.0.1:8081", `address of /healthz and /readyz, "0" for none`)
	f.StringVar(&o.ReadBindAddress, "read-bind-address", "127.0.0.1:8082", `address of the read API, which serves the journals of Turns to who may get turns/log, "0" for none; one that is not of this machine alone needs --read-tls-cert-file and --read-tls-key-file`)
	f.StringVar(&o.ReadTLSCertFile, "read-tls-cert-file", "", "path of a PEM file with the certificate of the read API, read again when it changes; default: plain HTTP")
	f.StringVar(&o.ReadTLSBindAddress, "read-tls-bind-address", "0", `address of the read API over TLS beside --read-bind-address, which then has plain HTTP for this machine and forwarded ports; "0" for none`)
	f.StringVar(&o.ReadTLSKeyFile, "read-tls-key-file", "", "path of a PEM file with the key of that certificate")
	f.StringSliceVar(&o.TokenAudiences, "token-audiences", nil, "audiences for which a token that is sent to the read API or to /metrics may be made, separated by commas; default: that of the API server")
	f.StringVar(&o.LogFormat, "log-format", "json", "json or console")
	f.StringVar(&o.LogLevel, "log-level", "info", "error, info or debug")
	f.IntVar(&o.ShutdownGraceSeconds, "shutdown-grace-seconds", 25, "how long model requests in flight may go on when the process is asked to stop, in seconds; what is left then is handed back. Keep it below the pod's termination grace period")
	f.StringVar(&o.SkillsFile, "skills-file", "", "path of a YAML file with skills that are available to every Agent: a list of key, name, description and content; read once, at the start")
	f.IntVar(&o.ProbeIntervalSeconds, "probe-interval-seconds", 60, "time between two probes of a model provider, in seconds; a probe costs no tokens")
	f.DurationVar(&o.JournalRetention, "journal-retention", 24*time.Hour, "how long the journal of a Turn or a Session is kept after its object was deleted, such as 24h or 30m (no unit is longer than an hour); 0 forgets it at once")
	f.StringVar(&o.JournalQuota, "journal-quota", "", "how many bytes all journals may use, such as 20Gi; from 80 % on new Turns wait, and at 100 % those that run wait as well; default: nine tenths of the volume with SQLite, no quota with PostgreSQL")
	f.StringVar(&o.JournalQuotaPerNamespace, "journal-quota-per-namespace", "", "how many bytes the journals of a namespace may use, such as 2Gi; default: as many as are left free of the quota of all, so that a namespace alone may use half of it, and each of two a third")
	f.StringSliceVar(&o.ToolAllowCIDRs, netpolicy.AllowFlag, nil, "prefixes of IP addresses that tool servers and model providers may be reached at, separated by commas, such as 127.0.0.0/8,::1/128; default: all but loopback, link-local, multicast and cloud metadata addresses, and those of the cluster that are not of a Service of the same namespace. The longest prefix that holds an address decides")
	f.StringSliceVar(&o.ToolDenyCIDRs, netpolicy.DenyFlag, nil, "prefixes of IP addresses that tool servers and model providers may not be reached at, separated by commas; among equal prefixes this goes before --"+netpolicy.AllowFlag)
	f.StringSliceVar(&o.ClusterCIDRs, netpolicy.ClusterFlag, nil, "prefixes of IP addresses of the cluster's Services, Pods and nodes, separated by commas: ModelProviders and ToolServers reach of them only Services of their own namespace and what --"+netpolicy.AllowFlag+" has; default: those of Nodes and ServiceCIDRs, and all private addresses where these do not say all")
	f.StringToStringVar(&o.Limits, "limits", nil, "ceilings of the limits of all Turns, by the names of the fields of limits, such as maxSteps=20,timeoutSeconds=600,maxTokens=500000,maxCost=2.50; of these, the Agent's and the Turn's limits the lowest holds. A ceiling is no default. timeoutSeconds is 3600 unless it is given. All processes must have the same")
	f.StringVar(&o.ApprovalPolicy, "approval-policy", approvals.DefaultPolicy, "name of the ValidatingAdmissionPolicy, and of its binding, by which the API server lets nobody decide about a call of a tool in the name of another; while they are not there, no decision is used. config/policy and the chart install them")
	f.StringVar(&o.RolePrefix, "role-prefix", "capstan", "what the names of the ClusterRoles for people begin with, for messages that name one, such as capstan-turn-reader; empty if there are none")
	f.BoolVar(&o.TrustDecidedBy, "trust-decided-by", false, "use decisions about calls of tools without that policy: only where something else makes sure that spec.decidedBy of a ToolApproval is the user who creates it")
}

// Memory returns how much memory the process may use.
func (o *Options) Memory() (memory.Limit, error) {
	given, err := memory.Parse(o.MemoryLimit)
	if err != nil {
		return memory.Limit{}, fmt.Errorf("--memory-limit: %w", err)
	}
	return memory.Detect(given)
}

// timeoutCeiling is the ceiling of timeoutSeconds where --limits gives none. A Turn may ask for a day; as many such Turns as there are
// slots would hold all of them for a day. A Turn that waits for people or sub-agents holds none, and its time does not count.
const timeoutCeiling = "3600"

// ceiling is what no Turn goes beyond.
func (o *Options) ceiling() (*v1alpha1.Limits, error) {
	limits := map[string]string{"timeoutSeconds": timeoutCeiling}
	maps.Copy(limits, o.Limits)
	return translate.Ceiling(limits)
}

// scheduling is what one namespace may take. The options must be valid.
func (o *Options) scheduling() (scheduler.Limits, error) {
	running, err := scheduler.ParseShare(cmp.Or(o.MaxRunningTurnsPerNamespace, "0"))
	return scheduler.Limits{Running: running, Queued: o.MaxQueuedTurnsPerNamespace}, err
}

// netPolicy says which addresses tool servers and model providers may be reached at.
func (o *Options) netPolicy() (*netpolicy.Policy, error) {
	return netpolicy.Parse(o.ToolAllowCIDRs, o.ToolDenyCIDRs)
}

// quotas are those of the journals.
func (o *Options) quotas() (l quota.Limits, err error) {
	var errs [2]error
	l.Total, errs[0] = quotaOf("journal-quota", o.JournalQuota)
	l.PerNamespace, errs[1] = quotaOf("journal-quota-per-namespace", o.JournalQuotaPerNamespace)
	return l, errors.Join(errs[:]...)
}

// minQuota is the least quota: less is a mistake in the unit.
const minQuota = 1 << 20

// quotaOf reads a number of bytes; empty is 0.
func quotaOf(flag, text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	q, err := resource.ParseQuantity(text)
	if err != nil || q.Value() < minQuota {
		return 0, fmt.Errorf("--%s %q must be a number of bytes of at least 1Mi, such as 20Gi", flag, text)
	}
	return q.Value(), nil
}

// FromEnvironment sets the flags that were not given from their environment variables: --data-dir from CAPSTAN_DATA_DIR.
func FromEnvironment(f *pflag.FlagSet, lookup func(string) (string, bool)) error {
	var errs []error
	f.VisitAll(func(flag *pflag.Flag) {
		name := EnvPrefix + strings.ToUpper(strings.ReplaceAll(flag.Name, "-", "_"))
		value, ok := lookup(name)
		if !ok || flag.Changed || flag.Name == "help" {
			return
		}
		if err := f.Set(flag.Name, value); err != nil {
			errs = append(errs, fmt.Errorf("environment variable %s: %w", name, err))
		}
	})
	return errors.Join(errs...)
}

// Validate returns all that is wrong with the options, each with its flag.
func (o *Options) Validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	check(len(validation.IsDNS1123Subdomain(o.ExecutorName)) == 0 && len(o.ExecutorName) <= 200,
		"--executor-name %q must be a lower-case DNS name of at most 200 characters", o.ExecutorName)
	check(len(validation.IsDNS1123Label(o.Namespace)) == 0, "--namespace %q must be the name of a namespace", o.Namespace)
	for _, ns := range o.WatchNamespaces {
		check(len(validation.IsDNS1123Label(ns)) == 0, "--watch-namespaces: %q must be the name of a namespace", ns)
	}
	check(o.MaxConcurrentTurns >= 0 && o.MaxConcurrentTurns <= 100_000, "--max-concurrent-turns %d must be from 1 to 100000, or 0 for as many as the memory holds", o.MaxConcurrentTurns)
	_, wrong := memory.Parse(o.MemoryLimit)
	check(wrong == nil, "--memory-limit: %w", wrong)
	check(o.LogFormat == "json" || o.LogFormat == "console", "--log-format %q must be json or console", o.LogFormat)
	check(o.LogLevel == "error" || o.LogLevel == "info" || o.LogLevel == "debug", "--log-level %q must be error, info or debug", o.LogLevel)
	check(o.ShutdownGraceSeconds >= 0 && o.ShutdownGraceSeconds <= 3600, "--shutdown-grace-seconds %d must be from 0 to 3600", o.ShutdownGraceSeconds)
	check(o.ProbeIntervalSeconds >= 1 && o.ProbeIntervalSeconds <= 86400, "--probe-interval-seconds %d must be from 1 to 86400", o.ProbeIntervalSeconds)
	for flag, address := range map[string]string{
		"metrics-bind-address": o.MetricsBindAddress, "health-probe-bind-address": o.HealthProbeBindAddress,
	} {
		_, _, err := net.SplitHostPort(address)
		check(address == "0" || err == nil, "--%s %q must be host:port, :port, or 0 for none", flag, address)
	}
	wrong = o.checkMetrics()
	check(wrong == nil, "%w", wrong)
	wrong = readapi.CheckAddress(o.ReadBindAddress, o.ReadTLSBindAddress, o.ReadTLSCertFile, o.ReadTLSKeyFile)
	check(wrong == nil, "%w", wrong)
	for _, audience := range o.TokenAudiences {
		check(audience != "" && len(audience) <= 1024, "--token-audiences: an audience must have from 1 to 1024 characters, got %d", len(audience))
	}
	check(o.JournalRetention >= 0 && o.JournalRetention <= maxRetention, "--journal-retention %s must be from 0 to %s", o.JournalRetention, maxRetention)
	check(o.RolePrefix == "" || len(validation.IsDNS1123Subdomain(o.RolePrefix)) == 0, "--role-prefix %q must be the beginning of the names of ClusterRoles", o.RolePrefix)
	check(o.ApprovalPolicy == "" || len(validation.IsDNS1123Subdomain(o.ApprovalPolicy)) == 0, "--approval-policy %q must be the name of a ValidatingAdmissionPolicy", o.ApprovalPolicy)
	_, wrong = o.quotas()
	check(wrong == nil, "%w", wrong)
	_, wrong = netpolicy.ParseCluster(o.ClusterCIDRs)
	check(wrong == nil, "%w", wrong)
	_, wrong = o.netPolicy()
	check(wrong == nil, "%w", wrong)
	_, wrong = scheduler.ParseShare(cmp.Or(o.MaxRunningTurnsPerNamespace, "0"))
	check(wrong == nil, "--max-running-turns-per-namespace: %w", wrong)
	check(o.MaxQueuedTurnsPerNamespace >= 0 && o.MaxQueuedTurnsPerNamespace <= 1_000_000,
		"--max-queued-turns-per-namespace %d must be from 1 to 1000000, or 0 for any number", o.MaxQueuedTurnsPerNamespace)
	_, wrong = o.ceiling()
	check(wrong == nil, "--limits: %w", wrong)
	at, err := o.location()
	check(err == nil, "%w", err)
	known := true
	for _, role := range o.Roles {
		ok := role == RoleController || role == RoleExecutor
		known = known && ok
		check(ok, "--roles: %q must be %s or %s, in lower case, with nothing but a comma between them", role, RoleController, RoleExecutor)
	}
	check(err != nil || !known || at.shared() || o.has(RoleController) && o.has(RoleExecutor),
		"--roles %s needs a store that processes can share: name a PostgreSQL with --store postgres://..., or give this process both roles",
		strings.Join(o.Roles, ","))
	return errors.Join(errs...)
}

// maxRetention bounds the time for which journals are kept: ten years.
const maxRetention = 10 * 365 * 24 * time.Hour

// elects reports whether the process takes part in the election of a leader: an executor alone has nothing to lead.
func (o *Options) elects() bool { return o.LeaderElect && o.has(RoleController) }

// has reports whether the process has a role.
func (o *Options) has(role string) bool { return len(o.Roles) == 0 || slices.Contains(o.Roles, role) }

func (o *Options) grace() time.Duration { return time.Duration(o.ShutdownGraceSeconds) * time.Second }
