package providers_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/grace"
	"github.com/capstan-dev/capstan/internal/model/endpoint"
	"github.com/capstan-dev/capstan/internal/netpolicy"
	"github.com/capstan-dev/capstan/internal/providers"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/secrets"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const secretValue = "sk-0123456789-very-secret"

// fakeCluster is the environment of a cache: Secrets, and a clock that stands still.
type fakeCluster struct {
	mu    sync.Mutex
	data  map[string][]byte // data of the Secret "openai"; nil if the Secret does not exist
	hosts string            // hosts that the Secret is bound to, or empty
	err   error
	reads int
	now   time.Time
}

func (w *fakeCluster) read(_ context.Context, key types.NamespacedName) (*corev1.Secret, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reads++
	if w.err != nil {
		return nil, w.err
	}
	if w.data == nil || key != (types.NamespacedName{Namespace: "demo", Name: "openai"}) {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "secrets"}, key.Name)
	}
	secret := &corev1.Secret{Data: w.data}
	if w.hosts != "" {
		secret.Annotations = map[string]string{secrets.AllowedHosts: w.hosts}
	}
	return secret, nil
}

func (w *fakeCluster) clock() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.now
}

// set changes the cluster between two calls of the cache.
func (w *fakeCluster) set(change func(*fakeCluster)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change(w)
}

func newFakeCluster(t *testing.T, key string) (*fakeCluster, *providers.Cache) {
	t.Helper()
	w := &fakeCluster{data: map[string][]byte{"apiKey": []byte(key)}, now: time.Date(2026, 6, 11, 15, 4, 5, 0, time.UTC)}
	c := providers.NewCache(w.read, w.clock, netpolicy.NewLocalPolicy(), nil)
	t.Cleanup(c.Close)
	return w, c
}

func object(url string) *v1alpha1.ModelProvider {
	return &v1alpha1.ModelProvider{
		ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: "main", UID: "1", Generation: 1},
		Spec: v1alpha1.ModelProviderSpec{
			Type: v1alpha1.ProviderTypeOpenAI, BaseURL: url,
			CredentialsRef: &v1alpha1.SecretKeyReference{Name: "openai", Key: "apiKey"},
			Timeouts:       v1alpha1.ProviderTimeouts{ConnectSeconds: 5, IdleSeconds: 20},
		},
	}
}

// endpointOf starts an endpoint with an empty list of models. sent probes a provider and returns the headers that the
// endpoint received.
func endpointOf(t *testing.T) (url string, sent func(p *endpoint.Provider) http.Header) {
	t.Helper()
	headers := make(chan http.Header, 1)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		headers <- r.Header
		_, _ = w.Write([]byte(`{"data":[]}`)) // if the client is gone, the test fails anyway
	}))
	t.Cleanup(web.Close)
	return web.URL + "/v1", func(p *endpoint.Provider) http.Header {
		t.Helper()
		t.Cleanup(p.Close)
		if _, err := p.Probe(t.Context()); err != nil {
			t.Fatalf("Probe: %v", err)
		}
		return <-headers
	}
}

func mustGet(t *testing.T, c *providers.Cache, p *v1alpha1.ModelProvider) *endpoint.Provider {
	t.Helper()
	got, err := c.Get(t.Context(), p)
	if err != nil {
		t.Fatalf("Get: %v", err)
	}
	return got
}

func TestCredentials(t *testing.T) {
	for name, tc := range map[string]struct{ reason, value, want string }{
		"bare":     {"the key is sent unchanged", secretValue, "Bearer " + secretValue},
		"new line": {"white space of an editor is not part of the key", "\n" + secretValue + " \r\n", "Bearer " + secretValue},
	} {
		t.Run(name, func(t *testing.T) {
			_, c := newFakeCluster(t, tc.value)
			url, sent := endpointOf(t)
			if got := sent(mustGet(t, c, object(url))).Get("Authorization"); got != tc.want {
				t.Errorf("Authorization is %q, want %q: %s", got, tc.want, tc.reason)
			}
		})
	}
}

func TestHeaders(t *testing.T) {
	w, c := newFakeCluster(t, secretValue)
	w.data["org"] = []byte("org-7\n")
	plain := "as it is"
	url, sent := endpointOf(t)
	p := object(url)
	p.Spec.CredentialsRef = nil
	p.Spec.Headers = []v1alpha1.Header{
		{Name: "X-Plain", Value: &plain},
		{Name: "X-Org", ValueFrom: &v1alpha1.HeaderSource{SecretKeyRef: v1alpha1.SecretKeyReference{Name: "openai", Key: "org"}}},
	}
	got := sent(mustGet(t, c, p))
	want := map[string]string{"X-Plain": "as it is", "X-Org": "org-7", "Authorization": ""}
	for name, value := range want {
		if got.Get(name) != value {
			t.Errorf("header %s is %q, want %q", name, got.Get(name), value)
		}
	}
	p.Generation, p.Spec.Headers[1].ValueFrom.SecretKeyRef.Key = 2, "team"
	const wantErr = `Secret "openai" in namespace "demo" has no key "team": add it`
	if _, err := c.Get(t.Context(), p); err == nil || err.Error() != wantErr {
		t.Errorf("Get: %v, want %q", err, wantErr)
	}
}

func TestUnusableCredentials(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		change func(*fakeCluster)
		want   string
	}{
		"no Secret": {
			"the message says where to create it", func(w *fakeCluster) { w.data = nil },
			`Secret "openai" does not exist in namespace "demo": create it with key "apiKey"`,
		},
		"no key": {
			"the message names the missing key",
			func(w *fakeCluster) { w.data = map[string][]byte{"other": []byte(secretValue)} },
			`Secret "openai" in namespace "demo" has no key "apiKey": add it`,
		},
		"empty": {
			"an empty key is no key", func(w *fakeCluster) { w.data["apiKey"] = nil },
			`key "apiKey" of Secret "openai" in namespace "demo" is empty: put the credential there`,
		},
		"blank": {
			"white space is no key either", func(w *fakeCluster) { w.data["apiKey"] = []byte(" \n") },
			`key "apiKey" of Secret "openai" in namespace "demo" is empty: put the credential there`,
		},
		"umlaut": {
			"a header holds ASCII only", func(w *fakeCluster) { w.data["apiKey"] = []byte(secretValue + "ü") },
			`key "apiKey" of Secret "openai" in namespace "demo" has characters that an HTTP header cannot ` +
				`carry: store the credential alone`,
		},
		"two lines": {
			"a header has one line", func(w *fakeCluster) { w.data["apiKey"] = []byte(secretValue + "\nmore") },
			`key "apiKey" of Secret "openai" in namespace "demo" has characters that an HTTP header cannot ` +
				`carry: store the credential alone`,
		},
		"too long": {
			"the search for it in texts would be expensive",
			func(w *fakeCluster) { w.data["apiKey"] = []byte(strings.Repeat("k", 1000<<10)) },
			`key "apiKey" of Secret "openai" in namespace "demo" is 1024000 bytes long, but a credential may ` +
				`have at most 16384: store the credential alone`,
		},
		"binary": {
			"a header has no binary data",
			func(w *fakeCluster) { w.data["apiKey"] = []byte(secretValue + "\xff") },
			`key "apiKey" of Secret "openai" in namespace "demo" has characters that an HTTP header cannot ` +
				`carry: store the credential alone`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, c := newFakeCluster(t, secretValue)
			w.set(tc.change)
			_, err := c.Get(t.Context(), object("http://localhost/v1"))
			failure, ok := errors.AsType[*providers.SecretError](err)
			if !ok || failure.Secret != "openai" || failure.Key != "apiKey" {
				t.Fatalf("Get: %v, want a SecretError that names Secret and key", err)
			}
			if diff := cmp.Diff(tc.want, err.Error()); diff != "" {
				t.Errorf("%s: -want +got:\n%s", tc.reason, diff)
			}
			if strings.Contains(err.Error(), secretValue) {
				t.Errorf("the error holds the secret: %v", err)
			}
			w.set(func(w *fakeCluster) { w.data = map[string][]byte{"apiKey": []byte(secretValue)} })
			if _, err := c.Get(t.Context(), object("http://localhost/v1")); err != nil {
				t.Errorf("Get: %v, want the provider with the corrected Secret: a failure is not cached", err)
			}
		})
	}
}

func TestReadError(t *testing.T) {
	w, c := newFakeCluster(t, secretValue)
	w.err = errors.New("the API server is away")
	_, err := c.Get(t.Context(), object("http://localhost/v1"))
	const want = `failed to read Secret "openai" in namespace "demo": the API server is away`
	if _, ok := errors.AsType[*providers.SecretError](err); ok || err == nil || err.Error() != want {
		t.Errorf("Get: %v, want %q, and no SecretError: the Secret may exist", err, want)
	}
}

// TestCredentialsWhileForbidden checks that known credentials are used for a while if the API server forbids to read
// their Secret, as it does while its roles are not loaded yet. Later, the permission counts as withdrawn.
func TestCredentialsWhileForbidden(t *testing.T) {
	w, c := newFakeCluster(t, secretValue)
	p := object("http://localhost/v1")
	known := mustGet(t, c, p)
	w.set(func(w *fakeCluster) {
		w.err = apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "openai", errors.New("no permission"))
	})
	forbidden := w.err
	w.set(func(w *fakeCluster) { w.now, w.err = w.now.Add(time.Hour), errors.New("the API server is away") })
	mustGet(t, c, p)
	w.set(func(w *fakeCluster) { w.err = forbidden })
	for range 30 {
		w.set(func(w *fakeCluster) { w.now = w.now.Add(10 * time.Second) })
		if got := mustGet(t, c, p); got != known {
			t.Fatal("there is another provider, want the known one")
		}
	}
	w.set(func(w *fakeCluster) { w.now = w.now.Add(10 * time.Second) })
	if _, err := c.Get(t.Context(), p); !apierrors.IsForbidden(err) {
		t.Errorf("Get after 5 minutes: %v, want it forbidden", err)
	}
	w.set(func(w *fakeCluster) { w.err = errors.New("the API server is away") })
	if _, err := c.Get(t.Context(), p); err == nil {
		t.Error("Get during an outage after the permission was withdrawn: no error")
	}
	w.set(func(w *fakeCluster) { w.err = nil })
	mustGet(t, c, p)
}

func TestCache(t *testing.T) {
	for name, tc := range map[string]struct {
		reason      string
		change      func(*fakeCluster, *v1alpha1.ModelProvider)
		same        bool
		reads       int
		wantBearer  string
		forgetFirst bool
	}{
		"immediately": {"the Secret is not read again", func(*fakeCluster, *v1alpha1.ModelProvider) {}, true, 1, secretValue, false},
		"almost 10 s": {"the provider is still fresh", func(w *fakeCluster,
			_ *v1alpha1.ModelProvider,
		) {
			w.now, w.data = w.now.Add(9999*time.Millisecond), nil
		}, true, 1, secretValue, false},
		"after 10 s": {
			"the same Secret gives the same provider and its connections",
			func(w *fakeCluster, _ *v1alpha1.ModelProvider) { w.now = w.now.Add(10 * time.Second) }, true, 2, secretValue, false,
		},
		"rotated": {"a new key is used after 10 s", func(w *fakeCluster, _ *v1alpha1.ModelProvider) {
			w.now, w.data["apiKey"] = w.now.Add(10*time.Second), []byte("sk-new-key")
		}, false, 2, "sk-new-key", false},
		"spec changed": {"a new generation counts immediately", func(_ *fakeCluster,
			p *v1alpha1.ModelProvider,
		) {
			p.Generation, p.Spec.BaseURL = 2, p.Spec.BaseURL+"/"
		}, false, 2, secretValue, false},
		"other object": {"a new object with the name counts immediately", func(w *fakeCluster,
			p *v1alpha1.ModelProvider,
		) {
			p.UID, w.data["apiKey"] = "2", []byte("sk-new-key")
		}, false, 2, "sk-new-key", false},
		"forgotten": {
			"a forgotten provider is created again", func(*fakeCluster, *v1alpha1.ModelProvider) {}, false,
			2, secretValue, true,
		},
		"other version": {
			"a status write changes nothing",
			func(_ *fakeCluster, p *v1alpha1.ModelProvider) { p.ResourceVersion = "9" }, true, 1, secretValue, false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, c := newFakeCluster(t, secretValue)
			url, sent := endpointOf(t)
			p := object(url)
			first := mustGet(t, c, p)
			w.set(func(w *fakeCluster) { tc.change(w, p) })
			if tc.forgetFirst {
				c.Forget(types.NamespacedName{Namespace: "demo", Name: "main"})
			}
			second := mustGet(t, c, p)
			if (first == second) != tc.same || w.reads != tc.reads {
				t.Errorf("the same provider: %t after %d reads, want %t after %d: %s", first == second, w.reads, tc.same,
					tc.reads, tc.reason)
			}
			if got := sent(second).Get("Authorization"); got != "Bearer "+tc.wantBearer {
				t.Errorf("Authorization is %q, want the key %q: %s", got, tc.wantBearer, tc.reason)
			}
		})
	}
}

func TestFreshReadsAgain(t *testing.T) {
	w, c := newFakeCluster(t, secretValue)
	p := object("http://localhost/v1")
	first := mustGet(t, c, p)
	w.set(func(w *fakeCluster) { w.data["apiKey"] = []byte("sk-new-key") })
	fresh, err := c.Fresh(t.Context(), p)
	if err != nil || fresh == first || mustGet(t, c, p) != fresh || w.reads != 2 {
		t.Errorf("Fresh: %v after %d reads, want a provider with the new key, which Get also returns, after 2 reads", err, w.reads)
	}
}

// TestRotatedKeysAreRedacted proves that the old and the new key are both removed from texts: endpoints quote keys
// that they received before.
func TestRotatedKeysAreRedacted(t *testing.T) {
	w, c := newFakeCluster(t, "sk-the-first-key-0123456789")
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusUnauthorized)
		// If the client is gone, the test fails anyway.
		_, _ = w.Write([]byte("not " + r.Header.Get("Authorization") + ", sk-the-first-key-0123456789 nor sk-the-second-key-987654321"))
	}))
	t.Cleanup(web.Close)
	p := object(web.URL)
	for i, key := range []string{"sk-the-first-key-0123456789", "sk-the-second-key-987654321", "sk-the-third-key-5555555555"} {
		w.set(func(w *fakeCluster) { w.data["apiKey"] = []byte(key) })
		one, err := c.Fresh(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		_, err = one.Probe(t.Context())
		if err == nil || strings.Contains(err.Error(), "first") || i > 0 && strings.Contains(err.Error(), "second") ||
			strings.Contains(err.Error(), "third") {
			t.Errorf("with key %d: %v, want neither the old nor the new key", i+1, err)
		}
	}
}

func TestCallersShareOneReading(t *testing.T) {
	w, c := newFakeCluster(t, secretValue)
	p := object("http://localhost/v1")
	var wg sync.WaitGroup
	got := make([]*endpoint.Provider, 200)
	for i := range got {
		wg.Go(func() {
			one, err := c.Get(t.Context(), p)
			if err != nil {
				t.Errorf("Get: %v", err)
			}
			got[i] = one
		})
	}
	wg.Wait()
	for _, one := range got {
		if one != got[0] {
			t.Fatal("there are two providers of one object: connections are not shared")
		}
	}
	if w.reads != 1 {
		t.Errorf("the Secret was read %d times by 200 callers, want once", w.reads)
	}
}

func TestNamespacesAreIsolated(t *testing.T) {
	_, c := newFakeCluster(t, secretValue)
	other := object("http://localhost/v1")
	other.Namespace = "other"
	mustGet(t, c, object("http://localhost/v1"))
	const want = `Secret "openai" does not exist in namespace "other": create it with key "apiKey"`
	if _, err := c.Get(t.Context(), other); err == nil || err.Error() != want {
		t.Errorf("Get: %v, want %q: an object must not use the Secret of another namespace", err, want)
	}
	c.Forget(types.NamespacedName{Namespace: "demo", Name: "unknown"}) // must not fail
}

// TestLazy proves that a provider whose Secret must not be read waits for the permission as long as the API server may
// only be starting, then fails at once, and works as soon as the Secret can be read.
func TestLazy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &fakeCluster{data: map[string][]byte{"apiKey": []byte(secretValue)}}
		w.err = apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "openai", errors.New("no permission"))
		c := providers.NewCache(w.read, time.Now, netpolicy.NewLocalPolicy(), nil)
		defer c.Close()
		begin := time.Now()
		for range 2 {
			_, err := c.Lazy(object("http://one.example/v1")).Generate(t.Context(), &model.Request{Model: "m"})
			e, ok := errors.AsType[*model.Error](err)
			if !ok || e.Kind != model.Network || !e.Unsent || !apierrors.IsForbidden(err) {
				t.Fatalf("Generate: %#v, want a Network error of a request that was not sent", err)
			}
			if waited := time.Since(begin); waited < grace.Period || waited > grace.Period+10*time.Second {
				t.Errorf("the requests have failed %s after the first one began, want %s", waited, grace.Period)
			}
		}
		changed := object("http://two.example/v1")
		changed.Generation = 2
		w.set(func(w *fakeCluster) { w.err = nil })
		mustGet(t, c, changed)
		known := mustGet(t, c, object("http://one.example/v1"))
		if got := mustGet(t, c, object("http://one.example/v1")); got != known {
			t.Error("there is another provider, want the known one")
		}
	})
}

func TestUnusable(t *testing.T) {
	cause := errors.New("it does not exist")
	_, err := providers.Unusable("main", cause).Generate(t.Context(), &model.Request{})
	e, ok := errors.AsType[*model.Error](err)
	if !ok || e.Kind != model.Unusable || !e.Unsent || e.Message != `provider "main": it does not exist` || !errors.Is(err, cause) {
		t.Errorf("Generate: %+v, want an Unusable error with its cause, of a request that was not sent", err)
	}
}

func TestUnreachableAPIServer(t *testing.T) {
	t.Run("no answer", func(t *testing.T) { testUnreachableAPIServer(t, errors.New("connection refused")) })
	t.Run("the token cannot be verified", func(t *testing.T) { testUnreachableAPIServer(t, apierrors.NewUnauthorized("Unauthorized")) })
}

func testUnreachableAPIServer(t *testing.T, away error) {
	t.Run("old credentials stay in use", func(t *testing.T) {
		w, c := newFakeCluster(t, secretValue)
		before, err := c.Get(t.Context(), object("http://one.example/v1"))
		if err != nil {
			t.Fatal(err)
		}
		w.set(func(w *fakeCluster) { w.err, w.now = away, w.now.Add(time.Hour) })
		for range 2 {
			if p, err := c.Get(t.Context(), object("http://one.example/v1")); p != before || err != nil {
				t.Errorf("Get = %p, %v; want the earlier provider, %p", p, err, before)
			}
		}
		if w.reads != 2 {
			t.Errorf("the Secret was read %d times, want 2: after a failure, the old credentials are used for 10 s", w.reads)
		}
		if _, err := c.Fresh(t.Context(), object("http://one.example/v1")); !errors.Is(err, away) {
			t.Errorf("Fresh: %v, want the cause", err)
		}
		changed := object("http://two.example/v1")
		changed.Generation = 2
		if _, err := c.Get(t.Context(), changed); !errors.Is(err, away) {
			t.Errorf("Get of a changed object: %v, want no earlier provider", err)
		}
	})
	t.Run("a first request waits for the API server", func(t *testing.T) { testFirstRequestWaits(t, away) })
	t.Run("a request does not outlive its Turn", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := &fakeCluster{err: away, now: time.Now()}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			_, err := providers.NewCache(w.read, w.clock, netpolicy.NewLocalPolicy(),
				nil).Lazy(object("http://one.example/v1")).Generate(ctx, &model.Request{})
			if failure, ok := errors.AsType[*model.Error](err); !ok || !failure.Unsent {
				t.Errorf("Generate: %v, want an error of a request that was not sent", err)
			}
		})
	})
}

// TestStartingAPIServer checks that a first request waits for an API server that has not loaded its roles yet.
func TestStartingAPIServer(t *testing.T) {
	testFirstRequestWaits(t, apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "openai", errors.New("no permission")))
}

// testFirstRequestWaits checks that a first request waits until the API server answers, which it does after a minute.
func testFirstRequestWaits(t *testing.T, before error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &fakeCluster{err: before}
		c := providers.NewCache(w.read, time.Now, netpolicy.NewLocalPolicy(), nil)
		time.AfterFunc(time.Minute, func() { w.set(func(w *fakeCluster) { w.err = nil }) }) // the Secret does not exist at that time
		begin := time.Now()
		_, err := c.Lazy(object("http://one.example/v1")).Generate(t.Context(), &model.Request{})
		failure, ok := errors.AsType[*model.Error](err)
		if !ok || failure.Kind != model.Auth || !failure.Unsent || time.Since(begin) < time.Minute {
			t.Errorf("Generate: %v after %s; want an error about the missing Secret after the API server is back", err,
				time.Since(begin))
		}
	})
}
