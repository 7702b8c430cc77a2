package existence_test

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
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

// TestReaderKnowsDeletedNamespaces checks that permissions that were deleted together with a namespace do not hide that
// its objects are gone, and that no other failure means that an object is gone.
func TestReaderKnowsDeletedNamespaces(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Group: "capstan.dev", Resource: "turns"}, "a", errors.New("no Role"))
	away := errors.New("the API server is away")
	for name, tc := range map[string]struct {
		namespace string
		// err is the error of a request for Turns, and ofNamespace that of a request for the namespace.
		err, ofNamespace error
		gone             bool
	}{
		"the namespace is gone":            {"research", forbidden, nil, true},
		"the namespace exists":             {"helpdesk", forbidden, nil, false},
		"the namespace may not be read":    {"research", forbidden, forbidden, false},
		"the namespace cannot be read":     {"research", forbidden, away, false},
		"another failure":                  {"research", away, nil, false},
		"a request for all namespaces":     {"", forbidden, nil, false},
		"the namespace can be read anyway": {"helpdesk", nil, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			scheme := runtime.NewScheme()
			if err := errors.Join(v1alpha1.AddToScheme(scheme), corev1.AddToScheme(scheme)); err != nil {
				t.Fatal(err)
			}
			live := existence.Reader{Reader: fake.NewClientBuilder().WithScheme(scheme).WithObjects(
				&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "helpdesk"}},
				&v1alpha1.Turn{ObjectMeta: metav1.ObjectMeta{Namespace: "helpdesk", Name: "a", UID: "uid-a"}},
			).WithInterceptorFuncs(interceptor.Funcs{
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
					err := tc.err
					if key.Namespace == "" {
						err = tc.ofNamespace
					}
					if err != nil {
						return err
					}
					return c.Get(ctx, key, o, opts...)
				},
				List: func(ctx context.Context, c client.WithWatch, l client.ObjectList, opts ...client.ListOption) error {
					if tc.err != nil {
						return tc.err
					}
					return c.List(ctx, l, opts...)
				},
			}).Build()}
			want := tc.err
			if tc.gone {
				want = nil
			}
			var turns v1alpha1.TurnList
			if err := live.List(t.Context(), &turns, client.InNamespace(tc.namespace)); !errors.Is(err, want) {
				t.Errorf("List = %v, want %v", err, want)
			}
			if tc.namespace == "" {
				return
			}
			gone, err := existence.IsGone(t.Context(), live, "Turn", client.ObjectKey{Namespace: tc.namespace, Name: "a"}, "uid-a")
			if gone != tc.gone || !errors.Is(err, want) {
				t.Errorf("IsGone = %t, %v; want %t, %v", gone, err, tc.gone, want)
			}
		})
	}
}
