package secrets_test

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/secrets"
)

// of reads from one Secret, "s".
func of(data map[string]string) secrets.Reader {
	return func(_ context.Context, key types.NamespacedName) (*corev1.Secret, error) {
		if key != (types.NamespacedName{Namespace: "demo", Name: "s"}) {
			return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "secrets"}, key.Name)
		}
		s := &corev1.Secret{Data: map[string][]byte{}}
		for name, value := range data {
			s.Data[name] = []byte(value)
		}
		return s, nil
	}
}

func TestHeader(t *testing.T) {
	read := of(map[string]string{"token": " abc def\n", "empty": " \n", "binary": "a\x00b", "accent": "é"})
	for name, tc := range map[string]struct {
		ref  v1alpha1.SecretKeyReference
		want string
		err  string
	}{
		"value":     {v1alpha1.SecretKeyReference{Name: "s", Key: "token"}, "abc def", ""},
		"no Secret": {v1alpha1.SecretKeyReference{Name: "t", Key: "token"}, "", `Secret "t" does not exist in namespace "demo": create it with key "token"`},
		"no key":    {v1alpha1.SecretKeyReference{Name: "s", Key: "other"}, "", `Secret "s" in namespace "demo" has no key "other": add it`},
		"empty":     {v1alpha1.SecretKeyReference{Name: "s", Key: "empty"}, "", `key "empty" of Secret "s" in namespace "demo" is empty: put the credential there`},
		"binary":    {v1alpha1.SecretKeyReference{Name: "s", Key: "binary"}, "", `key "binary" of Secret "s" in namespace "demo" holds characters that no HTTP header can carry: store the bare credential`},
		"accent":    {v1alpha1.SecretKeyReference{Name: "s", Key: "accent"}, "", `key "accent" of Secret "s" in namespace "demo" holds characters that no HTTP header can carry: store the bare credential`},
	} {
		got, err := read.Header(t.Context(), "demo", tc.ref)
		if got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
		if e, ok := errors.AsType[*secrets.Error](err); ok != (tc.err != "") || ok && (e.Reason != tc.err || e.Secret != tc.ref.Name || e.Key != tc.ref.Key) {
			t.Errorf("%s: %v, want %q", name, err, tc.err)
		}
	}
}

func TestHeaders(t *testing.T) {
	ref := v1alpha1.SecretKeyReference{Name: "s", Key: "token"}
	got, err := of(map[string]string{"token": "abc"}).Headers(t.Context(), "demo", []v1alpha1.Header{
		{Name: "A", Value: new("plain")}, {Name: "B", ValueFrom: &v1alpha1.HeaderSource{SecretKeyRef: ref}}, {Name: "C"},
	})
	if diff := cmp.Diff([]string{"plain", "abc", ""}, got); diff != "" || err != nil {
		t.Errorf("Headers: %v, -want +got:\n%s", err, diff)
	}
	if _, err := of(nil).Headers(t.Context(), "demo", []v1alpha1.Header{{Name: "B", ValueFrom: &v1alpha1.HeaderSource{SecretKeyRef: ref}}}); err == nil {
		t.Error("a header without its Secret was made")
	}
}

func TestIsAway(t *testing.T) {
	for name, tc := range map[string]struct {
		err  error
		want bool
	}{
		"none":        {nil, false},
		"missing":     {&secrets.Error{Reason: "gone"}, false},
		"no route":    {errors.New("dial tcp: no route to host"), true},
		"forbidden":   {apierrors.NewForbidden(schema.GroupResource{}, "s", nil), false},
		"overloaded":  {apierrors.NewTooManyRequestsError("later"), true},
		"unavailable": {apierrors.NewServiceUnavailable("later"), true},
		"failed":      {apierrors.NewInternalError(errors.New("etcd")), true},
	} {
		if got := secrets.IsAway(tc.err); got != tc.want {
			t.Errorf("%s: %t, want %t", name, got, tc.want)
		}
	}
}
