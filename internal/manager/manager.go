package manager

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/access"
	"github.com/capstan-dev/capstan/internal/apiclock"
	"github.com/capstan-dev/capstan/internal/barrier"
	"github.com/capstan-dev/capstan/internal/eventwriter"
	"github.com/capstan-dev/capstan/internal/fairgate"
	"github.com/capstan-dev/capstan/internal/metrics"
	"github.com/capstan-dev/capstan/internal/netpolicy"
	"github.com/capstan-dev/capstan/internal/objectbudget"
	"github.com/capstan-dev/capstan/internal/providers"
	"github.com/capstan-dev/capstan/internal/redact"
	"github.com/capstan-dev/capstan/internal/secrets"
	"github.com/capstan-dev/capstan/internal/sharing"
	"github.com/capstan-dev/capstan/internal/skillfile"
	"github.com/capstan-dev/capstan/internal/statuswriter"
	"github.com/capstan-dev/capstan/internal/toolservers"
	"github.com/capstan-dev/capstan/internal/tracing"
)

// Scheme returns a scheme with the kinds that the manager uses.
func Scheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	return s, errors.Join(clientgoscheme.AddToScheme(s), v1alpha1.AddToScheme(s))
}

// RESTConfig returns the configuration for the API server. It also sets how often clients of this process ping
// their connections: see pingConnections.
func (o *Options) RESTConfig() (*rest.Config, error) {
	if err := pingConnections(); err != nil {
		return nil, err
	}
	if o.Kubeconfig == "" {
		return ctrl.GetConfig()
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", o.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	return cfg, nil
}

// Run runs the manager until ctx ends and everything that it has started has stopped. The options must be valid.
func Run(ctx context.Context, o Options, cfg *rest.Config, log logr.Logger) (err error) {
	until := time.Now().Add(startPatience)
	at, err := o.location()
	if err != nil {
		return err
	}
	limit, err := o.Memory()
	if err != nil {
		return err
	}
	if o.MaxConcurrentTurns == 0 {
		o.MaxConcurrentTurns = limit.Turns()
	}
	credentials := redact.NewSet()
	log = barrier.Log(log, credentials)
	clock := apiclock.New(o.Hooks.clock(), metrics.SetClockOffset, log.WithName("clock"))
	p := &parts{
		options: o, memory: limit.NewBudget(), shared: at.shared(), now: clock.Now, serverClock: clock.Server, localNow: o.Hooks.clock(),
		credentials: credentials, processors: fairgate.HalfOfProcessors(), log: log,
	}
	p.objects = objectbudget.New(p.memory)
	if p.policy, err = o.netPolicy(); err != nil {
		return err
	}
	if err := netpolicy.LoadAuthorities(); err != nil {
		return err
	}
	exportErrors := rareErrors{log: log.WithName("traces")}
	if p.traces, err = tracing.FromEnvironment(ctx, os.LookupEnv, credentials.RedactFunc, exportErrors.add); err != nil {
		return err
	}
	defer p.closeTraces(ctx)
	if p.ceiling, err = o.ceiling(); err != nil {
		return fmt.Errorf("--limits: %w", err)
	}
	if o.SkillsFile != "" {
		if p.skills, err = skillfile.Load(o.SkillsFile); err != nil {
			return fmt.Errorf("--skills-file: %w", err)
		}
	}
	// The client has no rate limit of its own, which would only queue status writes: if necessary, the API server's
	// priority and fairness slows the client down. Priority and fairness does not distinguish namespaces, so writes
	// pass a gate that serves the namespaces in turn.
	p.config = rest.CopyConfig(cfg)
	p.config.QPS = -1
	p.config.Wrap(clock.Wrap)
	p.writes = fairgate.NewWriteGate()
	p.config.Wrap(p.writes.Wrap)
	if p.clientset, err = kubernetes.NewForConfig(p.config); err != nil {
		return fmt.Errorf("failed to create a client: %w", err)
	}
	p.access = access.New(p.clientset, o.TokenAudiences, clock.Now)
	var lock *leaderLock
	if o.elects() {
		if lock, err = leaderLockOf(o, p.config); err != nil {
			return err
		}
		// The time after which the Lease of a lost leader counts as expired begins with the first read of the Lease.
		// Opening the store may take long, so read the Lease before. If this read fails, a later read is the first.
		_, _, _ = lock.read(ctx)
	}
	// Serve /healthz before opening the store. Otherwise the kubelet would kill the process during a long migration,
	// and the next process would begin the migration anew.
	probes, err := newProbes(ctx, o.HealthProbeBindAddress, log)
	if err != nil {
		return err
	}
	defer probes.Close() //nolint:contextcheck // because it must also work after the end of ctx
	if p.store, err = openStore(ctx, &o, until, log); err != nil {
		if ctx.Err() != nil {
			return nil // a stop during the start is not a failure
		}
		return err
	}
	defer func() { err = errors.Join(err, p.store.Close()) }()

	if err := awaitAPIServer(ctx, until, p.clientset, o.Namespace, log); err != nil {
		if ctx.Err() != nil {
			return nil // a stop during the start is not a failure
		}
		return err
	}
	if err := awaitDefinitions(ctx, until, p.clientset.Discovery(), log); err != nil {
		if ctx.Err() != nil {
			return nil // a stop during the start is not a failure
		}
		return err
	}
	if p.watched, err = checkWatched(ctx, p.clientset, o.WatchNamespaces, log); err != nil {
		return err
	}
	if p.manager, err = newManager(o, p.config, lock, p.watched, cacheOptions(o, p.watched, p.specs.Share, p.objects), log); err != nil {
		return err
	}
	emitted, err := eventwriter.New(ctx, p.config, p.manager.GetHTTPClient(), eventwriter.Options{
		Scheme: p.manager.GetScheme(), Controller: "capstan", Now: p.now, Dropped: metrics.EventDropped, Log: log.WithName("events"),
	})
	if err != nil {
		return err
	}
	defer closeEvents(ctx, emitted)
	p.events = barrier.Events(emitted, p.credentials)
	writer, err := statuswriter.Client(p.manager.GetClient(), p.config, p.manager.GetHTTPClient())
	if err != nil {
		return err
	}
	p.client = barrier.Client(writer, p.credentials)
	if err := p.identify(ctx, until); err != nil {
		if ctx.Err() != nil {
			return nil // a stop during the start is not a failure
		}
		return err
	}
	stopMetrics, err := p.addMetrics(ctx)
	if err != nil {
		return err
	}
	defer stopMetrics()
	p.storeHealth = storeHealth(p.store, p.identity, log)
	for name, h := range map[string]*health{
		"store": p.storeHealth, "apiserver": apiHealth(p.clientset, o.Namespace, log),
		"crds": definitionsHealth(p.clientset.Discovery(), log),
	} {
		probes.checks[name] = h.ready
		if err := p.manager.Add(h); err != nil {
			return err
		}
	}
	if err := errors.Join(probes.addTo(p.manager), p.addSweeper(), p.addNetwork(), p.addWatched()); err != nil {
		return err
	}
	p.approvals = approvalCheck(o, p.clientset, p.now, log)
	p.requesters = requesterCheck(o, p.clientset, p.now, log)
	read := secretReader(p.manager.GetAPIReader())
	p.sharing = sharing.New(p.manager.GetAPIReader(), time.Now, o.WatchNamespaces)
	p.providers = providers.NewCache(read, time.Now, p.policy, p.memory)
	p.providers.SetCredentialSet(p.credentials)
	p.providers.OnRefused(metrics.ModelRequestRefused)
	tokens, err := secrets.ParseWorkloadTokens(o.WorkloadTokenDir, o.WorkloadTokens)
	if err != nil {
		return err
	}
	p.providers.SetWorkloadTokens(tokens)
	defer p.providers.Close()
	p.servers = toolservers.NewCache(read, p.policy, time.Now, log.WithName("tool-servers"))
	p.servers.SetMemoryBudget(p.memory)
	p.servers.SetProcessors(p.processors)
	p.servers.SetCredentialSet(p.credentials)
	metrics.SetMemoryBudget(p.memory)
	metrics.SetModelGates(p.providers.GateUse)
	defer p.servers.Close()
	defer p.closeReads()
	if err := p.add(ctx); err != nil {
		return err
	}
	log.WithValues(at.shown()...).Info("Starting", "roles", o.Roles, "executor", o.ExecutorName, "capacity", o.MaxConcurrentTurns,
		"memoryLimit", limit.Bytes, "memoryLimitFrom", limit.Source, "goMemoryLimit", limit.Go)
	return p.manager.Start(ctx)
}

// lastEventsTimeout is the time limit for writing the last Events when the process stops.
const lastEventsTimeout = time.Second

// closeEvents writes the last Events, such as those of Turns that ended while the process stopped.
func closeEvents(ctx context.Context, w *eventwriter.Writer) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastEventsTimeout)
	defer cancel()
	w.Close(ctx)
}

// lastSpansTimeout is the time limit for sending the last spans when the process stops.
const lastSpansTimeout = 3 * time.Second

// closeTraces sends the last spans. If the collector does not answer, the exit of the process is delayed by
// lastSpansTimeout.
func (p *parts) closeTraces(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastSpansTimeout)
	defer cancel()
	if err := p.traces.Close(ctx); err != nil {
		p.log.Error(err, exportFailed)
	}
}

// newManager creates the manager, which becomes the leader when it acquires the Lease of lock. lock is nil if there is
// no leader election.
func newManager(
	o Options, cfg *rest.Config, lock *leaderLock, watched watchedNamespaces, cached cache.Options, log logr.Logger,
) (ctrl.Manager, error) {
	scheme, err := Scheme()
	if err != nil {
		return nil, err
	}
	stop := o.grace() + o.grace()/5 + 5*time.Second
	options := ctrl.Options{
		// controller-runtime logs dozens of lines about its own parts at each start; they are shown at the debug
		// level. Errors are always shown.
		Scheme: scheme, Logger: log.V(1),
		Metrics:                       metricsserver.Options{BindAddress: "0"}, // because addMetrics serves them within bounds
		HealthProbeBindAddress:        "0",                                     // because the type probes serves them
		LeaderElection:                lock != nil,
		LeaderElectionReleaseOnCancel: true,
		GracefulShutdownTimeout:       &stop,
		// controller-runtime requires unique names of controllers per process, but tests start several managers in a
		// process.
		Controller: config.Controller{SkipNameValidation: new(true)},
		Cache:      cached,
		NewCache:   watched.newCache,
	}
	if lock != nil {
		options.LeaderElectionResourceLockInterface = lock
		options.LeaseDuration, options.RenewDeadline, options.RetryPeriod = new(leaderLease), new(leaderRenewal), new(leaderRetry)
	}
	mgr, err := ctrl.NewManager(cfg, options)
	if err != nil {
		return nil, fmt.Errorf("failed to create the manager: %w", err)
	}
	return mgr, nil
}

// everywhere runs on every replica, not only on the leader.
type everywhere struct{ manager.Runnable }

// NeedLeaderElection returns false.
func (everywhere) NeedLeaderElection() bool { return false }

// add adds the parts that the roles of this process need.
func (p *parts) add(ctx context.Context) (err error) {
	if err := checkNamespace(ctx, p.clientset, p.options.Namespace); err != nil {
		return err
	}
	if p.leaseAnnotations, err = p.addReads(ctx); err != nil {
		return err
	}
	p.status = p.options.Hooks.status(p.client)
	if p.options.has(RoleController) {
		if err := p.addController(ctx); err != nil {
			return err
		}
	}
	if p.options.has(RoleExecutor) {
		if err := errors.Join(p.addExecutor(ctx), p.addLimits(ctx)); err != nil {
			return err
		}
	}
	if err := p.budgets.Watch(ctx, p.manager.GetCache()); err != nil { // after its listeners are known
		return err
	}
	return p.addForgetting(ctx)
}

// checkNamespace returns an error if the namespace of the Leases does not exist: without a Lease, no Turn would ever be
// bound. It creates a Lease with a dry run, because the manager has the permission for that anyway.
func checkNamespace(ctx context.Context, leases kubernetes.Interface, namespace string) error {
	probe := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{GenerateName: "capstan-probe-"}}
	_, err := leases.CoordinationV1().Leases(namespace).Create(ctx, probe, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("--namespace %q does not exist in the cluster: create it, or name an existing namespace", namespace)
	}
	if err != nil {
		return fmt.Errorf("failed to check that Leases can be created in --namespace %q: %w", namespace, err)
	}
	return nil
}

// secretReader returns a reader that gets Secrets from the API server one by one. The manager may not list Secrets,
// and does not cache them.
func secretReader(r client.Reader) providers.SecretReader {
	return func(ctx context.Context, key types.NamespacedName) (*corev1.Secret, error) {
		var s corev1.Secret
		if err := r.Get(ctx, key, &s); err != nil {
			return nil, err
		}
		return &s, nil
	}
}
