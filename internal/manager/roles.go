package manager

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/access"
	"github.com/capstan-dev/capstan/internal/approvals"
	"github.com/capstan-dev/capstan/internal/bytebudget"
	"github.com/capstan-dev/capstan/internal/clusternet"
	"github.com/capstan-dev/capstan/internal/controller"
	"github.com/capstan-dev/capstan/internal/executor"
	"github.com/capstan-dev/capstan/internal/fairgate"
	"github.com/capstan-dev/capstan/internal/janitor"
	"github.com/capstan-dev/capstan/internal/metrics"
	"github.com/capstan-dev/capstan/internal/netpolicy"
	"github.com/capstan-dev/capstan/internal/providers"
	"github.com/capstan-dev/capstan/internal/quota"
	"github.com/capstan-dev/capstan/internal/readapi"
	"github.com/capstan-dev/capstan/internal/redact"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/store"
	"github.com/capstan-dev/capstan/internal/toolservers"
)

// parts are what the roles of a process work with.
type parts struct {
	options   Options
	manager   ctrl.Manager
	config    *rest.Config
	clientset kubernetes.Interface
	// writes is what the writes of all namespaces to the API server pass.
	writes *fairgate.Gate
	// processors is what work on large texts passes.
	processors *fairgate.Gate
	// access knows who may read journals and metrics.
	access *access.Guard
	// client writes the status of all objects, and status that of Turns.
	client, status client.Client
	store          store.Store
	// shared says that other processes may work with the store at the same time.
	shared bool
	// events tells people what concerns the process as a whole.
	events events.EventRecorder
	// identity is that of the store, as it was last known.
	identity *store.Tracker
	// approvals says which decisions about calls may be used.
	approvals approvals.Check
	// ceiling is what no Turn goes beyond.
	ceiling *v1alpha1.Limits
	// policy says which addresses tool servers and model providers may be reached at.
	policy *netpolicy.Policy
	// memory is what namespaces share.
	memory *bytebudget.Budget
	// providers and servers are the connections of all roles.
	providers *providers.Cache
	servers   *toolservers.Cache
	// credentials are those that the connections have, by namespace: nothing that this process writes may repeat them.
	credentials *redact.Set
	// reads serves journals; nil if nobody is to be served. leaseAnnotations say where.
	reads            *readapi.Server
	leaseAnnotations map[string]string
	skills           []prepare.Skill
	// now is the time by the clock of the API server, by which all that a status says is measured. local is the clock of this
	// machine, by which Leases are judged.
	now, local func() time.Time
	log        logr.Logger
}

// addController adds the reconcilers and what looks after finished Turns and old journals.
func (p *parts) addController(ctx context.Context) error {
	mgr, o := p.manager, p.options
	if err := controller.SetupIndexes(ctx, mgr.GetFieldIndexer()); err != nil {
		return err
	}
	seen, recheck, err := configMapsSeen(ctx, mgr, p.clientset, o, p.log)
	if err != nil {
		return err
	}
	configMaps := configMapReader(mgr.GetAPIReader())
	limits, err := o.scheduling()
	if err != nil {
		return fmt.Errorf("--max-running-turns-per-namespace: %w", err)
	}
	turns := &controller.TurnReconciler{
		Client: p.status, Events: p.events, Now: p.now, Reader: seen, Live: mgr.GetAPIReader(), Recheck: recheck,
		Approvals: p.approvals, Ceiling: p.ceiling, Limits: limits,
	}
	turns.Executors = &controller.ExecutorReconciler{Client: p.client, Live: mgr.GetAPIReader(), Now: p.local, Namespace: o.Namespace, Turns: turns}
	if o.has(RoleExecutor) {
		turns.Executors.Self = o.ExecutorName
		turns.Executors.SelfStore = func() executor.StoreIdentity { return p.identity.Last().Identity }
		turns.Executors.Exclusive = !p.shared && o.elects() // the executor then works only while it leads
	}
	probeInterval := time.Duration(o.ProbeIntervalSeconds) * time.Second
	for _, r := range []interface{ SetupWithManager(ctrl.Manager) error }{
		&controller.PromptProfileReconciler{Client: p.client, Now: p.now, ConfigMaps: configMaps, Recheck: recheck},
		&controller.ModelProviderReconciler{Client: p.client, Events: p.events, Providers: p.providers, Now: p.now, ProbeInterval: probeInterval},
		&controller.ToolServerReconciler{Client: p.client, Events: p.events, Servers: p.servers, Now: p.now, ProbeInterval: probeInterval},
		&controller.AgentReconciler{
			Client: p.client, Now: p.now, ConfigMaps: configMaps, ManagerSkills: p.skills, Recheck: recheck, ProbeInterval: probeInterval,
		},
		&controller.SessionReconciler{Client: p.client, Live: mgr.GetAPIReader(), Now: p.now, Turns: turns},
		turns,
		turns.Executors,
	} {
		if err := r.SetupWithManager(mgr); err != nil {
			return fmt.Errorf("failed to set up %T: %w", r, err)
		}
	}
	// This runs where the reconcilers do: in the leader.
	if err := mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
		defer metrics.Controls()()
		<-ctx.Done()
		return nil
	})); err != nil {
		return err
	}
	return p.addKeepers()
}

// addNetwork has the policy of connections know the addresses of the cluster.
func (p *parts) addNetwork() error {
	given, err := netpolicy.ParseCluster(p.options.ClusterCIDRs)
	if err != nil {
		return err
	}
	network := clusternet.New(p.clientset, given, p.local, p.log.WithName("network"))
	p.policy = p.policy.Of(network)
	return p.manager.Add(network)
}

// addKeepers adds what looks after that which outlives the work: finished Turns, and journals of those that are gone.
func (p *parts) addKeepers() error {
	mgr := p.manager
	watcher, err := client.NewWithWatch(p.config, client.Options{HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper()})
	if err != nil {
		return fmt.Errorf("failed to make a client that watches: %w", err)
	}
	engine := &turn.Engine{Journal: p.options.Hooks.journal(p.store), Now: p.now}
	charger := &executor.Charger{
		Engine: engine, Reader: mgr.GetAPIReader(), Client: p.status, Now: p.now,
		Log: p.log.WithName("janitor"),
	}
	journals := &janitor.Janitor{
		Store: p.store, Reader: mgr.GetAPIReader(), Cache: mgr.GetCache(), Namespaces: p.options.WatchNamespaces, Namespace: engine.Namespace,
		Turns: p.client, Reference: engine.Reference, Retention: p.options.JournalRetention, Now: p.now, Log: p.log.WithName("janitor"), Charge: charger.Charge,
	}
	if err := mgr.Add(journals); err != nil {
		return err
	}
	return mgr.Add(&controller.FinishedTurns{
		Client: p.client, Reader: mgr.GetAPIReader(), Watcher: watcher, Namespaces: p.options.WatchNamespaces,
		Journals: journals, Now: p.now, Log: p.log.WithName("finished-turns"),
	})
}

// addExecutor adds the executor.
func (p *parts) addExecutor(ctx context.Context) error {
	mgr, o := p.manager, p.options
	if !o.has(RoleController) { // else the reconcilers have them in the cache
		for _, kind := range []client.Object{
			&v1alpha1.Turn{}, &v1alpha1.Agent{}, &v1alpha1.PromptProfile{}, &v1alpha1.ModelProvider{}, &v1alpha1.Session{},
			&v1alpha1.ToolServer{}, &v1alpha1.ToolApproval{},
		} {
			if _, err := mgr.GetCache().GetInformer(ctx, kind); err != nil {
				return fmt.Errorf("failed to watch %T: %w", kind, err)
			}
		}
	}
	log := p.log.WithName("executor")
	limits, err := o.quotas()
	if err != nil {
		return err
	}
	meter := &quota.Meter{Store: p.store, Limits: limits, Forecast: &quota.Forecast{}, Log: p.log.WithName("journal-quota")}
	runs := &executor.Executor{
		Name: o.ExecutorName, Capacity: o.MaxConcurrentTurns, Elected: !p.shared, Namespace: o.Namespace,
		LeaseAnnotations: p.leaseAnnotations, Store: p.identity,
		Client: p.status, Reader: mgr.GetAPIReader(), Cache: mgr.GetCache(), Leases: p.clientset, Events: p.events,
		Engine: &turn.Engine{Journal: meter.Journal(o.Hooks.journal(p.store)), Now: p.now, Waiting: func(in turn.Input, err error, again time.Duration) {
			log.Error(err, "Failed to write the journal of a turn, trying again",
				"turn", client.ObjectKey{Namespace: in.Namespace, Name: in.Name}, "in", again.Round(time.Millisecond).String())
		}},
		Provider: o.Hooks.provider(p.providers), Tools: o.Hooks.Tools, Servers: o.Hooks.servers(p.servers), Credentials: p.credentials,
		Approvals: p.approvals, Ceiling: p.ceiling, Memory: p.memory,
		ConfigMaps: configMapReader(mgr.GetAPIReader()), ManagerSkills: p.skills, Quota: meter.Last, Forecast: meter.Forecast,
		Processors: p.processors, Writes: fairgate.Prepared(), Stopping: p.writes.Open, Now: p.now, Grace: o.grace(), Log: log,
	}
	meter.Changed = runs.Measured
	return errors.Join(mgr.Add(runs), mgr.Add(meter))
}

// approvalCheck says which decisions about calls may be used.
func approvalCheck(o Options, clientset kubernetes.Interface, now func() time.Time, log logr.Logger) approvals.Check {
	if o.TrustDecidedBy {
		log.Info("Using decisions about calls of tools whoever has signed them, as --trust-decided-by says")
		return approvals.Trust
	}
	name := cmp.Or(o.ApprovalPolicy, approvals.DefaultPolicy)
	return approvals.NewPolicy(name, clientset.AdmissionregistrationV1(), now, log.WithName("approvals")).Check
}
