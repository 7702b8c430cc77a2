package manager

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/translate"
)

func TestConfigMapReader(t *testing.T) {
	away := errors.New("the API server is away")
	c := fake.NewClientBuilder().WithObjects(
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "helpdesk", Name: "terms"}, Data: map[string]string{"a.md": "Three days."}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "helpdesk", Name: "empty"}},
	).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if key.Name == "unreadable" {
				return away
			}
			return c.Get(ctx, key, o, opts...)
		},
	}).Build()
	for name, tc := range map[string]struct {
		reason, namespace, configMap, key string
		want                              string
		missing                           string
		err                               error
	}{
		"Value":     {reason: "the value of the key", namespace: "helpdesk", configMap: "terms", key: "a.md", want: "Three days."},
		"NoKey":     {reason: "a key that is not there is told", namespace: "helpdesk", configMap: "terms", key: "b.md", missing: `ConfigMap "terms" has no key "b.md" in its data: add it, or correct the key`},
		"NoData":    {reason: "an empty ConfigMap is there", namespace: "helpdesk", configMap: "empty", key: "a.md", missing: `ConfigMap "empty" has no key "a.md" in its data: add it, or correct the key`},
		"Elsewhere": {reason: "another namespace's is not seen", namespace: "sales", configMap: "terms", key: "a.md", missing: `ConfigMap "terms" does not exist: create it, or correct the name`},
		"Away":      {reason: "a read that failed is not a ConfigMap that is missing", namespace: "helpdesk", configMap: "unreadable", key: "a.md", err: away},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := configMapReader(c)(tc.namespace)(t.Context(), v1alpha1.ConfigMapKeyReference{Name: tc.configMap, Key: tc.key})
			missing, isMissing := errors.AsType[*translate.MissingError](err)
			if got != tc.want || isMissing != (tc.missing != "") || (isMissing && missing.Reason != tc.missing) || !errors.Is(err, tc.err) && tc.err != nil {
				t.Errorf("%s: got %q, %v", tc.reason, got, err)
			}
		})
	}
}

func TestTheCacheKeepsNoTextOfAConfigMap(t *testing.T) {
	full := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: "helpdesk", Name: "terms", UID: "u", ResourceVersion: "7", Labels: map[string]string{"a": "b"},
		Annotations: map[string]string{corev1.LastAppliedConfigAnnotation: `{"data":{"a.md":"Three days."}}`},
	}}
	got, err := identityOnly(full)
	if err != nil {
		t.Fatal(err)
	}
	want := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "helpdesk", Name: "terms", UID: "u", ResourceVersion: "7"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the cache must keep what tells it from others, and no more (-want +got):\n%s", diff)
	}
}
