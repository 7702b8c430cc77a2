package manager

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/translate"
)

// configMapReader reads ConfigMaps from the API server, one by one: their texts are not kept in a cache.
func configMapReader(r client.Reader) func(namespace string) translate.ConfigMaps {
	return func(namespace string) translate.ConfigMaps {
		return func(ctx context.Context, ref v1alpha1.ConfigMapKeyReference) (string, error) {
			var m corev1.ConfigMap
			err := r.Get(ctx, types.NamespacedName{Namespace: namespace, Name: ref.Name}, &m)
			if apierrors.IsNotFound(err) {
				return translate.ConfigMapValue(ref, nil)
			}
			if err != nil {
				return "", err
			}
			if m.Data == nil {
				m.Data = map[string]string{}
			}
			return translate.ConfigMapValue(ref, m.Data)
		}
	}
}

// identityOnly strips the metadata of a ConfigMap to what tells it from others, before the cache keeps it: an annotation
// may hold a copy of its text, as kubectl apply leaves one.
func identityOnly(o any) (any, error) {
	if m, ok := o.(*metav1.PartialObjectMetadata); ok {
		m.ObjectMeta = metav1.ObjectMeta{Namespace: m.Namespace, Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion}
	}
	return o, nil
}
