// Package manager connects the parts of the manager: flags, cache, controllers, executor and journal.
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

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/approvals"
	"github.com/capstan-dev/capstan/internal/memory"
	"github.com/capstan-dev/capstan/internal/netpolicy"
	"github.com/capstan-dev/capstan/internal/quota"
	"github.com/capstan-dev/capstan/internal/readapi"
	"github.com/capstan-dev/capstan/internal/runtime/turnrecord"
	"github.com/capstan-dev/capstan/internal/scheduler"
	"github.com/capstan-dev/capstan/internal/secrets"
	"github.com/capstan-dev/capstan/internal/translate"
)

// EnvPrefix begins the names of the flags' environment variables. The flag's name follows, in capitals and with
// underscores.
const EnvPrefix = "CAPSTAN_"

// The roles of a process.
const (
	// RoleController binds Turns to executors, ends the Turns that no executor ends, and reconciles the objects of all
	// kinds.
	RoleController = "controller"
	// RoleExecutor runs the Turns that are bound to the process.
	RoleExecutor = "executor"
)

// Options are the options of the manager. Each option has a flag and an environment variable; the flag takes
// precedence. Only NameGiven, which SetDefaultName sets, and Hooks have neither.
type Options struct {
	// Roles are the roles of this process, RoleController and RoleExecutor. If Roles is empty, the process has both.
	Roles []string
	// Kubeconfig is the path of a kubeconfig file. If it is empty, the process uses $KUBECONFIG if that is set, or else
	// the cluster that it runs in, or else ~/.kube/config.
	Kubeconfig string
	// DataDir is the directory of the journal. It is not used if Store is set.
	DataDir string
	// Store is the URL of the journal's store: sqlite:///PATH, or postgres://... as package postgres accepts it. It
	// may contain a password.
	Store string
	// Namespace is the namespace of the manager's own Leases.
	Namespace string
	// ExecutorName is the name to which Turns are bound.
	ExecutorName string
	// NameGiven is true if the name was set explicitly. The name is then unique, so the leader uses it as its identity,
	// and leads again immediately after a restart. The default name is not unique: two processes on one host have the
	// same name.
	NameGiven bool
	// WatchNamespaces are the namespaces that the manager watches. If it is empty, the manager watches all of them.
	WatchNamespaces []string
	// LeaderElect makes the controller wait until no other manager is the leader. The executor waits, too, if only one
	// process at a time may use the store.
	LeaderElect bool
	// MaxConcurrentTurns is the number of Turns that this process runs at the same time, from 1 to 100000, or 0 for as
	// many as fit into its memory.
	MaxConcurrentTurns int
	// MaxConcurrentEvaluations is the number of Turns that this process evaluates or learns from at the same time, from
	// 0 to 100. If it is 0, the Turns that this process ends are never evaluated or learned from, by any process.
	MaxConcurrentEvaluations int
	// MemoryLimit is how much memory the process may use, as a quantity such as 512Mi. If it is empty, the limit of the
	// process's cgroup applies, or else a quarter of the machine's memory.
	MemoryLimit string
	// MaxRunningTurnsPerNamespace is the number of Turns of one namespace that may run at the same time, in the form of
	// scheduler.ParseShare; empty means any number. MaxQueuedTurnsPerNamespace is the number of Turns of one namespace
	// that may wait for a slot; 0 means any number. Only the controller role uses them.
	MaxRunningTurnsPerNamespace string
	MaxQueuedTurnsPerNamespace  int
	// MetricsBindAddress and HealthProbeBindAddress are host:port, or "0" for no server.
	MetricsBindAddress, HealthProbeBindAddress string
	// MetricsTLSCertFile and MetricsTLSKeyFile are the paths of PEM files, which are read again when they change.
	// If they are empty, the process creates its own certificate, or serves plain HTTP on the loopback interface.
	MetricsTLSCertFile, MetricsTLSKeyFile string
	// ReadBindAddress is the host:port of the read API, or "0" for none. An address beyond the loopback interface
	// needs ReadTLSCertFile and ReadTLSKeyFile, the paths of PEM files.
	ReadBindAddress, ReadTLSCertFile, ReadTLSKeyFile string
	// ReadTLSBindAddress is the host:port of a second listener of the read API, which uses TLS, or "0" for none.
	// ReadBindAddress then serves plain HTTP.
	ReadTLSBindAddress string
	// TokenAudiences are the audiences that the read API and /metrics accept; a token must have one of them. If it
	// is empty, the audience of the API server is required.
	TokenAudiences []string
	// LogFormat is json or console. LogLevel is error, info or debug.
	LogFormat, LogLevel string
	// ShutdownGraceSeconds is how long runs may continue after the process was asked to stop; at least 0.
	ShutdownGraceSeconds int
	// SkillsFile is the path of a file with skills that are available to every Agent. If it is empty, there are none.
	SkillsFile string
	// ProbeIntervalSeconds is the time between two checks of a ModelProvider, of a ToolServer, or of a ConfigMap that
	// cannot be watched; at least 1.
	ProbeIntervalSeconds int
	// JournalRetention is how long the journal of a Turn or a Session is kept after its object was deleted. If it is 0,
	// the journal is not kept.
	JournalRetention time.Duration
	// RecordRetention is how long the record of a Turn is kept after the Turn ended, whether the Turn exists or not. If
	// it is 0, the record is deleted within an hour.
	RecordRetention time.Duration
	// MaxRecordsPerNamespace is the number of records that are kept for each namespace; at least 1.
	MaxRecordsPerNamespace int
	// RecordLabels are the keys of the labels of Turns that their records keep, at most turnrecord.MaxLabels.
	RecordLabels []string
	// JournalQuota is the number of bytes that the journals of all namespaces may use together, such as 20Gi, and
	// JournalQuotaPerNamespace the number for each namespace. For the defaults, see quota.Limits.
	JournalQuota, JournalQuotaPerNamespace string
	// JournalVolumeSize is the size of the volume of an SQLite journal, such as 5Gi, if the file system does not
	// enforce it. If it is empty, the volume has the size of its file system.
	JournalVolumeSize string
	// ToolAllowCIDRs are prefixes of addresses at which tool servers and model providers may be reached, and
	// ToolDenyCIDRs those at which they may not. They extend the built-in table of package netpolicy.
	ToolAllowCIDRs, ToolDenyCIDRs []string
	// WorkloadTokens are the tokens of workload identities that ModelProviders may use, and WorkloadTokenDir is the
	// directory of their files: see secrets.ParseWorkloadTokens.
	WorkloadTokens   []string
	WorkloadTokenDir string
	// AttachmentURLs is true if Turns may have attachments from URLs, which this process fetches.
	AttachmentURLs bool
	// ClusterCIDRs are the prefixes of the cluster's Services, Pods and nodes. If it is empty, the manager asks the
	// API server.
	ClusterCIDRs []string
	// Limits are the ceilings of the limits of all Turns, by the names of the fields of limits. For timeoutSeconds,
	// there is a ceiling even if Limits does not have it: timeoutCeiling.
	Limits map[string]string
	// ApprovalPolicy is the name of the ValidatingAdmissionPolicy, and of its binding. Decisions about calls are
	// used only if both exist and deny forged names. If the name is empty, approvals.DefaultPolicy applies.
	ApprovalPolicy string
	// RequesterPolicy is the name of the ValidatingAdmissionPolicy for requesters, and of its binding. Only if both
	// exist and deny forged names, approvals of Agents with approval.forbidRequester are used, memories of users are
	// learned, and Budgets tell requesters apart. If the name is empty, approvals.DefaultRequesterPolicy applies.
	RequesterPolicy string
	// RolePrefix is the beginning of the names of this installation's ClusterRoles for people, for messages that name
	// such a role. It is empty if there are no such roles.
	RolePrefix string
	// TrustDecidedBy allows decisions to be used without ApprovalPolicy. Then nothing in Capstan checks the names and
	// the groups in them.
	TrustDecidedBy bool
	// TrustRequestedBy allows the requesters of Turns to be used without RequesterPolicy.
	TrustRequestedBy bool
	// Hooks can replace the connections between the parts of this process.
	Hooks Hooks
}

// AddFlags adds a flag for each option except NameGiven and Hooks, with its default and its description.
func (o *Options) AddFlags(f *pflag.FlagSet) {
	f.StringSliceVar(&o.Roles, "roles", []string{RoleController, RoleExecutor},
		"roles of this process, separated by commas: controller binds Turns to executors, executor runs the "+
			"Turns that are bound to it. With PostgreSQL, each role can have its own processes, "+
			"and any number of executors can run at the same time")
	f.StringVar(&o.Kubeconfig, "kubeconfig", "",
		"path of a kubeconfig file; default: $KUBECONFIG, else the cluster this process runs in, else ~/.kube/config")
	f.StringVar(&o.DataDir, "data-dir", "data", "directory of the journal, created if it does not exist")
	f.StringVar(&o.Store, "store", "", "URL of the store of the journal: sqlite:///PATH, or "+
		"postgres://USER@HOST:PORT/DATABASE with the password in $PGPASSWORD; default: journal.db in --data-dir")
	f.StringVar(&o.Namespace, "namespace", "capstan-system", "namespace of this manager's own Leases; it must exist")
	f.StringVar(&o.ExecutorName, executorNameFlag, "",
		"name to which Turns are bound; no two running processes may have the same name; default: the host name, which is the Pod's "+
			"name. A process that restarts with the same name continues its Turns immediately; otherwise they are bound again "+
			"after its Lease has expired")
	f.StringSliceVar(&o.WatchNamespaces, "watch-namespaces", nil, "namespaces to watch, separated by commas; default: all")
	f.BoolVar(&o.LeaderElect, "leader-elect", false,
		"act as the controller only while no other manager is the leader; required for more than one replica "+
			"with the role controller. Executors that share a PostgreSQL database always run Turns; "+
			"with SQLite, only the leader runs Turns")
	f.IntVar(&o.MaxConcurrentTurns, "max-concurrent-turns", 0,
		"number of Turns that this process runs at the same time; more Turns wait as Queued. "+
			"0: (GOMEMLIMIT - 56 MiB) x 2/3 / 64 KiB, at least 16 and at most 10000")
	f.IntVar(&o.MaxConcurrentEvaluations, "max-concurrent-evaluations", 4,
		"number of Turns that this process evaluates or learns from at the same time, in addition to the Turns that it runs, "+
			"from 0 to 100; with 0, the Turns that this process runs are never evaluated or learned from, by any process")
	f.StringVar(&o.MemoryLimit, "memory-limit", "",
		"memory that this process may use, as a quantity of at least 64Mi such as 512Mi; default: the limit of "+
			"its cgroup, or else a quarter of the machine's memory. GOMEMLIMIT, unless the environment sets it, is "+
			"a tenth less than this value, and at least 24 MiB less")
	f.StringVar(&o.MaxRunningTurnsPerNamespace, "max-running-turns-per-namespace", "90%",
		"number of Turns of one namespace that may run at the same time; more Turns wait as Queued. A number (0 means no "+
			"limit), or a percentage of the slots of all executors, rounded up, "+
			"which applies while Agents of at least two namespaces exist")
	f.IntVar(&o.MaxQueuedTurnsPerNamespace, "max-queued-turns-per-namespace", 10_000,
		"number of Turns of one namespace that may wait for a slot; further Turns end as QueueFull. 0 means no limit")
	f.StringVar(&o.MetricsBindAddress, "metrics-bind-address", "127.0.0.1:8080",
		`address of /metrics, "0" for none; an address that other machines can reach uses TLS, and serves only `+
			`users with the verb get on the path /metrics`)
	f.StringVar(&o.MetricsTLSCertFile, "metrics-tls-cert-file", "",
		"path of a PEM file with the certificate of /metrics, read again when it changes; default: a "+
			"certificate that this process creates, or plain HTTP on the loopback interface")
	f.StringVar(&o.MetricsTLSKeyFile, "metrics-tls-key-file", "", "path of a PEM file with the key of that certificate")
	f.StringVar(&o.HealthProbeBindAddress, "health-probe-bind-address", "127.0.0.1:8081", `address of /healthz and /readyz, "0" for none`)
	f.StringVar(&o.ReadBindAddress, "read-bind-address", "127.0.0.1:8082",
		`address of the read API, which serves the journals of Turns to users with the verb get on turns/log, `+
			`"0" for none; an address that other machines can reach needs --read-tls-cert-file and --read-tls-key-file`)
	f.StringVar(&o.ReadTLSCertFile, "read-tls-cert-file", "",
		"path of a PEM file with the certificate of the read API, read again when it changes; default: plain HTTP")
	f.StringVar(&o.ReadTLSBindAddress, "read-tls-bind-address", "0",
		`second address of the read API, which uses TLS, "0" for none; --read-bind-address then serves plain `+
			`HTTP, for this machine and forwarded ports`)
	f.StringVar(&o.ReadTLSKeyFile, "read-tls-key-file", "", "path of a PEM file with the key of that certificate")
	f.StringSliceVar(&o.TokenAudiences, "token-audiences", nil,
		"audiences that the read API and /metrics accept in tokens, separated by commas; default: the audience of the API server")
	f.StringVar(&o.LogFormat, "log-format", "json", "format of the log: json or console")
	f.StringVar(&o.LogLevel, "log-level", "info", "level of the log: error, info or debug")
	f.IntVar(&o.ShutdownGraceSeconds, "shutdown-grace-seconds", 25,
		"how long running model requests may continue after the process was asked to stop, in seconds; "+
			"unfinished Turns are then handed back. Keep it below the Pod's termination grace period")
	f.StringVar(&o.SkillsFile, "skills-file", "",
		"path of a YAML file with skills that are available to every Agent: a list of key, name, description "+
			"and content; read once at the start")
	f.IntVar(&o.ProbeIntervalSeconds, "probe-interval-seconds", 60,
		"seconds between two checks of a ModelProvider or a ToolServer that answers; if this process may not watch "+
			"ConfigMaps, also between two checks of the ConfigMaps that objects name. A check costs no tokens")
	f.DurationVar(&o.JournalRetention, "journal-retention", 24*time.Hour,
		"how long the journal of a Turn or a Session is kept after its object was deleted, such as 24h or 30m "+
			"(h is the largest unit); 0 means that it is not kept")
	f.DurationVar(&o.RecordRetention, "record-retention", 90*24*time.Hour,
		"how long the record of a Turn is kept after the Turn ended, such as 2160h (h is the largest unit), whether the Turn "+
			"still exists or not; 0 means that it is deleted within an hour")
	f.IntVar(&o.MaxRecordsPerNamespace, "max-records-per-namespace", 100_000,
		"number of records of Turns that are kept for each namespace; if there are more, the oldest are deleted")
	f.StringSliceVar(&o.RecordLabels, "record-labels", nil,
		"keys of the labels of Turns that their records keep, separated by commas, at most 16, such as team,example.com/cost-center; "+
			"default: none")
	f.StringVar(&o.JournalQuota, "journal-quota", "",
		"bytes that all journals may use, such as 20Gi; at 80 % new Turns wait, and at 100 % running Turns wait, "+
			"too; default: nine tenths of the volume with SQLite, no quota with PostgreSQL")
	f.StringVar(&o.JournalQuotaPerNamespace, "journal-quota-per-namespace", "",
		"bytes that the journals of one namespace may use, such as 2Gi; default: a namespace may not use more bytes than remain "+
			"free in --journal-quota, so one namespace can fill half of the quota, and two a third each")
	f.StringVar(&o.JournalVolumeSize, "journal-volume-size", "",
		"size of the volume of an SQLite journal, such as 5Gi, for a volume whose file system may be larger, such as an emptyDir "+
			"with a size limit; it limits the default of --journal-quota; default: the size of the file system")
	f.StringSliceVar(&o.ToolAllowCIDRs, netpolicy.AllowFlag, nil,
		"prefixes of IP addresses that tool servers and model providers may have, separated by commas, such as "+
			"127.0.0.0/8,::1/128; default: all except loopback, link-local, multicast and cloud metadata addresses, "+
			"and addresses of the cluster that do not belong to a Service of the same namespace. "+
			"The longest prefix that contains an address decides")
	f.StringSliceVar(&o.ToolDenyCIDRs, netpolicy.DenyFlag, nil,
		"prefixes of IP addresses that tool servers and model providers must not have, separated by commas; of "+
			"two equal prefixes, this one takes precedence over --"+netpolicy.AllowFlag)
	f.StringSliceVar(&o.WorkloadTokens, secrets.WorkloadTokensFlag, nil,
		"tokens of workload identities that ModelProviders may use in spec.workloadToken, as NAMESPACE/NAME=HOST, "+
			"separated by commas, such as helpdesk/gateway=https://llm.example.com; a token is for ModelProviders of "+
			"NAMESPACE, and is sent only to HOST. Repeat the token for further hosts")
	f.StringVar(&o.WorkloadTokenDir, secrets.WorkloadTokenDirFlag, "/var/run/secrets/capstan",
		"directory with the tokens of --workload-tokens, each in a file NAMESPACE/NAME, which is read again when it changes")
	f.BoolVar(&o.AttachmentURLs, "attachment-urls", true,
		"fetch attachments of Turns from URLs; with --attachment-urls=false, a Turn with such an attachment ends as InvalidSpec. "+
			"All processes must have the same value")
	f.StringSliceVar(&o.ClusterCIDRs, netpolicy.ClusterFlag, nil,
		"prefixes of IP addresses of the cluster's Services, Pods and nodes, separated by commas; of these, "+
			"ModelProviders and ToolServers may use only Services of their own namespace and the prefixes in --"+netpolicy.AllowFlag+
			"; default: the addresses of Nodes and ServiceCIDRs, and all private addresses if these are incomplete")
	f.StringToStringVar(&o.Limits, "limits", nil,
		"ceilings of the limits of all Turns, by the names of the fields of limits, such as "+
			"maxSteps=20,timeoutSeconds=600,maxTokens=500000,maxCost=2.50; "+
			"the lowest of the ceiling and the limits of the Agent and the Turn applies. A ceiling is not a default. "+
			"timeoutSeconds is 3600 unless it is set. All processes must have the same ceilings")
	f.StringVar(&o.ApprovalPolicy, "approval-policy", approvals.DefaultPolicy,
		"name of the ValidatingAdmissionPolicy, and of its binding, by which the API server ensures that no "+
			"user decides about a tool call in the name of another; decisions are used only if both exist and deny forged names. "+
			"config/policy and the chart install them")
	f.StringVar(&o.RequesterPolicy, "requester-policy", approvals.DefaultRequesterPolicy,
		"name of the ValidatingAdmissionPolicy, and of its binding, by which the API server ensures that no "+
			"user creates a Turn in the name of another. Only if both exist and deny forged names, approvals of Agents with "+
			"approval.forbidRequester are used, memories of users are learned, and Budgets tell requesters apart. "+
			"config/policy and the chart install them")
	f.StringVar(&o.RolePrefix, "role-prefix", "capstan",
		"beginning of the names of the ClusterRoles for people, such as capstan in capstan-turn-reader, for "+
			"messages that name a role; empty if there are none")
	f.BoolVar(&o.TrustDecidedBy, "trust-decided-by", false,
		"use decisions about tool calls without the policy in --approval-policy; set it only if something else ensures that "+
			"spec.decidedBy of a ToolApproval is the user who creates it, and spec.decidedByGroups has only groups of this user")
	f.BoolVar(&o.TrustRequestedBy, "trust-requested-by", false,
		"use the requesters of Turns without the policy in --requester-policy; set it only if something else ensures that "+
			"spec.requestedBy of a Turn is the user who creates it")
}

// Memory returns how much memory the process may use.
func (o *Options) Memory() (memory.Limit, error) {
	given, err := memory.Parse(o.MemoryLimit)
	if err != nil {
		return memory.Limit{}, fmt.Errorf("--memory-limit: %w", err)
	}
	return memory.Detect(given)
}

// timeoutCeiling is the ceiling of timeoutSeconds if --limits does not set it. Without a ceiling, a Turn may set
// timeoutSeconds to a day, and a few such Turns could occupy all slots for a day.
const timeoutCeiling = "3600"

// ceiling returns the ceilings of the limits of all Turns.
func (o *Options) ceiling() (*v1alpha1.Limits, error) {
	limits := map[string]string{"timeoutSeconds": timeoutCeiling}
	maps.Copy(limits, o.Limits)
	return translate.Ceiling(limits)
}

// scheduling returns the limits of one namespace. The options must be valid.
func (o *Options) scheduling() (scheduler.Limits, error) {
	running, err := scheduler.ParseShare(cmp.Or(o.MaxRunningTurnsPerNamespace, "0"))
	return scheduler.Limits{Running: running, Queued: o.MaxQueuedTurnsPerNamespace}, err
}

// netPolicy returns the policy for the addresses of tool servers and model providers.
func (o *Options) netPolicy() (*netpolicy.Policy, error) {
	return netpolicy.Parse(o.ToolAllowCIDRs, o.ToolDenyCIDRs)
}

// quotas returns the quotas of the journals.
func (o *Options) quotas() (l quota.Limits, err error) {
	var errs [3]error
	l.Total, errs[0] = quotaOf("journal-quota", o.JournalQuota)
	l.PerNamespace, errs[1] = quotaOf("journal-quota-per-namespace", o.JournalQuotaPerNamespace)
	l.Volume, errs[2] = quotaOf("journal-volume-size", o.JournalVolumeSize)
	return l, errors.Join(errs[:]...)
}

// minQuota is the smallest quota, and the smallest size of a volume. A smaller value is probably a mistake in the unit.
const minQuota = 1 << 20

// quotaOf parses a number of bytes. An empty text is 0.
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

// FromEnvironment sets each flag that was not given to the value of its environment variable, for example --data-dir to
// that of CAPSTAN_DATA_DIR. It does not set the flags that Cobra adds to each command, --help and --version: they are
// no options, and CAPSTAN_VERSION is a likely name for the variable of another program.
func FromEnvironment(f *pflag.FlagSet, lookup func(string) (string, bool)) error {
	var errs []error
	f.VisitAll(func(flag *pflag.Flag) {
		name := EnvPrefix + strings.ToUpper(strings.ReplaceAll(flag.Name, "-", "_"))
		value, ok := lookup(name)
		if _, ofCobra := flag.Annotations[cobra.FlagSetByCobraAnnotation]; !ok || flag.Changed || ofCobra {
			return
		}
		if err := f.Set(flag.Name, value); err != nil {
			errs = append(errs, fmt.Errorf("environment variable %s: %w", name, err))
		}
	})
	return errors.Join(errs...)
}

// executorNameFlag is the flag for ExecutorName.
const executorNameFlag = "executor-name"

// SetDefaultName sets ExecutorName to the host name in lower case, unless the flag or its environment variable was
// given. It must be called after FromEnvironment.
func (o *Options) SetDefaultName(f *pflag.FlagSet) {
	if o.NameGiven = f.Changed(executorNameFlag); !o.NameGiven {
		host, _ := os.Hostname()
		o.ExecutorName = strings.ToLower(host)
	}
}

// Validate returns all errors in the options, each with its flag.
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
	check(o.MaxConcurrentTurns >= 0 && o.MaxConcurrentTurns <= 100_000,
		"--max-concurrent-turns %d must be from 1 to 100000, or 0 for as many as fit into the memory", o.MaxConcurrentTurns)
	check(o.MaxConcurrentEvaluations >= 0 && o.MaxConcurrentEvaluations <= 100,
		"--max-concurrent-evaluations %d must be from 0 to 100", o.MaxConcurrentEvaluations)
	_, wrong := memory.Parse(o.MemoryLimit)
	check(wrong == nil, "--memory-limit: %w", wrong)
	check(o.LogFormat == "json" || o.LogFormat == "console", "--log-format %q must be json or console", o.LogFormat)
	check(o.LogLevel == "error" || o.LogLevel == "info" || o.LogLevel == "debug", "--log-level %q must be error, info or debug", o.LogLevel)
	check(o.ShutdownGraceSeconds >= 0 && o.ShutdownGraceSeconds <= 3600,
		"--shutdown-grace-seconds %d must be from 0 to 3600", o.ShutdownGraceSeconds)
	check(o.ProbeIntervalSeconds >= 1 && o.ProbeIntervalSeconds <= 86400,
		"--probe-interval-seconds %d must be from 1 to 86400", o.ProbeIntervalSeconds)
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
		check(audience != "" && len(audience) <= 1024,
			"--token-audiences: an audience must have from 1 to 1024 characters, got %d", len(audience))
	}
	check(o.JournalRetention >= 0 && o.JournalRetention <= maxRetention, "--journal-retention %s must be from 0 to %s",
		o.JournalRetention, maxRetention)
	check(o.RecordRetention >= 0 && o.RecordRetention <= maxRetention, "--record-retention %s must be from 0 to %s",
		o.RecordRetention, maxRetention)
	check(o.MaxRecordsPerNamespace >= 1 && o.MaxRecordsPerNamespace <= 100_000_000,
		"--max-records-per-namespace %d must be from 1 to 100000000", o.MaxRecordsPerNamespace)
	check(len(o.RecordLabels) <= turnrecord.MaxLabels,
		"--record-labels: %d keys are more than %d", len(o.RecordLabels), turnrecord.MaxLabels)
	for _, key := range o.RecordLabels {
		check(len(validation.IsQualifiedName(key)) == 0, "--record-labels: %q must be the key of a label", key)
	}
	check(o.RolePrefix == "" || len(validation.IsDNS1123Subdomain(o.RolePrefix)) == 0,
		"--role-prefix %q must be a valid beginning of the names of ClusterRoles", o.RolePrefix)
	check(o.ApprovalPolicy == "" || len(validation.IsDNS1123Subdomain(o.ApprovalPolicy)) == 0,
		"--approval-policy %q must be the name of a ValidatingAdmissionPolicy", o.ApprovalPolicy)
	check(o.RequesterPolicy == "" || len(validation.IsDNS1123Subdomain(o.RequesterPolicy)) == 0,
		"--requester-policy %q must be the name of a ValidatingAdmissionPolicy", o.RequesterPolicy)
	_, wrong = o.quotas()
	check(wrong == nil, "%w", wrong)
	_, wrong = netpolicy.ParseCluster(o.ClusterCIDRs)
	check(wrong == nil, "%w", wrong)
	_, wrong = secrets.ParseWorkloadTokens(o.WorkloadTokenDir, o.WorkloadTokens)
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
		check(ok, "--roles: %q must be %s or %s, in lower case, separated only by commas", role, RoleController, RoleExecutor)
	}
	check(err != nil || !known || at.shared() || o.has(RoleController) && o.has(RoleExecutor),
		"--roles %s needs a store that processes can share: set --store to a PostgreSQL database "+
			"(postgres://...), or give this process both roles",
		strings.Join(o.Roles, ","))
	return errors.Join(errs...)
}

// maxRetention is the longest time for which journals and records may be kept: ten years.
const maxRetention = 10 * 365 * 24 * time.Hour

// elects reports whether the process takes part in leader election. Only controllers do.
func (o *Options) elects() bool { return o.LeaderElect && o.has(RoleController) }

// has reports whether the process has a role.
func (o *Options) has(role string) bool { return len(o.Roles) == 0 || slices.Contains(o.Roles, role) }

func (o *Options) grace() time.Duration { return time.Duration(o.ShutdownGraceSeconds) * time.Second }
