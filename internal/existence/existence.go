// Package existence asks whether an object still exists.
package existence

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// IsGone asks the API server whether an object of a kind of capstan.dev no longer exists. An object of the same name
// with another UID is a different object. live must read from the API server, because a cache may be stale. The error
// is that of the read.
func IsGone(ctx context.Context, live client.Reader, kind string, key client.ObjectKey, uid types.UID) (bool, error) {
	current := &metav1.PartialObjectMetadata{}
	current.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kind))
	err := live.Get(ctx, key, current)
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	return err == nil && current.UID != uid, err
}

// Reader reads from the API server. It answers a request in a namespace that does not exist in the same way, whether
// the permissions come from a ClusterRole or from a Role in that namespace: Get returns a "not found" error, and List
// finds nothing. A Role is deleted with its namespace, so the API server then answers "forbidden". If Reader may not
// get the namespace, it returns this answer.
type Reader struct{ client.Reader }

// Get reads an object.
func (r Reader) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	err := r.Reader.Get(ctx, key, o, opts...)
	if missing := r.missingNamespace(ctx, key.Namespace, err); missing != nil {
		return missing
	}
	return err
}

// List lists objects.
func (r Reader) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	err := r.Reader.List(ctx, list, opts...)
	namespace := (&client.ListOptions{}).ApplyOptions(opts).Namespace
	if r.missingNamespace(ctx, namespace, err) != nil {
		return nil //nolint:nilerr // because a namespace that does not exist has no objects
	}
	return err
}

// missingNamespace returns the "not found" error of a namespace in which a request has failed with err. It returns nil
// if the request has another cause of failure, or none.
func (r Reader) missingNamespace(ctx context.Context, namespace string, err error) error {
	if namespace == "" || !apierrors.IsForbidden(err) {
		return nil
	}
	current := &metav1.PartialObjectMetadata{}
	current.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	if err := r.Reader.Get(ctx, client.ObjectKey{Name: namespace}, current); apierrors.IsNotFound(err) {
		return err
	}
	return nil
}
