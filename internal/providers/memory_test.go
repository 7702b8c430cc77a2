package providers_test

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/bytebudget"
	"github.com/capstan-dev/capstan/internal/netpolicy"
	"github.com/capstan-dev/capstan/internal/providers"
	"github.com/capstan-dev/capstan/internal/redact"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/secrets"
)

// longest is a credential of the maximum length. Its parts are not equal.
func longest() []byte {
	var all bytes.Buffer
	for i := 0; all.Len() < secrets.MaxCredential; i++ {
		fmt.Fprintf(&all, "%04x", i)
	}
	return all.Bytes()
}

// TestCredentialsAreCounted checks that the credentials of many ModelProviders use at most the share of their
// namespace, and that the memory is free again when they are gone.
func TestCredentialsAreCounted(t *testing.T) {
	w := &fakeCluster{data: map[string][]byte{"apiKey": longest()}}
	budget := bytebudget.New(16<<20, 16<<20)
	c := providers.NewCache(w.read, w.clock, netpolicy.NewLocalPolicy(), budget)
	t.Cleanup(c.Close)
	known := redact.NewSet()
	c.SetCredentialSet(known)
	named := func(i int) *v1alpha1.ModelProvider {
		p := object("http://127.0.0.1:1/v1")
		p.Name, p.UID = fmt.Sprintf("p%d", i), types.UID(fmt.Sprint(i))
		return p
	}
	made := 0
	var err error
	for ; err == nil && made < 1000; made++ {
		_, err = c.Get(t.Context(), named(made))
	}
	refused, ok := errors.AsType[*providers.SecretError](err)
	if !ok || refused.Kind != secrets.NoMemory || !errors.Is(err, bytebudget.ErrShort) ||
		!strings.Contains(refused.Reason, "no memory left for the credentials") {
		t.Fatalf("after %d ModelProviders with a credential of %d bytes: %v, want the next one refused", made, secrets.MaxCredential, err)
	}
	if made < 5 {
		t.Errorf("the ModelProvider %d was refused, want more of them", made)
	}
	if got := providers.Unsent("p", err).Kind; got != model.Network {
		t.Errorf("a lack of memory has the kind %s, want %s: it may be temporary", got, model.Network)
	}
	if _, err := budget.Account("other", bytebudget.Objects).TryReserve(1 << 20); err != nil {
		t.Errorf("another namespace gets no memory: %v", err)
	}
	for i := range made {
		c.Forget(types.NamespacedName{Namespace: "demo", Name: named(i).Name})
	}
	for i := 0; budget.Use(bytebudget.Objects).Bytes > 1<<20; i++ {
		if i == 1000 {
			t.Fatalf("%d bytes are reserved after all ModelProviders are gone", budget.Use(bytebudget.Objects).Bytes)
		}
		runtime.GC()
		runtime.Gosched() // cleanups run in a goroutine
	}
}

// TestTooManyCredentials checks the bound of all credentials of a ModelProvider together.
func TestTooManyCredentials(t *testing.T) {
	w, c := newFakeCluster(t, string(longest()))
	p := object("http://127.0.0.1:1/v1")
	add := func() {
		p.Spec.Headers = append(p.Spec.Headers, v1alpha1.Header{
			Name: fmt.Sprintf("X-Key-%d", len(p.Spec.Headers)), ValueFrom: &v1alpha1.HeaderSource{
				SecretKeyRef: v1alpha1.SecretKeyReference{Name: "openai", Key: "apiKey"},
			},
		})
		p.Generation++
	}
	add()
	mustGet(t, c, p)
	add()
	_, err := c.Get(t.Context(), p)
	const want = "spec.credentialsRef and spec.headers refer to credentials of 49152 bytes together, but those of an object may have at " +
		"most 32768: use fewer or shorter credentials"
	if _, ok := errors.AsType[*providers.SecretError](err); !ok || err.Error() != want {
		t.Errorf("three credentials of 16 KiB: %v, want a *SecretError %q", err, want)
	}
	w.set(func(w *fakeCluster) { w.data["apiKey"] = []byte("short-enough") })
	if _, err := c.Fresh(t.Context(), p); err != nil {
		t.Errorf("three short credentials: %v", err)
	}
}

// TestLongCertificates checks the bounds of certificates in Secrets.
func TestLongCertificates(t *testing.T) {
	certificate, key := issue(t, "capstan")
	long := func(pem []byte, length int) []byte {
		return append(bytes.Repeat([]byte("# text\n"), length/7+1), pem...)
	}
	for name, tc := range map[string]struct {
		data map[string][]byte
		tls  *v1alpha1.ClientTLS
		want string
	}{
		"authorities": {
			map[string][]byte{"ca.crt": long(certificate, 256<<10)},
			&v1alpha1.ClientTLS{CABundleRef: &v1alpha1.SecretKeyReference{Name: "openai", Key: "ca.crt"}},
			`key "ca.crt" of Secret "openai" in namespace "demo" is`,
		},
		"client certificate": {
			map[string][]byte{"tls.crt": long(certificate, 64<<10), "tls.key": key},
			&v1alpha1.ClientTLS{ClientCertificateRef: &v1alpha1.ObjectReference{Name: "openai"}},
			`key "tls.crt" of Secret "openai" in namespace "demo" is`,
		},
		"private key": {
			map[string][]byte{"tls.crt": certificate, "tls.key": long(key, 64<<10)},
			&v1alpha1.ClientTLS{ClientCertificateRef: &v1alpha1.ObjectReference{Name: "openai"}},
			`key "tls.key" of Secret "openai" in namespace "demo" is`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, c := newFakeCluster(t, secretValue)
			w.set(func(w *fakeCluster) { w.data = tc.data })
			p := object("https://127.0.0.1:1/v1")
			p.Spec.CredentialsRef, p.Spec.TLS = nil, tc.tls
			_, err := c.Get(t.Context(), p)
			if _, ok := errors.AsType[*providers.SecretError](err); !ok || !strings.HasPrefix(err.Error(), tc.want) ||
				!strings.Contains(err.Error(), "may have at most") {
				t.Errorf("%v, want a *SecretError that begins with %q", err, tc.want)
			}
		})
	}
}
