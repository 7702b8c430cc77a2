package manager

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/go-logr/logr"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// watchedNamespaces are the namespaces of --watch-namespaces. The zero value means all namespaces.
type watchedNamespaces struct {
	// present are the namespaces that this process watches.
	present []string
	// denied are the namespaces in which this process may not list all kinds. A watch of them would fail, the cache
	// would never be filled, and the manager would serve no namespace.
	denied []string
}

// checkWatched returns which namespaces this process can watch. It returns an error if there is none.
//
// A tenant who deletes a namespace, or the manager's Role or RoleBinding in it, must not stop the manager for the
// others. So a namespace in which the manager has no permissions is only logged. If the manager has permissions in all
// namespaces, it also watches a namespace that does not exist, because it may be created later.
func checkWatched(
	ctx context.Context, clients kubernetes.Interface, namespaces []string, log logr.Logger,
) (w watchedNamespaces, err error) {
	var refused error
	for _, ns := range namespaces {
		if err := listAll(ctx, clients, ns); apierrors.IsForbidden(err) {
			refused = fmt.Errorf("--watch-namespaces: namespace %q %s: %w", ns, whyDenied(ctx, clients, ns), err)
			log.Info("Warning: the manager does nothing in a namespace of --watch-namespaces", "namespace", ns, "cause", refused.Error())
			w.denied = append(w.denied, ns)
			continue
		}
		w.present = append(w.present, ns)
		switch err := probeNamespace(ctx, clients, ns); {
		case apierrors.IsNotFound(err):
			log.Info("Warning: a namespace of --watch-namespaces does not exist: create it, or remove it from "+
				"the flag; until then, the manager does nothing there", "namespace", ns)
		case apierrors.IsForbidden(err): // this does not affect what the manager reads
			log.Info("Warning: the API server refuses an Event in a namespace of --watch-namespaces", "namespace", ns, "cause", err.Error())
		}
	}
	if len(w.present) == 0 {
		return w, refused
	}
	return w, nil
}

// probeNamespace creates an Event with a dry run, because the manager has the permission for that anyway. The Event is
// not valid, so any error other than NotFound and Forbidden means that the namespace exists.
func probeNamespace(ctx context.Context, clients kubernetes.Interface, namespace string) error {
	event := &eventsv1.Event{ObjectMeta: metav1.ObjectMeta{GenerateName: "capstan-probe-"}}
	_, err := clients.EventsV1().Events(namespace).Create(ctx, event, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	return err
}

// listAll lists one object of each kind that the cache watches. It returns the first error. Admission does not refuse a
// list, unlike an Event: that is refused while the namespace is being deleted, by a quota for Events, and by a policy.
func listAll(ctx context.Context, clients kubernetes.Interface, namespace string) error {
	for _, resource := range resources {
		err := clients.Discovery().RESTClient().Get().
			AbsPath("apis", v1alpha1.GroupVersion.Group, v1alpha1.GroupVersion.Version, "namespaces", namespace, resource).
			Param("limit", "1").Do(ctx).Error()
		if err != nil {
			return err
		}
	}
	return nil
}

// whyDenied says why the manager may not list the objects of a namespace, and what to do.
func whyDenied(ctx context.Context, clients kubernetes.Interface, namespace string) string {
	const create = "create its Role and RoleBinding (with the chart by helm upgrade), or remove it from the flag"
	found, err := clients.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return "does not exist: create the namespace, and then " + create
	case err != nil:
		return "does not exist, or the manager lacks permissions in it: create the namespace, and then " + create
	case !found.DeletionTimestamp.IsZero():
		return "is being deleted: create it again, and then " + create
	}
	return "exists, but the manager lacks permissions in it: " + create
}

// newCache returns a cache in which the denied namespaces have no objects. Otherwise, each read in such a namespace
// would be an error.
func (w watchedNamespaces) newCache(config *rest.Config, o cache.Options) (cache.Cache, error) {
	c, err := cache.New(config, o)
	if err != nil || len(w.denied) == 0 {
		return c, err
	}
	return &presentCache{Cache: c, denied: w.denied}, nil
}

type presentCache struct {
	cache.Cache
	denied []string
}

// Get reads an object.
func (c *presentCache) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	if slices.Contains(c.denied, key.Namespace) {
		return apierrors.NewNotFound(schema.GroupResource{Resource: fmt.Sprintf("%T", o)}, key.Name)
	}
	return c.Cache.Get(ctx, key, o, opts...)
}

// List lists objects.
func (c *presentCache) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if slices.Contains(c.denied, (&client.ListOptions{}).ApplyOptions(opts).Namespace) {
		return nil
	}
	return c.Cache.List(ctx, list, opts...)
}

// returnInterval is the time between two checks whether the manager has permissions in a denied namespace.
const returnInterval = 10 * time.Second

// addWatched ends the process when a denied namespace can be watched, because a cache cannot watch more namespaces than
// at its start. The process hands its Turns back, and the next one serves the namespace.
func (p *parts) addWatched() error {
	if len(p.watched.denied) == 0 {
		return nil
	}
	return p.manager.Add(everywhere{manager.RunnableFunc(func(ctx context.Context) error {
		err := wait.PollUntilContextCancel(ctx, returnInterval, false, func(ctx context.Context) (bool, error) {
			for _, ns := range p.watched.denied {
				if listAll(ctx, p.clientset, ns) == nil {
					return false, fmt.Errorf("the manager has permissions in namespace %q of --watch-namespaces now: this process "+
						"ends, so that the next one serves the namespace", ns)
				}
			}
			return false, nil
		})
		if ctx.Err() != nil {
			return nil //nolint:nilerr // because the manager stops
		}
		return err
	})})
}
