package secrets_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/secrets"
)

// readerOf returns a Reader with one Secret, "s".
func readerOf(data map[string]string) secrets.Reader {
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
	longest := strings.Repeat("x", secrets.MaxCredential)
	read := readerOf(map[string]string{
		"token": " abc def\n", "empty": " \n", "binary": "a\x00b", "accent": "é",
		"longest": " " + longest + "\n", "longer": longest + "x",
	})
	for name, tc := range map[string]struct {
		ref  v1alpha1.SecretKeyReference
		want string
		err  string
	}{
		"value": {v1alpha1.SecretKeyReference{Name: "s", Key: "token"}, "abc def", ""},
		"no Secret": {
			v1alpha1.SecretKeyReference{Name: "t", Key: "token"},
			"",
			`Secret "t" does not exist in namespace "demo": create it with key "token"`,
		},
		"no key": {
			v1alpha1.SecretKeyReference{Name: "s", Key: "other"},
			"",
			`Secret "s" in namespace "demo" has no key "other": add it`,
		},
		"empty": {
			v1alpha1.SecretKeyReference{Name: "s", Key: "empty"},
			"",
			`key "empty" of Secret "s" in namespace "demo" is empty: put the credential there`,
		},
		"binary": {
			v1alpha1.SecretKeyReference{Name: "s", Key: "binary"},
			"",
			`key "binary" of Secret "s" in namespace "demo" has characters that an HTTP header cannot carry: store the credential alone`,
		},
		"longest": {v1alpha1.SecretKeyReference{Name: "s", Key: "longest"}, longest, ""},
		"longer": {
			v1alpha1.SecretKeyReference{Name: "s", Key: "longer"},
			"",
			`key "longer" of Secret "s" in namespace "demo" is 16385 bytes long, but a credential may have at ` +
				`most 16384: store the credential alone`,
		},
		"accent": {
			v1alpha1.SecretKeyReference{Name: "s", Key: "accent"},
			"",
			`key "accent" of Secret "s" in namespace "demo" has characters that an HTTP header cannot carry: store the credential alone`,
		},
	} {
		got, err := read.Header(t.Context(), "demo", tc.ref, "https://api.example/v1")
		if got != tc.want {
			t.Errorf("%s: %.100q, want %.100q", name, got, tc.want)
		}
		if e, ok := errors.AsType[*secrets.Error](err); ok != (tc.err != "") || ok &&
			(e.Reason != tc.err || e.Secret != tc.ref.Name || e.Key != tc.ref.Key) {
			t.Errorf("%s: %v, want %q", name, err, tc.err)
		}
	}
}

// TestWhiteSpaceIsNotKept checks that a value does not keep the memory of the white space around it.
func TestWhiteSpaceIsNotKept(t *testing.T) {
	const padding = 1 << 20
	read := readerOf(map[string]string{"token": strings.Repeat(" ", padding) + "a-token"})
	var kept []string
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for range 16 {
		value, err := read.Header(t.Context(), "demo", v1alpha1.SecretKeyReference{Name: "s", Key: "token"}, "https://api.example/v1")
		if err != nil {
			t.Fatal(err)
		}
		kept = append(kept, value)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > padding {
		t.Errorf("16 short tokens keep %d bytes", grown)
	}
	runtime.KeepAlive(kept)
}

func TestHeaders(t *testing.T) {
	ref := v1alpha1.SecretKeyReference{Name: "s", Key: "token"}
	got, err := readerOf(map[string]string{"token": "abc"}).Headers(t.Context(), "demo", []v1alpha1.Header{
		{Name: "A", Value: new("plain")}, {Name: "B", ValueFrom: &v1alpha1.HeaderSource{SecretKeyRef: ref}}, {Name: "C"},
	}, "https://api.example/v1")
	if diff := cmp.Diff([]string{"plain", "abc", ""}, got); diff != "" || err != nil {
		t.Errorf("Headers: %v, -want +got:\n%s", err, diff)
	}
	if _, err := readerOf(nil).Headers(t.Context(), "demo",
		[]v1alpha1.Header{{Name: "B", ValueFrom: &v1alpha1.HeaderSource{SecretKeyRef: ref}}}, "https://api.example/v1"); err == nil {
		t.Error("Headers returned no error for a header whose Secret does not exist")
	}
}

func TestAllowedHosts(t *testing.T) {
	for hosts, tc := range map[string]struct{ allowed, refused []string }{
		"api.example": {
			[]string{"https://api.example/v1", "http://API.example:8080", "https://api.example."},
			[]string{"https://evil.example", "https://api.example.evil.example", "https://xapi.example", "https://a.api.example"},
		},
		"b.example, *.api.example": {
			[]string{"https://b.example", "https://a.api.example", "https://x.y.api.example"},
			[]string{"https://api.example", "https://xapi.example", "https://a.b.example"},
		},
		"https://api.example:443": {
			[]string{"https://api.example/v1", "https://api.example:443"},
			[]string{"http://api.example", "https://api.example:8443", "http://api.example:443"},
		},
		"api.example:80": {[]string{"http://api.example"}, []string{"https://api.example"}},
		"[fd00::1]:8080": {[]string{"http://[fd00::1]:8080/mcp"}, []string{"http://[fd00::2]:8080/mcp", "http://[fd00::1]/mcp"}},
		"straße.example": { // its capital letter ẞ would connect to strasse.example
			[]string{"https://xn--strae-oqa.example"}, []string{"https://STRAẞE.example", "https://strasse.example"},
		},
		"*.bücher.example": {
			[]string{"https://a.xn--bcher-kva.example", "https://a。BÜCHER.example"}, []string{"https://xn--bcher-kva.example"},
		},
		"":                         {nil, []string{"https://api.example"}},
		"*, *.,://,%":              {nil, []string{"https://api.example", "https://x."}},
		"api.example@evil.example": {[]string{}, []string{"https://api.example"}},
	} {
		read := func(context.Context, types.NamespacedName) (*corev1.Secret, error) {
			s := &corev1.Secret{Data: map[string][]byte{"k": []byte("v")}}
			s.Annotations = map[string]string{secrets.AllowedHosts: hosts}
			return s, nil
		}
		ref := v1alpha1.SecretKeyReference{Name: "s", Key: "k"}
		for _, to := range tc.allowed {
			if _, err := secrets.Reader(read).Header(t.Context(), "demo", ref, to); err != nil {
				t.Errorf("%q, %s: %v, want the value", hosts, to, err)
			}
		}
		for _, to := range tc.refused {
			_, err := secrets.Reader(read).Headers(t.Context(), "demo",
				[]v1alpha1.Header{{Name: "A", ValueFrom: &v1alpha1.HeaderSource{SecretKeyRef: ref}}}, to)
			e, ok := errors.AsType[*secrets.Error](err)
			if !ok || e.Kind != secrets.OtherHost {
				t.Errorf("%q, %s: %v, want it refused", hosts, to, err)
			}
		}
	}
}

func TestReservedHeaders(t *testing.T) {
	for _, name := range []string{
		"Cookie", "HOST", "x-forwarded-for", "X_Forwarded_Host", "Impersonate-User",
		"X-Remote-Group", "Proxy-Authorization", "te",
	} {
		_, err := readerOf(nil).Headers(t.Context(), "demo", []v1alpha1.Header{{Name: name, Value: new("v")}}, "https://api.example/v1")
		if e, ok := errors.AsType[*secrets.Error](err); !ok || e.Kind != secrets.ReservedHeader {
			t.Errorf("%s: %v, want it refused", name, err)
		}
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
		"wrong token": {apierrors.NewUnauthorized("the token cannot be verified"), true},
		"overloaded":  {apierrors.NewTooManyRequestsError("later"), true},
		"unavailable": {apierrors.NewServiceUnavailable("later"), true},
		"failed":      {apierrors.NewInternalError(errors.New("etcd")), true},
	} {
		if got := secrets.IsAway(tc.err); got != tc.want {
			t.Errorf("%s: %t, want %t", name, got, tc.want)
		}
	}
}
