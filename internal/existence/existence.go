// Package existence asks whether an object still exists.
package existence

import (
	"context"

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
