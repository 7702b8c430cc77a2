package manager

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/controller"
	"github.com/capstan-dev/capstan/internal/executor"
	"github.com/capstan-dev/capstan/internal/providers"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/turn"
	"github.com/capstan-dev/capstan/internal/skillfile"
)

// leaderElectionID names the Lease by which managers agree on who leads.
const leaderElectionID = "capstan-manager"

// leaseTimeout bounds one request for that Lease: half the time in which the leader must have renewed it.
const leaseTimeout = 5 * time.Second

// Scheme returns a scheme with the kinds the manager works with.
func Scheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	return s, errors.Join(clientgoscheme.AddToScheme(s), v1alpha1.AddToScheme(s))
}

// RESTConfig returns how to reach the API server.
func (o *Options) RESTConfig() (*rest.Config, error) {
	if o.Kubeconfig == "" {
		return ctrl.GetConfig()
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", o.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	return cfg, nil
}

// Run runs the manager until ctx ends and all that it runs has stopped. Options must be valid.
func Run(ctx context.Context, o Options, cfg *rest.Config, log logr.Logger) (err error) {
	at, err := o.location()
	if err != nil {
		return err
	}
	var skills []prepare.Skill
	if o.SkillsFile != "" {
		if skills, err = skillfile.Load(o.SkillsFile); err != nil {
			return fmt.Errorf("--skills-file: %w", err)
		}
	}
	store, err := openStore(ctx, &o, log)
	if err != nil {
		if ctx.Err() != nil {
			return nil // a start that was cut short by the stop has not failed
		}
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()

	// The API server's priority and fairness holds clients back where that is needed; a limit of our own would only
	// queue status writes.
	cfg = rest.CopyConfig(cfg)
	cfg.QPS = -1
	mgr, err := newManager(o, cfg, log)
	if err != nil {
		return err
	}
	health := &storeHealth{check: store.Check, log: log}
	if err := errors.Join(mgr.AddReadyzCheck("store", health.ready), mgr.Add(health)); err != nil {
		return err
	}
	known := providers.NewCache(secretReader(mgr.GetAPIReader()), time.Now)
	defer known.Close()
	if err := add(ctx, mgr, o, cfg, store, known, skills, log); err != nil {
		return err
	}
	log.WithValues(at.shown()...).Info("Starting", "executor", o.ExecutorName)
	return mgr.Start(ctx)
}

func newManager(o Options, cfg *rest.Config, log logr.Logger) (ctrl.Manager, error) {
	scheme, err := Scheme()
	if err != nil {
		return nil, err
	}
	stop := o.grace() + o.grace()/5 + 5*time.Second
	options := ctrl.Options{
		Scheme: scheme, Logger: log,
		Metrics:                       metricsserver.Options{BindAddress: o.MetricsBindAddress},
		HealthProbeBindAddress:        o.HealthProbeBindAddress,
		LeaderElection:                o.LeaderElect,
		LeaderElectionReleaseOnCancel: true,
		GracefulShutdownTimeout:       &stop,
		// Names of controllers are checked per process; tests start several managers in one.
		Controller: config.Controller{SkipNameValidation: new(true)},
		Cache: cache.Options{ByObject: map[client.Object]cache.ByObject{
			&corev1.ConfigMap{}: {Transform: identityOnly},
			&coordinationv1.Lease{}: {
				Namespaces: map[string]cache.Config{o.Namespace: {}},
				Label:      labels.SelectorFromSet(labels.Set{executor.LeaseLabel: executor.LeaseLabelValue}),
			},
		}},
	}
	if o.LeaderElect {
		if options.LeaderElectionResourceLockInterface, err = leaderLock(o, cfg); err != nil {
			return nil, err
		}
	}
	if len(o.WatchNamespaces) > 0 {
		options.Cache.DefaultNamespaces = map[string]cache.Config{}
		for _, ns := range o.WatchNamespaces {
			options.Cache.DefaultNamespaces[ns] = cache.Config{}
		}
	}
	mgr, err := ctrl.NewManager(cfg, options)
	if err != nil {
		return nil, fmt.Errorf("failed to make the manager: %w", err)
	}
	return mgr, addProbes(mgr)
}

// leaderLock is the Lease of the leader, held under the executor's name if somebody chose that: a container that was killed and started again has
// the same one, and leads again at once, where a random one would wait for the Lease to run out.
func leaderLock(o Options, cfg *rest.Config) (resourcelock.Interface, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.Timeout = leaseTimeout
	leases, err := coordinationclient.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("failed to make a client for leader election: %w", err)
	}
	identity := o.ExecutorName
	if !o.NameGiven {
		identity += "_" + string(uuid.NewUUID())
	}
	return &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: o.Namespace, Name: leaderElectionID},
		Client:     leases,
		LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
	}, nil
}

// addProbes makes the process alive when it runs and ready when its cache is filled, whether it leads or not.
func addProbes(mgr ctrl.Manager) error {
	var synced atomic.Bool
	ready := func(*http.Request) error {
		if !synced.Load() {
			return errors.New("the cache is not filled yet")
		}
		return nil
	}
	watch := manager.RunnableFunc(func(ctx context.Context) error {
		synced.Store(mgr.GetCache().WaitForCacheSync(ctx))
		return nil
	})
	return errors.Join(mgr.AddHealthzCheck("ping", healthz.Ping), mgr.AddReadyzCheck("cache", ready), mgr.Add(everywhere{watch}))
}

// everywhere runs on every replica, not only on the leader.
type everywhere struct{ manager.Runnable }

// NeedLeaderElection is false.
func (everywhere) NeedLeaderElection() bool { return false }

// add adds the controllers and the executor.
func add(ctx context.Context, mgr ctrl.Manager, o Options, cfg *rest.Config, store store, known *providers.Cache, skills []prepare.Skill, log logr.Logger) error {
	if err := controller.SetupIndexes(ctx, mgr.GetFieldIndexer()); err != nil {
		return err
	}
	clientset, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return fmt.Errorf("failed to make a client: %w", err)
	}
	if err := checkNamespace(ctx, clientset, o.Namespace); err != nil {
		return err
	}
	now := time.Now
	configMaps := configMapReader(mgr.GetAPIReader())
	seen, recheck, err := configMapsSeen(ctx, mgr, clientset, o, log)
	if err != nil {
		return err
	}
	recorder := mgr.GetEventRecorder("capstan")
	turns := &controller.TurnReconciler{Client: mgr.GetClient(), Events: recorder, Now: now, Reader: seen, Recheck: recheck}
	turns.Executors = &controller.ExecutorReconciler{
		Client: mgr.GetClient(), Now: now, Namespace: o.Namespace, Self: o.ExecutorName, Turns: turns,
	}
	for _, r := range []interface{ SetupWithManager(ctrl.Manager) error }{
		&controller.PromptProfileReconciler{Client: mgr.GetClient(), Now: now, ConfigMaps: configMaps, Recheck: recheck},
		&controller.ModelProviderReconciler{
			Client: mgr.GetClient(), Providers: known, Now: now, ProbeInterval: time.Duration(o.ProbeIntervalSeconds) * time.Second,
		},
		&controller.AgentReconciler{Client: mgr.GetClient(), Now: now, ConfigMaps: configMaps, ManagerSkills: skills, Recheck: recheck},
		turns,
		turns.Executors,
	} {
		if err := r.SetupWithManager(mgr); err != nil {
			return fmt.Errorf("failed to set up %T: %w", r, err)
		}
	}
	return mgr.Add(&executor.Executor{
		Name: o.ExecutorName, Capacity: o.MaxConcurrentTurns, Namespace: o.Namespace,
		Client: mgr.GetClient(), Reader: mgr.GetAPIReader(), Cache: mgr.GetCache(), Leases: clientset, Events: recorder,
		Engine: &turn.Engine{Journal: store, Now: now}, Store: store, SweepStore: len(o.WatchNamespaces) == 0,
		Providers: known, ConfigMaps: configMaps, ManagerSkills: skills, Now: now, Grace: o.grace(), Log: log.WithName("executor"),
	})
}

// checkNamespace fails if the namespace of the Leases does not exist: without a Lease no Turn would ever be bound. It asks
// by what it may do anyway, the creation of a Lease, of which nothing stays.
func checkNamespace(ctx context.Context, leases kubernetes.Interface, namespace string) error {
	probe := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{GenerateName: "capstan-probe-"}}
	_, err := leases.CoordinationV1().Leases(namespace).Create(ctx, probe, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("--namespace %q does not exist in the cluster: create it, or name one that does", namespace)
	}
	if err != nil {
		return fmt.Errorf("failed to try to create a Lease in --namespace %q: %w", namespace, err)
	}
	return nil
}

// secretReader reads Secrets from the API server, one by one: the manager may not list them, and keeps none.
func secretReader(r client.Reader) providers.SecretReader {
	return func(ctx context.Context, key types.NamespacedName) (*corev1.Secret, error) {
		var s corev1.Secret
		if err := r.Get(ctx, key, &s); err != nil {
			return nil, err
		}
		return &s, nil
	}
}
