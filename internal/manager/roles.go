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
	"github.com/capstan-dev/capstan/internal/budgets"
	"github.com/capstan-dev/capstan/internal/bytebudget"
	"github.com/capstan-dev/capstan/internal/clusternet"
	"github.com/capstan-dev/capstan/internal/controller"
	"github.com/capstan-dev/capstan/internal/executor"
	"github.com/capstan-dev/capstan/internal/existence"
	"github.com/capstan-dev/capstan/internal/fairgate"
	"github.com/capstan-dev/capstan/internal/fetch"
	"github.com/capstan-dev/capstan/internal/identities"
	"github.com/capstan-dev/capstan/internal/journalgc"
	"github.com/capstan-dev/capstan/internal/metrics"
	"github.com/capstan-dev/capstan/internal/netpolicy"
	"github.com/capstan-dev/capstan/internal/objectbudget"
	"github.com/capstan-dev/capstan/internal/providers"
	"github.com/capstan-dev/capstan/internal/quota"
	"github.com/capstan-dev/capstan/internal/readapi"
	"github.com/capstan-dev/capstan/internal/recordkeeper"
	"github.com/capstan-dev/capstan/internal/redact"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/sharing"
	"github.com/capstan-dev/capstan/internal/store"
	"github.com/capstan-dev/capstan/internal/toolservers"
	"github.com/capstan-dev/capstan/internal/tracing"
	"github.com/capstan-dev/capstan/internal/translate"
	"github.com/capstan-dev/capstan/internal/turnstatus"
)

// maxEndings is the number of Turns that only have to end and may do so at the same time. While several namespaces end
// Turns, each has a lower limit, at least endingsOfNamespace: see fairgate.New. Most such Turns end within
// milliseconds.
const maxEndings, endingsOfNamespace = 32, 8

// maxLiveReads is the number of requests of runs that may read lists, or objects for which the cache has no memory,
// from the API server at the same time. While several namespaces send such requests, each has a lower limit, at least
// liveReadsOfNamespace.
const maxLiveReads, liveReadsOfNamespace = 8, 2

// maxPreparations is the number of Turns that may read their texts from ConfigMaps at the same time. While several
// namespaces prepare Turns, each has a lower limit, at least preparationsOfNamespace.
const maxPreparations, preparationsOfNamespace = 8, 2

// parts are the parts of a process that its roles use.
type parts struct {
	options   Options
	manager   ctrl.Manager
	config    *rest.Config
	clientset kubernetes.Interface
	// watched are the namespaces of --watch-namespaces.
	watched watchedNamespaces
	// writes is the gate that the writes of all namespaces to the API server pass.
	writes *fairgate.Gate
	// processors limit concurrent work on large texts and on streams.
	processors *fairgate.Processors
	// access checks who may read journals and metrics.
	access *access.Guard
	// client is the client for all objects. status is the client for the status of Turns, which Hooks.Status may
	// wrap.
	client, status client.Client
	store          store.Store
	// shared is true if other processes may use the store at the same time.
	shared bool
	// events emits Events.
	events events.EventRecorder
	// identity tracks the identity of the store.
	identity *store.Tracker
	// storeHealth checks the store.
	storeHealth *health
	// approvals checks which decisions about calls may be used.
	approvals approvals.Check
	// requesters checks whether the API server has checked the requester of a Turn.
	requesters approvals.RequesterCheck
	// budgets are the Budgets of all namespaces.
	budgets budgets.Set
	// ceiling has the ceilings of the limits of all Turns.
	ceiling *v1alpha1.Limits
	// policy decides at which addresses tool servers and model providers may be reached.
	policy *netpolicy.Policy
	// specs are the specs of the Turns that this process runs.
	specs executor.Specs
	// memory is the budget that namespaces share.
	memory *bytebudget.Budget
	// objects counts the objects in the cache.
	objects *objectbudget.Budget
	// providers and servers are the connections that all roles share.
	providers *providers.Cache
	servers   *toolservers.Cache
	// meter measures the journals, or is nil if this process runs no Turns.
	meter *quota.Meter
	// credentials are the credentials of these connections, by namespace. They are removed from everything that this
	// process writes.
	credentials *redact.Set
	// reads is the read API, or nil if it is off. leaseAnnotations publish its address.
	reads            *readapi.Server
	leaseAnnotations map[string]string
	skills           []prepare.Skill
	// sharing checks whether objects of other namespaces may be used.
	sharing *sharing.Checker
	// traces exports the parts of Turns as spans.
	traces *tracing.Provider
	// now returns the time by the clock of the API server, for all times in a status; see apiclock.Clock.Now.
	// serverClock returns the same time, but goes back if the clock of the API server was set back. localNow returns
	// the time by the clock of this machine, for the expiry of Leases.
	now, serverClock, localNow func() time.Time
	log                        logr.Logger
}

// addController adds the reconcilers, and the cleanup of finished Turns and old journals.
func (p *parts) addController(ctx context.Context) error {
	mgr, o := p.manager, p.options
	if err := controller.SetupIndexes(ctx, mgr.GetFieldIndexer()); err != nil {
		return err
	}
	seen, recheck, err := configMapsSeen(ctx, mgr, p.clientset, o, p.watched, p.log)
	if err != nil {
		return err
	}
	configMaps := configMapReader(mgr.GetAPIReader())
	limits, err := o.scheduling()
	if err != nil {
		return fmt.Errorf("--max-running-turns-per-namespace: %w", err)
	}
	circuits := &controller.OpenCircuits{}
	leftOut := &controller.LeftOut{Client: p.client, Live: mgr.GetAPIReader(), Objects: p.objects, Now: p.now}
	turns := &controller.TurnReconciler{
		Client: p.status, Events: p.events, Now: p.now, ServerClock: p.serverClock, Reader: seen, Live: mgr.GetAPIReader(),
		Recheck: recheck, Approvals: p.approvals, Requesters: p.requesters, Ceiling: p.ceiling, Limits: limits, Circuits: circuits,
		Budgets: &p.budgets, Traces: p.traces, Sharing: p.sharing, RefuseURLs: !o.AttachmentURLs, Memories: p.store,
	}
	turns.Executors = &controller.ExecutorReconciler{
		Client: p.client, Live: mgr.GetAPIReader(), Now: p.localNow, ServerNow: p.now,
		Namespace: o.Namespace, Turns: turns, Circuits: circuits,
	}
	if o.has(RoleExecutor) {
		turns.Executors.Self = o.ExecutorName
		turns.Executors.SelfStore = func() executor.StoreIdentity { return p.identity.Last().Identity }
		turns.Executors.Exclusive = !p.shared && o.elects() // the executor then works only while its process leads
	}
	probeInterval := time.Duration(o.ProbeIntervalSeconds) * time.Second
	for _, r := range []interface{ SetupWithManager(ctrl.Manager) error }{
		&controller.PromptProfileReconciler{
			Client: p.client, Now: p.now, ConfigMaps: configMaps, Recheck: recheck, LeftOut: leftOut,
		},
		&controller.ModelProviderReconciler{
			Client: p.client, Events: p.events, Providers: p.providers, Now: p.now, ServerClock: p.serverClock,
			ProbeInterval: probeInterval, Circuits: circuits, LeftOut: leftOut,
		},
		&controller.ToolServerReconciler{
			Client: p.client, Events: p.events, Servers: p.servers, Now: p.now, ServerClock: p.serverClock,
			ProbeInterval: probeInterval, LeftOut: leftOut, Processors: p.processors,
		},
		&controller.AgentReconciler{
			Client: p.client, Now: p.now, ServerClock: p.serverClock, ConfigMaps: configMaps, ManagerSkills: p.skills, Recheck: recheck,
			ProbeInterval: probeInterval, LeftOut: leftOut, Sharing: p.sharing,
		},
		&controller.SessionReconciler{
			Client: p.client, Live: mgr.GetAPIReader(), Now: p.now, ServerClock: p.serverClock, Turns: turns,
		},
		turns,
		turns.Executors,
	} {
		if err := r.SetupWithManager(mgr); err != nil {
			return fmt.Errorf("failed to set up %T: %w", r, err)
		}
	}
	// Like the reconcilers, this runs only in the leader, so only the leader reports that it is the active controller.
	if err := mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
		defer metrics.Controls()()
		<-ctx.Done()
		return nil
	})); err != nil {
		return err
	}
	return p.addKeepers()
}

// addNetwork adds the addresses of the cluster to the policy for connections, and keeps them up to date.
func (p *parts) addNetwork() error {
	given, err := netpolicy.ParseCluster(p.options.ClusterCIDRs)
	if err != nil {
		return err
	}
	network := clusternet.New(p.clientset, given, p.localNow, p.log.WithName("network"))
	p.policy = p.policy.ForCluster(network).Paced(p.processors)
	if inPod() {
		p.policy = p.policy.InPod()
	}
	return p.manager.Add(network)
}

// addKeepers adds the cleanup of finished Turns, of records, and of the journals of deleted objects, and the accounts
// of Budgets.
func (p *parts) addKeepers() error {
	mgr := p.manager
	watcher, err := client.NewWithWatch(p.config,
		client.Options{HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper()})
	if err != nil {
		return fmt.Errorf("failed to create a client that can watch: %w", err)
	}
	engine := &turn.Engine{
		Journal: p.options.Hooks.journal(p.store), Now: p.now, ReasonOf: turnstatus.ReasonOf, ObserveGone: executor.CountRequests,
	}
	reader := existence.Reader{Reader: identities.Reader{
		Reader: mgr.GetAPIReader(), REST: p.clientset.Discovery().RESTClient(), Mapper: mgr.GetRESTMapper(),
	}}
	charger := executor.NewCharger(engine, reader, p.status, p.memory, p.now, p.log.WithName("journalgc"))
	charger.Traces, charger.RecordLabels = p.traces, p.options.RecordLabels
	records := &recordkeeper.Keeper{
		Store: p.store, Ledger: p.store, Reader: reader, Namespaces: p.options.WatchNamespaces,
		End: charger.EndFromObject, Charge: charger.ChargeFromStatus, Labels: p.options.RecordLabels,
		Retention: p.options.RecordRetention, MostPerNamespace: p.options.MaxRecordsPerNamespace, Now: p.now,
		Log: p.log.WithName("records"),
	}
	if err := mgr.Add(records); err != nil {
		return err
	}
	journals := &journalgc.Collector{
		Store: p.store, Reader: reader, Cache: mgr.GetCache(), Namespaces: p.options.WatchNamespaces,
		Namespace: engine.Namespace,
		Turns:     p.client, Reference: func(ctx context.Context, uid string) (string, error) { return engine.Reference(ctx, uid, nil) },
		Retention: p.options.JournalRetention, Now: p.now,
		Log: p.log.WithName("journalgc"), Charge: charger.Charge, End: records.RecordDeleted, Labels: p.options.RecordLabels,
	}
	if err := mgr.Add(journals); err != nil {
		return err
	}
	if err := mgr.Add(&budgets.Keeper{
		Ledger: p.store, Set: &p.budgets, Client: p.client, Requesters: p.requesters, Events: p.events, Now: p.now,
		Log: p.log.WithName("budgets"),
	}); err != nil {
		return err
	}
	return mgr.Add(&controller.FinishedTurns{
		Client: p.client, Reader: reader, Watcher: watcher, Namespaces: p.watched.present,
		Journals: journals, Records: records, Memories: p.store, Now: p.now, Log: p.log.WithName("finished-turns"),
	})
}

// addExecutor adds the executor.
func (p *parts) addExecutor(ctx context.Context) error {
	mgr, o := p.manager, p.options
	if !o.has(RoleController) { // otherwise the reconcilers watch these kinds
		for _, kind := range []client.Object{
			&v1alpha1.Turn{}, &v1alpha1.Agent{}, &v1alpha1.PromptProfile{}, &v1alpha1.ModelProvider{}, &v1alpha1.Session{},
			&v1alpha1.ToolServer{}, &v1alpha1.ToolApproval{}, &v1alpha1.Budget{},
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
	leases, err := executor.NewLeaseClient(p.config)
	if err != nil {
		return err
	}
	p.meter = &quota.Meter{Store: p.store, Limits: limits, Forecast: &quota.Forecast{}, Log: p.log.WithName("journal-quota")}
	runs := &executor.Executor{
		Name: o.ExecutorName, Capacity: o.MaxConcurrentTurns, Elected: !p.shared, Namespace: o.Namespace,
		LeaseAnnotations: p.leaseAnnotations, Store: p.identity, Sharing: p.sharing,
		Client: p.status, Reader: existence.Reader{Reader: mgr.GetAPIReader()}, Cache: mgr.GetCache(),
		Leases: leases, Events: p.events,
		Engine: &turn.Engine{
			Journal: p.meter.Journal(o.Hooks.journal(p.store)), Now: p.now, ReasonOf: turnstatus.ReasonOf, Finalizing: o.Hooks.Finalizing,
			ObserveGone: executor.CountRequests,
			Waiting: func(in turn.Input, err error, again time.Duration) {
				log.Error(err, "Failed to write the journal of a turn, trying again",
					"turn", client.ObjectKey{Namespace: in.Namespace, Name: in.Name}, "requester", in.Requester,
					"in", again.Round(time.Millisecond).String())
			},
		},
		Provider: o.Hooks.provider(p.providers), Gates: p.providers,
		Tools: o.Hooks.Tools, Servers: o.Hooks.servers(p.servers), Credentials: p.credentials,
		Approvals: p.approvals, Requesters: p.requesters, Budgets: p.budgets.Rules, Ceiling: p.ceiling, Memory: p.memory,
		Specs:      &p.specs,
		ConfigMaps: configMapReader(mgr.GetAPIReader()), AttachmentConfigMaps: attachmentReader(mgr.GetAPIReader()),
		Fetch: o.fetch(p.policy), ManagerSkills: p.skills, Quota: p.meter.Last, Forecast: p.meter.Forecast,
		Traces: p.traces, Processors: p.processors, Writes: fairgate.NewPreWriteGate(),
		Endings:      fairgate.New(maxEndings, endingsOfNamespace),
		Unreserved:   fairgate.New(1, 1), // one conversation may take a tenth of the memory
		LiveReads:    fairgate.New(maxLiveReads, liveReadsOfNamespace),
		Preparations: fairgate.New(maxPreparations, preparationsOfNamespace),
		RecordLabels: o.RecordLabels, Stopping: p.writes.Open, Now: p.now, Grace: o.grace(), Log: log,
	}
	if p.shared {
		runs.StoreReach = p.storeHealth.reach
	}
	tasks := o.Hooks.tasks(p.store)
	runs.Memories = tasks
	if n := o.MaxConcurrentEvaluations; n > 0 {
		runs.Tasks = executor.NewTasks(tasks, p.store, n, p.serverClock, p.log.WithName("tasks"))
	}
	p.meter.Changed = runs.Measured
	return errors.Join(mgr.Add(runs), mgr.Add(p.meter))
}

// fetch returns the function that returns the Fetch of a namespace for attachments. The Fetch is nil if URLs are not
// allowed.
func (o *Options) fetch(p *netpolicy.Policy) func(namespace string) translate.Fetch {
	if !o.AttachmentURLs {
		return func(string) translate.Fetch { return nil }
	}
	return fetch.For(p)
}

// approvalCheck returns the check that decides which decisions about calls may be used.
func approvalCheck(o Options, clientset kubernetes.Interface, now func() time.Time, log logr.Logger) approvals.Check {
	if o.TrustDecidedBy {
		log.Info("Using ToolApprovals without checking their author, because --trust-decided-by is set")
		return approvals.AcceptAll
	}
	name := cmp.Or(o.ApprovalPolicy, approvals.DefaultPolicy)
	return approvals.NewPolicy(name, clientset.AdmissionregistrationV1(), now, log.WithName("approvals")).Check
}

// requesterCheck returns the check that decides whether the API server has checked the requester of a Turn.
func requesterCheck(o Options, clientset kubernetes.Interface, now func() time.Time, log logr.Logger) approvals.RequesterCheck {
	if o.TrustRequestedBy {
		log.Info("Using the requesters of Turns without checking them, because --trust-requested-by is set")
		return approvals.TrustRequesters
	}
	name := cmp.Or(o.RequesterPolicy, approvals.DefaultRequesterPolicy)
	return approvals.NewRequesterPolicy(name, clientset.AdmissionregistrationV1(), now, log.WithName("requesters")).CheckRequester
}
