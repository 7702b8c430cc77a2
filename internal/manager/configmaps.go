package manager

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/translate"
)

// configMapReader reads ConfigMaps from the API server: their texts are not kept in a cache. Each that a namespace is asked
// for reads a ConfigMap once, so that all texts of one preparation are of one version; it is for one goroutine.
func configMapReader(r client.Reader) func(namespace string) translate.ConfigMaps {
	return func(namespace string) translate.ConfigMaps {
		known := map[string]map[string]string{} // by name; nil for a ConfigMap that does not exist
		return func(ctx context.Context, ref v1alpha1.ConfigMapKeyReference) (string, error) {
			data, ok := known[ref.Name]
			if !ok {
				var err error
				if data, err = configMapData(ctx, r, types.NamespacedName{Namespace: namespace, Name: ref.Name}); err != nil {
					return "", err
				}
				known[ref.Name] = data
			}
			return translate.ConfigMapValue(ref, data)
		}
	}
}

// configMapData returns the data of a ConfigMap, nil if there is none.
func configMapData(ctx context.Context, r client.Reader, key types.NamespacedName) (map[string]string, error) {
	var m corev1.ConfigMap
	if err := r.Get(ctx, key, &m); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	if m.Data == nil {
		return map[string]string{}, nil
	}
	return m.Data, nil
}

// configMapsSeen returns what tells whether a ConfigMap exists, and how often objects that name one are looked at: the
// cache, and 0 for when an event tells; or the API server where ConfigMaps may not be watched.
func configMapsSeen(ctx context.Context, mgr ctrl.Manager, clientset kubernetes.Interface, o Options, log logr.Logger) (client.Reader, time.Duration, error) {
	watched, err := mayWatchConfigMaps(ctx, clientset.AuthorizationV1(), o.WatchNamespaces, log)
	if err != nil || watched {
		return mgr.GetClient(), 0, err
	}
	return mgr.GetAPIReader(), time.Duration(o.ProbeIntervalSeconds) * time.Second, nil
}

// mayWatchConfigMaps reports whether this process may list and watch the ConfigMaps of these namespaces, none for all. If
// it may not, it logs so, and what is lost: a role that was written by hand, or for an older version, may lack the rule.
func mayWatchConfigMaps(ctx context.Context, reviews authorizationclient.SelfSubjectAccessReviewsGetter, namespaces []string, log logr.Logger) (bool, error) {
	if len(namespaces) == 0 {
		namespaces = []string{metav1.NamespaceAll}
	}
	var without []string
	for _, ns := range namespaces {
		may, err := mayAll(ctx, reviews, ns, "list", "watch")
		if err != nil {
			return false, err
		}
		if !may {
			without = append(without, cmp.Or(ns, "all namespaces"))
		}
	}
	if len(without) > 0 {
		log.Info("The manager may not list and watch ConfigMaps: objects that name one are looked at anew every --probe-interval-seconds, "+
			"and not at once when it changes. Add the rule to the manager's role and start it again",
			"missingIn", without, "rule", `apiGroups: [""], resources: [configmaps], verbs: [get, list, watch]`)
	}
	return len(without) == 0, nil
}

// mayAll reports whether this process may do all this with the ConfigMaps of a namespace. Where it may not even ask, it is
// taken that it may not.
func mayAll(ctx context.Context, reviews authorizationclient.SelfSubjectAccessReviewsGetter, namespace string, verbs ...string) (bool, error) {
	for _, verb := range verbs {
		review, err := reviews.SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
				Namespace: namespace, Verb: verb, Resource: "configmaps",
			}},
		}, metav1.CreateOptions{})
		if apierrors.IsForbidden(err) {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("failed to ask whether this process may %s ConfigMaps: %w", verb, err)
		}
		if !review.Status.Allowed {
			return false, nil
		}
	}
	return true, nil
}

// identityOnly strips the metadata of a ConfigMap to what tells it from others, before the cache keeps it: an annotation
// may hold a copy of its text, as kubectl apply leaves one.
func identityOnly(o any) (any, error) {
	if m, ok := o.(*metav1.PartialObjectMetadata); ok {
		m.ObjectMeta = metav1.ObjectMeta{Namespace: m.Namespace, Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion}
	}
	return o, nil
}
