package manager

import (
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/controller"
	"github.com/capstan-dev/capstan/internal/executor"
	"github.com/capstan-dev/capstan/internal/objectbudget"
	"github.com/capstan-dev/capstan/internal/runtime/span"
	"github.com/capstan-dev/capstan/internal/translate"
)

// cacheOptions returns the options of the cache, so that this process keeps only the objects that it uses. share
// replaces the spec of a Turn by the equal spec that its run already has. objects counts the objects of other kinds.
func cacheOptions(o Options, watched watchedNamespaces, share func(*v1alpha1.Turn), objects *objectbudget.Budget) cache.Options {
	options := cache.Options{
		DefaultTransform: objects.Transform(withoutBookkeeping),
		ByObject: map[client.Object]cache.ByObject{
			&v1alpha1.Turn{}:    {Field: turnsOf(o), Transform: withoutRequests(o.ExecutorName, share)},
			&corev1.ConfigMap{}: {Transform: identityOnly},
			&coordinationv1.Lease{}: {
				Namespaces: map[string]cache.Config{o.Namespace: {}},
				Label:      labels.SelectorFromSet(labels.Set{executor.LeaseLabel: executor.LeaseLabelValue}),
			},
		},
	}
	if len(watched.present) > 0 {
		options.DefaultNamespaces = map[string]cache.Config{}
		for _, ns := range watched.present {
			options.DefaultNamespaces[ns] = cache.Config{}
		}
	}
	return options
}

// turnsOf returns the selector of the Turns that a process uses: all unfinished Turns, or, if the process is only an
// executor, the unfinished Turns that are bound to it. A Turn that finishes leaves the cache as if it were deleted.
func turnsOf(o Options) fields.Selector {
	unfinished := fields.OneTermEqualSelector(controller.FieldCompletionTime, "")
	if o.has(RoleController) {
		return unfinished
	}
	return fields.AndSelectors(fields.OneTermEqualSelector(controller.FieldExecutor, o.ExecutorName), unfinished)
}

// withoutBookkeeping removes metadata that Capstan does not use from an object before it is cached: managed fields,
// owners, finalizers, annotations, and labels that are not Capstan's. Otherwise one namespace could fill the memory of
// all, because only the size of an object limits such metadata. The metadata in the API server stays unchanged, because
// Capstan writes only the status of a cached object, or a patch of its spec. Leases keep their annotations, which
// contain their data, and all their labels. Agents keep the labels that Budgets compare. Turns keep the trace of their
// caller, and the Turn that owns them.
func withoutBookkeeping(in any) (any, error) {
	o, err := meta.Accessor(in)
	if err != nil {
		return in, nil //nolint:nilerr // because anything but an object, such as a tombstone, stays unchanged
	}
	// The transform may receive an object that it has already returned, and that other goroutines read. It does not
	// write to such an object.
	if o.GetManagedFields() != nil {
		o.SetManagedFields(nil)
	}
	if _, isLease := in.(*coordinationv1.Lease); isLease {
		return in, nil
	}
	if len(o.GetFinalizers()) > 0 {
		o.SetFinalizers(nil)
	}
	var kept map[string]string
	var owners []metav1.OwnerReference
	if t, isTurn := in.(*v1alpha1.Turn); isTurn {
		kept, owners = span.Kept(o.GetAnnotations()), controller.OwnOwners(t)
	}
	if len(owners) < len(o.GetOwnerReferences()) {
		o.SetOwnerReferences(owners)
	}
	if len(o.GetAnnotations()) > len(kept) && !objectbudget.IsLeftOut(o) {
		o.SetAnnotations(kept)
	}
	used := controller.OwnLabels
	if _, isAgent := in.(*v1alpha1.Agent); isAgent {
		used = translate.BudgetLabels
	}
	if own := used(o.GetLabels()); len(own) < len(o.GetLabels()) {
		o.SetLabels(own)
	}
	return in, nil
}

// withoutRequests removes the requests from Turns that this process does not run. Thousands of Turns may wait, and
// their requests are read only when they are bound. Turns that are bound to this executor keep their whole spec, and
// share it with the run.
func withoutRequests(executorName string, share func(*v1alpha1.Turn)) toolscache.TransformFunc {
	return func(in any) (any, error) {
		t, ok := in.(*v1alpha1.Turn)
		if ok && t.BoundTo() == executorName && t.ManagedFields != nil { // if nil, other goroutines may already read t
			share(t)
		}
		if !ok || t.BoundTo() == executorName {
			return withoutBookkeeping(in)
		}
		controller.Strip(t) // before the managed fields are removed, because it records their size
		if t.ManagedFields != nil {
			t.ManagedFields = nil
		}
		return in, nil
	}
}
