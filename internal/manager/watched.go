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
	// gone are the namespaces that were deleted with the manager's Role, or are just being deleted. A watch of them
	// would fail, the cache would never be filled, and the manager would serve no namespace.
	gone []string
}

// checkWatched returns which namespaces this process can watch. It returns an error if the manager has no permissions
// in a namespace that exists, for example because the chart's Roles are missing: the cache would never be filled. It
// also returns an error if no namespace is left.
//
// A tenant who deletes a namespace must not stop the manager for the others, so a namespace that is gone is only
// logged. If the manager has permissions in all namespaces, it is watched nevertheless, because it may be created
// later.
func checkWatched(
	ctx context.Context, clients kubernetes.Interface, namespaces []string, log logr.Logger,
) (w watchedNamespaces, err error) {
	var refused error
	for _, ns := range namespaces {
		err := probeNamespace(ctx, clients, ns)
		switch {
		case apierrors.IsNotFound(err):
			log.Info("Warning: a namespace of --watch-namespaces does not exist: create it, or remove it from "+
				"the flag; until then, the manager does nothing there", "namespace", ns)
		case !apierrors.IsForbidden(err):
		case mayList(ctx, clients, ns):
			// Admission refuses the Event, but does not affect what the manager reads.
			log.Info("Warning: the API server refuses an Event in a namespace of --watch-namespaces", "namespace", ns, "cause", err.Error())
		default:
			refused = fmt.Errorf("--watch-namespaces: namespace %q does not exist, or the manager has no permissions in it: "+
				"create the namespace, and then its Role and RoleBinding (with the chart by helm upgrade), or remove it from the flag: %w",
				ns, err)
			if !isGone(ctx, clients, ns) {
				return w, refused
			}
			log.Info("Warning: a namespace of --watch-namespaces was deleted: create it and the manager's Role in it again, or remove "+
				"it from the flag; until then, the manager does nothing there", "namespace", ns)
			w.gone = append(w.gone, ns)
			continue
		}
		w.present = append(w.present, ns)
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

// mayList reports whether the manager may list the Turns of a namespace. Admission does not refuse a list, unlike an
// Event: that is refused while the namespace is being deleted, by a quota for Events, and by a policy.
func mayList(ctx context.Context, clients kubernetes.Interface, namespace string) bool {
	return clients.Discovery().RESTClient().Get().
		AbsPath("apis", v1alpha1.GroupVersion.Group, v1alpha1.GroupVersion.Version, "namespaces", namespace, "turns").
		Param("limit", "1").Do(ctx).Error() == nil
}

// isGone reports whether a namespace certainly does not exist, or is being deleted.
func isGone(ctx context.Context, clients kubernetes.Interface, namespace string) bool {
	found, err := clients.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
	return apierrors.IsNotFound(err) || err == nil && !found.DeletionTimestamp.IsZero()
}

// newCache returns a cache in which the namespaces that are gone have no objects. Otherwise, each read in such a
// namespace would be an error.
func (w watchedNamespaces) newCache(config *rest.Config, o cache.Options) (cache.Cache, error) {
	c, err := cache.New(config, o)
	if err != nil || len(w.gone) == 0 {
		return c, err
	}
	return &presentCache{Cache: c, gone: w.gone}, nil
}

type presentCache struct {
	cache.Cache
	gone []string
}

// Get reads an object.
func (c *presentCache) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	if slices.Contains(c.gone, key.Namespace) {
		return apierrors.NewNotFound(schema.GroupResource{Resource: fmt.Sprintf("%T", o)}, key.Name)
	}
	return c.Cache.Get(ctx, key, o, opts...)
}

// List lists objects.
func (c *presentCache) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if slices.Contains(c.gone, (&client.ListOptions{}).ApplyOptions(opts).Namespace) {
		return nil
	}
	return c.Cache.List(ctx, list, opts...)
}

// returnInterval is the time between two checks whether a namespace that is gone exists again.
const returnInterval = 10 * time.Second

// addWatched ends the process when a namespace that is gone can be watched again, because a cache cannot watch more
// namespaces than at its start. The process hands its Turns back, and the next one serves the namespace.
func (p *parts) addWatched() error {
	if len(p.watched.gone) == 0 {
		return nil
	}
	return p.manager.Add(everywhere{manager.RunnableFunc(func(ctx context.Context) error {
		err := wait.PollUntilContextCancel(ctx, returnInterval, false, func(ctx context.Context) (bool, error) {
			for _, ns := range p.watched.gone {
				if mayList(ctx, p.clientset, ns) {
					return false, fmt.Errorf("the manager has permissions in namespace %q of --watch-namespaces again: this process "+
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
