package journals

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/capstan-dev/capstan/internal/executor"
	"github.com/capstan-dev/capstan/internal/readapi"
)

// fakeAPIServer forwards ports, and supports only SPDY. The only Pod is capstan-0. All ports of that Pod lead to
// target.
type fakeAPIServer struct {
	target string
	mu     sync.Mutex
	asked  []string
	pipes  sync.WaitGroup
}

func (k *fakeAPIServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	k.mu.Lock()
	k.asked = append(k.asked, r.Method+" "+r.URL.Path+" "+r.Header.Get("Authorization"))
	k.mu.Unlock()
	if !strings.Contains(r.URL.Path, "/pods/capstan-0/") {
		http.Error(w, `pods "capstan-1" not found`, http.StatusNotFound)
		return
	}
	if strings.Contains(r.Header.Get("Upgrade"), "websocket") {
		http.Error(w, "no websockets here", http.StatusBadRequest)
		return
	}
	if _, err := httpstream.Handshake(r, w, []string{"portforward.k8s.io"}); err != nil {
		return
	}
	//nolint:contextcheck // because the stream lives as long as the request
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(s httpstream.Stream, _ <-chan struct{}) error {
		if s.Headers().Get(corev1.StreamType) == corev1.StreamTypeData {
			k.pipes.Go(func() { k.pipe(r.Context(), s) })
		}
		return nil
	})
	if conn == nil {
		return
	}
	<-conn.CloseChan()
	_ = conn.Close()
}

// pipe connects a stream to the target.
func (k *fakeAPIServer) pipe(ctx context.Context, s httpstream.Stream) {
	defer s.Reset() //nolint:errcheck // because the stream has ended
	var d net.Dialer
	to, err := d.DialContext(ctx, "tcp", k.target)
	if err != nil {
		return
	}
	defer to.Close() //nolint:errcheck // because the stream has ended
	k.pipes.Go(func() {
		_, _ = io.Copy(to, s)
		_ = to.Close()
	})
	_, _ = io.Copy(s, to)
}

// pods serves the ports of Pods. The port of capstan-0 leads to the handler.
func pods(t *testing.T, handler http.Handler) (*fakeAPIServer, *rest.Config) {
	t.Helper()
	target := httptest.NewServer(handler)
	t.Cleanup(target.Close)
	k := &fakeAPIServer{target: strings.TrimPrefix(target.URL, "http://")}
	api := httptest.NewServer(k)
	t.Cleanup(api.Close)
	t.Cleanup(k.pipes.Wait)
	return k, &rest.Config{Host: api.URL, BearerToken: "mine"}
}

func TestPortIsForwardedToExecutor(t *testing.T) {
	t.Parallel()
	k, config := pods(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/octet-stream")
		_, _ = io.WriteString(w, r.URL.Path+" for "+r.Header.Get("Authorization"))
	}))
	flags := &ClusterFlags{ManagerNamespace: "capstan-system"}
	lease := coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Name: "capstan-executor-capstan-0", Annotations: map[string]string{readapi.PortAnnotation: "9082"},
	}}
	c, err := flags.reach(t.Context(), config, tokenSource{}, lease)
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	body, err := c.Artifact(t.Context(), "helpdesk", "first", strings.Repeat("a", 64))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(body)
	if want := "/v1/namespaces/helpdesk/turns/first/artifacts/" + strings.Repeat("a", 64) +
		" for Bearer mine"; err != nil || string(text) != want || body.Close() != nil {
		t.Errorf("want %q from the pod, have %q (%v)", want, text, err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	const path = "/api/v1/namespaces/capstan-system/pods/capstan-0/portforward Bearer mine"
	if len(k.asked) != 2 || k.asked[0] != "GET "+path || k.asked[1] != "POST "+path {
		t.Errorf("want a request for WebSockets and then one for SPDY, have %q", k.asked)
	}
}

func TestErrorNamesMissingPod(t *testing.T) {
	t.Parallel()
	_, config := pods(t, http.NotFoundHandler())
	flags := &ClusterFlags{ManagerNamespace: "capstan-system"}
	_, err := flags.reach(t.Context(), config, tokenSource{},
		coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "capstan-executor-capstan-1"}})
	if err == nil || !strings.Contains(err.Error(), "failed to forward a port to pod capstan-system/capstan-1") ||
		!strings.Contains(err.Error(), "not found") {
		t.Errorf("want an error that names the missing pod, have %v", err)
	}
}

func TestLeaseCannotRedirectToken(t *testing.T) {
	t.Parallel()
	for name, address := range map[string]string{
		"another machine": "http://192.0.2.1:8082", "with TLS": "https://example.com",
		"user info": "http://127.0.0.1@192.0.2.1:80", "no URL": "x",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k, config := pods(t, http.NotFoundHandler())
			flags := &ClusterFlags{ManagerNamespace: "capstan-system"}
			c, err := flags.reach(t.Context(), config, tokenSource{}, coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
				Name: "capstan-executor-capstan-0", Annotations: map[string]string{readapi.AddressAnnotation: address},
			}})
			if err != nil {
				t.Fatal(err)
			}
			defer c.close()
			k.mu.Lock()
			defer k.mu.Unlock()
			if len(k.asked) == 0 {
				t.Errorf("want a request for a port of the pod, not for %q", address)
			}
		})
	}
}

func TestSortLeases(t *testing.T) {
	t.Parallel()
	lease := func(name string, age time.Duration) coordinationv1.Lease {
		return coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: coordinationv1.LeaseSpec{
				RenewTime: &metav1.MicroTime{Time: time.Date(2026, 4, 9, 12, 0, 0, 0, time.UTC).Add(-age)},
			},
		}
	}
	never := coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "never"}}
	sorted := sortLeases([]coordinationv1.Lease{never, lease("old", time.Hour), lease("own", time.Minute), lease("new", 0)}, "own")
	got := make([]string, 0, len(sorted))
	for _, l := range sorted {
		got = append(got, l.Name)
	}
	if want := "own new old never"; strings.Join(got, " ") != want {
		t.Errorf("want the Turn's own executor first, then the most recently renewed Leases: %s, have %s", want, got)
	}
}

// TestLeaseOfStoreNamesNoPod checks that the Lease of a store, which has the label of executors, is not taken for an
// executor.
func TestLeaseOfStoreNamesNoPod(t *testing.T) {
	t.Parallel()
	lease := func(name string) *coordinationv1.Lease {
		return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
			Namespace: "capstan-system", Name: name, Labels: map[string]string{executor.LeaseLabel: executor.LeaseLabelValue},
		}}
	}
	for name, tc := range map[string]struct {
		leases []client.Object
		want   string
	}{
		"only a store": {[]client.Object{lease(executor.StoreLeaseName("a"))}, "has no Lease of an executor"},
		"a store and an executor": {
			[]client.Object{lease(executor.StoreLeaseName("a")), lease(executor.LeasePrefix + "capstan-1")},
			"failed to forward a port to pod capstan-system/capstan-1",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k, config := pods(t, http.NotFoundHandler())
			flags := &ClusterFlags{ManagerNamespace: "capstan-system"}
			_, err := flags.reachAny(t.Context(), config, tokenSource{api: fake.NewClientBuilder().WithObjects(tc.leases...).Build()}, "")
			if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "capstan-store-") {
				t.Errorf("error %v, want %q and nothing about the store", err, tc.want)
			}
			k.mu.Lock()
			defer k.mu.Unlock()
			for _, request := range k.asked {
				if strings.Contains(request, "capstan-store-") {
					t.Errorf("asked for %q, want no request for the Pod of a store", request)
				}
			}
		})
	}
}

func TestTokenIsRequired(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("want no request without a token") }))
	t.Cleanup(server.Close)
	for name, tc := range map[string]struct {
		reason string
		config rest.Config
		want   string
	}{
		"certificate": {
			"only the API server accepts certificates",
			rest.Config{TLSClientConfig: rest.TLSClientConfig{CertData: []byte("x")}},
			"kubectl create token",
		},
		"password": {"only the API server accepts passwords", rest.Config{Username: "ada", Password: "x"}, "kubectl create token"},
		"impersonated": {
			"the read API would see the impersonating user",
			rest.Config{BearerToken: "t", Impersonate: rest.ImpersonationConfig{UserName: "eve"}},
			"impersonates another user",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			base := plainTransport()
			defer base.CloseIdleConnections()
			transport, err := (&ClusterFlags{}).withToken(t.Context(), &tc.config, tokenSource{}, base)
			if err == nil {
				var r *http.Request
				if r, err = http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, http.NoBody); err != nil {
					t.Fatal(err)
				}
				_, err = transport.RoundTrip(r) //nolint:bodyclose // because there is no response
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s: want %q, have %v", tc.reason, tc.want, err)
			}
			if errors.Is(err, errNoToken) && isTemporary(errors.Join(readapi.ErrBroken, err)) {
				t.Error("want no second attempt without a token")
			}
		})
	}
}
