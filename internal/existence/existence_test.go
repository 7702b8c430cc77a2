package existence_test

import (
	"context"
	"errors"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/existence"
)

func TestIsGone(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	turn := &v1alpha1.Turn{ObjectMeta: metav1.ObjectMeta{Namespace: "helpdesk", Name: "a", UID: "uid-a"}}
	away := errors.New("the API server is away")
	for name, tc := range map[string]struct {
		kind string
		key  client.ObjectKey
		uid  string
		err  error
		gone bool
	}{
		"exists":            {"Turn", client.ObjectKeyFromObject(turn), "uid-a", nil, false},
		"does not exist":    {"Turn", client.ObjectKey{Namespace: "helpdesk", Name: "b"}, "uid-b", nil, true},
		"created again":     {"Turn", client.ObjectKeyFromObject(turn), "uid-b", nil, true},
		"of another kind":   {"Session", client.ObjectKeyFromObject(turn), "uid-a", nil, true},
		"cannot be read":    {"Turn", client.ObjectKeyFromObject(turn), "uid-a", away, false},
		"other, unreadable": {"Turn", client.ObjectKeyFromObject(turn), "uid-b", away, false},
	} {
		t.Run(name, func(t *testing.T) {
			live := fake.NewClientBuilder().WithScheme(scheme).WithObjects(turn).WithInterceptorFuncs(interceptor.Funcs{Get: func(
				ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption,
			) error {
				if _, ok := o.(*metav1.PartialObjectMetadata); !ok {
					t.Errorf("a whole %T is requested, want only its metadata", o)
				}
				if tc.err != nil {
					return tc.err
				}
				return c.Get(ctx, key, o, opts...)
			}}).Build()
			gone, err := existence.IsGone(t.Context(), live, tc.kind, tc.key, types.UID(tc.uid))
			if gone != tc.gone || !errors.Is(err, tc.err) {
				t.Errorf("IsGone = %t, %v; want %t, %v", gone, err, tc.gone, tc.err)
			}
		})
	}
}
