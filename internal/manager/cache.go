package manager

import (
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/controller"
	"github.com/capstan-dev/capstan/internal/executor"
)

// cacheOptions say what this process keeps of the cluster: what it works with, and no more.
func cacheOptions(o Options) cache.Options {
	options := cache.Options{
		DefaultTransform: withoutBookkeeping,
		ByObject: map[client.Object]cache.ByObject{
			&v1alpha1.Turn{}:    {Field: turnsOf(o), Transform: withoutRequests(o.ExecutorName)},
			&corev1.ConfigMap{}: {Transform: identityOnly},
			&coordinationv1.Lease{}: {
				Namespaces: map[string]cache.Config{o.Namespace: {}},
				Label:      labels.SelectorFromSet(labels.Set{executor.LeaseLabel: executor.LeaseLabelValue}),
			},
		},
	}
	if len(o.WatchNamespaces) > 0 {
		options.DefaultNamespaces = map[string]cache.Config{}
		for _, ns := range o.WatchNamespaces {
			options.DefaultNamespaces[ns] = cache.Config{}
		}
	}
	return options
}

// turnsOf selects the Turns that a process works with: those that have not finished, and of them, for an executor alone, those
// that are bound to it. A Turn that finishes leaves the cache as if it were deleted.
func turnsOf(o Options) fields.Selector {
	unfinished := fields.OneTermEqualSelector(controller.FieldCompletionTime, "")
	if o.has(RoleController) {
		return unfinished
	}
	return fields.AndSelectors(fields.OneTermEqualSelector(controller.FieldExecutor, o.ExecutorName), unfinished)
}

// withoutBookkeeping strips from an object what nobody here asks for, before the cache keeps it: who wrote what, and the annotations and
// labels of others. The API server bounds none of them but by the size of an object, so that a namespace could fill the memory of all with
// them. A write of status touches none of that. Leases say what they say in annotations.
func withoutBookkeeping(in any) (any, error) {
	o, err := meta.Accessor(in)
	if err != nil {
		return in, nil //nolint:nilerr // because what is no object, such as a tombstone, stays as it is
	}
	// It may be applied to what it has returned, which others read by then: that is not written again.
	if o.GetManagedFields() != nil {
		o.SetManagedFields(nil)
	}
	if _, isLease := in.(*coordinationv1.Lease); isLease {
		return in, nil
	}
	if o.GetAnnotations() != nil {
		o.SetAnnotations(nil)
	}
	if own := controller.OwnLabels(o.GetLabels()); len(own) < len(o.GetLabels()) {
		o.SetLabels(own)
	}
	return in, nil
}

// withoutRequests strips Turns that this process does not run: thousands of them may wait, and what they ask is read when they are
// bound. Those that are bound to this executor stay whole, because it runs them.
func withoutRequests(executorName string) toolscache.TransformFunc {
	return func(in any) (any, error) {
		t, ok := in.(*v1alpha1.Turn)
		if !ok || t.BoundTo() == executorName {
			return withoutBookkeeping(in)
		}
		if t.ManagedFields != nil {
			t.ManagedFields = nil
		}
		controller.Strip(t)
		return in, nil
	}
}
