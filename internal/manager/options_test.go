package manager

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// parsed returns the options after these arguments and this environment.
func parsed(t *testing.T, env map[string]string, args ...string) (Options, error) {
	t.Helper()
	var o Options
	f := pflag.NewFlagSet("manager", pflag.ContinueOnError)
	o.AddFlags(f)
	if err := f.Parse(args); err != nil {
		t.Fatal(err)
	}
	return o, FromEnvironment(f, func(name string) (string, bool) {
		value, ok := env[name]
		return value, ok
	})
}

func TestDefaultsAreValid(t *testing.T) {
	o, err := parsed(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	o.ExecutorName = "manager-0" // the host name may be invalid
	if err := o.Validate(); err != nil {
		t.Errorf("the defaults must be valid: %v", err)
	}
	want := Options{
		Roles: []string{RoleController, RoleExecutor}, JournalRetention: 24 * time.Hour,
		RecordRetention: 90 * 24 * time.Hour, MaxRecordsPerNamespace: 100_000,
		AttachmentURLs: true, MaxRunningTurnsPerNamespace: "90%", MaxQueuedTurnsPerNamespace: 10_000,
		DataDir: "data", WorkloadTokenDir: "/var/run/secrets/capstan", Namespace: "capstan-system", ExecutorName: "manager-0",
		MetricsBindAddress: "127.0.0.1:8080", HealthProbeBindAddress: "127.0.0.1:8081", ReadBindAddress: "127.0.0.1:8082",
		ReadTLSBindAddress: "0", RolePrefix: "capstan", LogFormat: "json", LogLevel: "info",
		ShutdownGraceSeconds: 25, ProbeIntervalSeconds: 60, ApprovalPolicy: "capstan-toolapprovals",
		RequesterPolicy: "capstan-requesters", MaxConcurrentEvaluations: 4,
	}
	if diff := cmp.Diff(want, o); diff != "" {
		t.Errorf("the defaults (-want +got):\n%s", diff)
	}
}

func TestDefaultName(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		args  []string
		want  string
		given bool
	}{
		"no name":         {nil, strings.ToLower(host), false},
		"a name":          {[]string{"--executor-name=e"}, "e", true},
		"an invalid name": {[]string{"--executor-name="}, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			var o Options
			f := pflag.NewFlagSet("manager", pflag.ContinueOnError)
			o.AddFlags(f)
			if err := f.Parse(tc.args); err != nil {
				t.Fatal(err)
			}
			o.SetDefaultName(f)
			if o.ExecutorName != tc.want || o.NameGiven != tc.given {
				t.Errorf("got name %q, given %t; want %q, %t", o.ExecutorName, o.NameGiven, tc.want, tc.given)
			}
		})
	}
}

func TestEveryFlagHasHelpAndAnEnvironmentVariable(t *testing.T) {
	for _, tc := range []struct{ name, value, flag string }{
		{"CAPSTAN_KUBECONFIG", "/k", "kubeconfig"},
		{"CAPSTAN_DATA_DIR", "/d", "data-dir"},
		{"CAPSTAN_STORE", "sqlite:///s", "store"},
		{"CAPSTAN_NAMESPACE", "ns", "namespace"},
		{"CAPSTAN_EXECUTOR_NAME", "e", "executor-name"},
		{"CAPSTAN_WATCH_NAMESPACES", "[a,b]", "watch-namespaces"},
		{"CAPSTAN_LEADER_ELECT", "true", "leader-elect"},
		{"CAPSTAN_MAX_CONCURRENT_TURNS", "7", "max-concurrent-turns"},
		{"CAPSTAN_MAX_CONCURRENT_EVALUATIONS", "5", "max-concurrent-evaluations"},
		{"CAPSTAN_MAX_RUNNING_TURNS_PER_NAMESPACE", "7", "max-running-turns-per-namespace"},
		{"CAPSTAN_MAX_QUEUED_TURNS_PER_NAMESPACE", "8", "max-queued-turns-per-namespace"},
		{"CAPSTAN_MEMORY_LIMIT", "300Mi", "memory-limit"},
		{"CAPSTAN_METRICS_BIND_ADDRESS", ":1", "metrics-bind-address"},
		{"CAPSTAN_HEALTH_PROBE_BIND_ADDRESS", ":2", "health-probe-bind-address"},
		{"CAPSTAN_READ_BIND_ADDRESS", ":3", "read-bind-address"},
		{"CAPSTAN_READ_TLS_CERT_FILE", "/c", "read-tls-cert-file"},
		{"CAPSTAN_READ_TLS_KEY_FILE", "/k", "read-tls-key-file"},
		{"CAPSTAN_METRICS_TLS_CERT_FILE", "/c", "metrics-tls-cert-file"},
		{"CAPSTAN_METRICS_TLS_KEY_FILE", "/k", "metrics-tls-key-file"},
		{"CAPSTAN_TOKEN_AUDIENCES", "[capstan,https://kubernetes.default.svc]", "token-audiences"},
		{"CAPSTAN_LOG_FORMAT", "console", "log-format"},
		{"CAPSTAN_LOG_LEVEL", "debug", "log-level"},
		{"CAPSTAN_SHUTDOWN_GRACE_SECONDS", "3", "shutdown-grace-seconds"},
		{"CAPSTAN_PROBE_INTERVAL_SECONDS", "4", "probe-interval-seconds"},
		{"CAPSTAN_SKILLS_FILE", "/skills.yaml", "skills-file"},
		{"CAPSTAN_ROLES", "[executor]", "roles"},
		{"CAPSTAN_JOURNAL_RETENTION", "36h0m0s", "journal-retention"},
		{"CAPSTAN_RECORD_RETENTION", "36h0m0s", "record-retention"},
		{"CAPSTAN_MAX_RECORDS_PER_NAMESPACE", "9", "max-records-per-namespace"},
		{"CAPSTAN_RECORD_LABELS", "[team,example.com/unit]", "record-labels"},
		{"CAPSTAN_TOOL_ALLOW_CIDRS", "[127.0.0.0/8,::1/128]", "tool-allow-cidrs"},
		{"CAPSTAN_CLUSTER_CIDRS", "[10.0.0.0/8]", "cluster-cidrs"},
		{"CAPSTAN_LIMITS", "[maxCost=2.50,maxSteps=20]", "limits"},
		{"CAPSTAN_APPROVAL_POLICY", "p", "approval-policy"},
		{"CAPSTAN_READ_TLS_BIND_ADDRESS", ":8444", "read-tls-bind-address"},
		{"CAPSTAN_ROLE_PREFIX", "p", "role-prefix"},
		{"CAPSTAN_TRUST_DECIDED_BY", "true", "trust-decided-by"},
		{"CAPSTAN_REQUESTER_POLICY", "p", "requester-policy"},
		{"CAPSTAN_TRUST_REQUESTED_BY", "true", "trust-requested-by"},
		{"CAPSTAN_JOURNAL_QUOTA", "20Gi", "journal-quota"},
		{"CAPSTAN_JOURNAL_QUOTA_PER_NAMESPACE", "2Gi", "journal-quota-per-namespace"},
		{"CAPSTAN_JOURNAL_VOLUME_SIZE", "5Gi", "journal-volume-size"},
		{"CAPSTAN_TOOL_DENY_CIDRS", "[10.0.0.0/8]", "tool-deny-cidrs"},
		{"CAPSTAN_WORKLOAD_TOKENS", "[helpdesk/gateway=https://llm.example.com]", "workload-tokens"},
		{"CAPSTAN_WORKLOAD_TOKEN_DIR", "/tokens", "workload-token-dir"},
		{"CAPSTAN_ATTACHMENT_URLS", "false", "attachment-urls"},
	} {
		t.Run(tc.flag, func(t *testing.T) {
			var o Options
			f := pflag.NewFlagSet("manager", pflag.ContinueOnError)
			o.AddFlags(f)
			value := strings.Trim(tc.value, "[]")
			if err := FromEnvironment(f, func(name string) (string, bool) { return value, name == tc.name }); err != nil {
				t.Fatal(err)
			}
			flag := f.Lookup(tc.flag)
			if got := flag.Value.String(); got != tc.value {
				t.Errorf("the flag is %q, want %q", got, tc.value)
			}
			if flag.Usage == "" {
				t.Error("the flag must have a help text")
			}
		})
	}
	var o Options
	f := pflag.NewFlagSet("manager", pflag.ContinueOnError)
	o.AddFlags(f)
	count := 0
	f.VisitAll(func(*pflag.Flag) { count++ })
	if count != 46 {
		t.Errorf("%d flags, want 46: add each new flag to the table above", count)
	}
}

func TestFlagsTakePrecedenceOverTheEnvironment(t *testing.T) {
	o, err := parsed(t, map[string]string{"CAPSTAN_MAX_CONCURRENT_TURNS": "7", "CAPSTAN_LOG_LEVEL": "debug"}, "--max-concurrent-turns", "9")
	if err != nil || o.MaxConcurrentTurns != 9 || o.LogLevel != "debug" {
		t.Errorf("got %d, %q, %v; want 9 from the flag and debug from the environment", o.MaxConcurrentTurns, o.LogLevel, err)
	}
}

// TestEnvironmentDoesNotSetFlagsOfCobra checks that variables with the names of Cobra's own flags change nothing, and
// do not prevent the start.
func TestEnvironmentDoesNotSetFlagsOfCobra(t *testing.T) {
	cmd := &cobra.Command{Use: "manager", Version: "1.2.3"}
	cmd.InitDefaultHelpFlag()
	cmd.InitDefaultVersionFlag()
	env := map[string]string{"CAPSTAN_VERSION": "1.2.3", "CAPSTAN_HELP": "see the documentation"}
	if err := FromEnvironment(cmd.Flags(), func(name string) (string, bool) { value, ok := env[name]; return value, ok }); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"version", "help"} {
		if f := cmd.Flags().Lookup(name); f == nil || f.Changed {
			t.Errorf("the flag %q is missing or was set: %+v", name, f)
		}
	}
}

func TestEnvironmentErrorsNameTheVariable(t *testing.T) {
	_, err := parsed(t, map[string]string{"CAPSTAN_MAX_CONCURRENT_TURNS": "many", "CAPSTAN_LEADER_ELECT": "perhaps"})
	for _, want := range []string{"CAPSTAN_MAX_CONCURRENT_TURNS", "CAPSTAN_LEADER_ELECT"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error must name %s: %v", want, err)
		}
	}
}

func TestValidate(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*Options)
		want   string
	}{
		"an invalid role prefix": {
			func(o *Options) { o.RolePrefix = "Mine" },
			`--role-prefix "Mine" must be a valid beginning of the names of ClusterRoles`,
		},
		"an invalid policy name": {
			func(o *Options) { o.ApprovalPolicy = "Mine" },
			`--approval-policy "Mine" must be the name of a ValidatingAdmissionPolicy`,
		},
		"no executor name":          {func(o *Options) { o.ExecutorName = "" }, "--executor-name"},
		"an executor name of a Mac": {func(o *Options) { o.ExecutorName = "Ada's" }, "--executor-name"},
		"a long executor name":      {func(o *Options) { o.ExecutorName = strings.Repeat("a", 201) }, "at most 200 characters"},
		"no namespace":              {func(o *Options) { o.Namespace = "" }, "--namespace"},
		"a namespace with a dot":    {func(o *Options) { o.WatchNamespaces = []string{"a", "b.c"} }, `--watch-namespaces: "b.c"`},
		"a negative number of Turns": {
			func(o *Options) { o.MaxConcurrentTurns = -1 },
			"--max-concurrent-turns -1 must be from 1 to 100000",
		},
		"an invalid share": {
			func(o *Options) { o.MaxRunningTurnsPerNamespace = "many" },
			`--max-running-turns-per-namespace: "many" must be a whole number`,
		},
		"a share above 100%": {func(o *Options) { o.MaxRunningTurnsPerNamespace = "101%" }, "--max-running-turns-per-namespace"},
		"a negative queue": {
			func(o *Options) { o.MaxQueuedTurnsPerNamespace = -1 },
			"--max-queued-turns-per-namespace -1 must be from 1 to 1000000",
		},
		"memory without a number": {
			func(o *Options) { o.MemoryLimit = "much" },
			`--memory-limit: "much" must be a quantity of bytes such as 512Mi`,
		},
		"too little memory":       {func(o *Options) { o.MemoryLimit = "32Mi" }, `--memory-limit: "32Mi" must be at least 64Mi`},
		"too many evaluations":    {func(o *Options) { o.MaxConcurrentEvaluations = 101 }, "--max-concurrent-evaluations"},
		"too many Turns":          {func(o *Options) { o.MaxConcurrentTurns = 100_001 }, "--max-concurrent-turns"},
		"an unknown log format":   {func(o *Options) { o.LogFormat = "xml" }, `--log-format "xml" must be json or console`},
		"an unknown log level":    {func(o *Options) { o.LogLevel = "" }, "--log-level"},
		"a negative grace period": {func(o *Options) { o.ShutdownGraceSeconds = -1 }, "--shutdown-grace-seconds"},
		"no probe interval":       {func(o *Options) { o.ProbeIntervalSeconds = 0 }, "--probe-interval-seconds"},
		"another kind of store": {
			func(o *Options) { o.Store = "mysql://me:hunter2@db" },
			"begins with sqlite://, postgres:// or postgresql://",
		},
		"settings for a store": {
			func(o *Options) { o.Store = "host=db password=hunter2" },
			"begins with sqlite://, postgres:// or postgresql://",
		},
		"an unescaped password":    {func(o *Options) { o.Store = "postgres://me:1/hunter2@db/d" }, "--store: failed to read the URL"},
		"a store's unknown option": {func(o *Options) { o.Store = "postgres://me:hunter2@db/d?sslmode=maybe" }, "sslmode"},
		"a store without a path":   {func(o *Options) { o.Store = "sqlite://data" }, "--store"},
		"a certificate and no key": {
			func(o *Options) { o.MetricsTLSCertFile = "/c" },
			`--metrics-tls-cert-file "/c" and --metrics-tls-key-file "" must be set together`,
		},
		"an empty audience": {
			func(o *Options) { o.TokenAudiences = []string{"a", ""} },
			"--token-audiences: an audience must have from 1 to 1024 characters, got 0",
		},
		"an unknown role": {
			func(o *Options) { o.Roles = []string{"worker"} },
			`--roles: "worker" must be controller or executor`,
		},
		"an executor with SQLite": {
			func(o *Options) { o.Roles = []string{RoleExecutor} },
			"--roles executor needs a store that processes can share: set --store to a PostgreSQL database (postgres://",
		},
		"a controller with SQLite": {func(o *Options) { o.Roles = []string{RoleController} }, "or give this process both roles"},
		"unencrypted tokens": {
			func(o *Options) { o.ReadBindAddress = ":8082" },
			`--read-bind-address ":8082" is reachable from other machines`,
		},
		"a certificate without a key": {func(o *Options) { o.ReadTLSCertFile = "tls.crt" }, "must be set together"},
		"a network without length": {
			func(o *Options) { o.ToolAllowCIDRs = []string{"everything"} },
			`--tool-allow-cidrs: "everything" must be a prefix of IP addresses`,
		},
		"a workload token for all hosts": {
			func(o *Options) { o.WorkloadTokens = []string{"helpdesk/gateway=*"} },
			`--workload-tokens: "helpdesk/gateway=*" must be NAMESPACE/NAME=HOST, such as helpdesk/gateway=https://llm.example.com`,
		},
		"a network with an address": {
			func(o *Options) { o.ToolDenyCIDRs = []string{"10.0.0.1/8"} },
			`--tool-deny-cidrs: "10.0.0.1/8" has bits beyond its length: write 10.0.0.0/8`,
		},
		"a negative retention of records": {
			func(o *Options) { o.RecordRetention = -time.Second }, "--record-retention -1s must be from 0",
		},
		"no records":      {func(o *Options) { o.MaxRecordsPerNamespace = 0 }, "--max-records-per-namespace 0 must be from 1"},
		"too many labels": {func(o *Options) { o.RecordLabels = make([]string, 17) }, "--record-labels: 17 keys are more than 16"},
		"no label": {
			func(o *Options) { o.RecordLabels = []string{"a b"} },
			`--record-labels: "a b" must be the key of a label`,
		},
		"a negative retention": {func(o *Options) { o.JournalRetention = -time.Second }, "--journal-retention -1s must be from 0"},
		"an invalid quota": {
			func(o *Options) { o.JournalQuota = "lots" },
			`--journal-quota "lots" must be a number of bytes of at least 1Mi, such as 20Gi`,
		},
		"a quota of a few bytes": {
			func(o *Options) { o.JournalQuotaPerNamespace = "20" },
			`--journal-quota-per-namespace "20" must be a number of bytes`,
		},
		"an invalid size of the volume": {
			func(o *Options) { o.JournalVolumeSize = "large" },
			`--journal-volume-size "large" must be a number of bytes of at least 1Mi, such as 20Gi`,
		},
		"a negative quota":     {func(o *Options) { o.JournalQuota = "-1Gi" }, "--journal-quota"},
		"an endless retention": {func(o *Options) { o.JournalRetention = 100_000 * time.Hour }, "--journal-retention"},
	} {
		t.Run(name, func(t *testing.T) {
			o, err := parsed(t, nil, "--executor-name", "e")
			if err != nil {
				t.Fatal(err)
			}
			tc.change(&o)
			err = o.Validate()
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want an error with %q", err, tc.want)
			}
			if err != nil && strings.Contains(err.Error(), "hunter2") {
				t.Errorf("the error repeats a password: %v", err)
			}
		})
	}
}

func TestValidateReturnsAllErrors(t *testing.T) {
	err := (&Options{}).Validate()
	for _, flag := range []string{"--executor-name", "--namespace", "--log-format", "--log-level", "--probe-interval-seconds"} {
		if err == nil || !strings.Contains(err.Error(), flag) {
			t.Errorf("the error must name %s: %v", flag, err)
		}
	}
}

func TestRoles(t *testing.T) {
	for name, tc := range map[string]struct {
		reason               string
		args                 []string
		controller, executor bool
	}{
		"Default": {"one process has both roles", nil, true, true},
		"None":    {"an empty option means both roles", []string{"--roles="}, true, true},
		"Both":    {"the order does not matter", []string{"--roles=executor,controller"}, true, true},
		"Controller": {
			"with a shared store, other processes run the Turns",
			[]string{"--roles=controller", "--store=postgres://me@db/d"},
			true, false,
		},
		"Executor": {
			"with a shared store, another process is the controller",
			[]string{"--roles=executor", "--store=postgres://me@db/d"},
			false, true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			o, err := parsed(t, nil, append(tc.args, "--executor-name=e")...)
			if err != nil {
				t.Fatal(err)
			}
			if err := o.Validate(); err != nil || o.has(RoleController) != tc.controller || o.has(RoleExecutor) != tc.executor {
				t.Errorf("%s: controller %t, executor %t, %v", tc.reason, o.has(RoleController), o.has(RoleExecutor), err)
			}
		})
	}
}

// TestCeilingOfTimeout checks the default ceiling of timeoutSeconds. Without it, the Turns of one namespace could
// occupy all slots for a day.
func TestCeilingOfTimeout(t *testing.T) {
	for name, tc := range map[string]struct {
		given map[string]string
		want  int32
	}{
		"no limits":        {nil, 3600},
		"other limits":     {map[string]string{"maxSteps": "3"}, 3600},
		"a higher ceiling": {map[string]string{"timeoutSeconds": "86400"}, 86400},
		"a lower ceiling":  {map[string]string{"timeoutSeconds": "60"}, 60},
	} {
		t.Run(name, func(t *testing.T) {
			o := Options{Limits: tc.given}
			got, err := o.ceiling()
			if err != nil || got.TimeoutSeconds == nil || *got.TimeoutSeconds != tc.want {
				t.Errorf("ceiling() = %+v, %v; want timeoutSeconds %d", got, err, tc.want)
			}
		})
	}
}
