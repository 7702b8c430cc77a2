package manager

import (
	"context"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/access"
	"github.com/capstan-dev/capstan/internal/metrics"
)

// TestMetricsNeedTLSBeyondThisMachine checks that metrics leave this machine only over TLS, and only to
// authorized users.
func TestMetricsNeedTLSBeyondThisMachine(t *testing.T) {
	for address, secure := range map[string]bool{
		"127.0.0.1:8080": false, "[::1]:8080": false, "localhost:8080": false, "0": false,
		":8443": true, "0.0.0.0:8443": true, "[::]:8443": true, "10.0.0.1:8443": true, "capstan.example:8443": true,
	} {
		o := Options{MetricsBindAddress: address}
		handler, settings, err := o.metricsHandler(access.New(nil, nil, time.Now), time.Now, logr.Discard())
		if err != nil || (settings != nil) != secure {
			t.Fatalf("%s: secure is %t, %v; want %t", address, settings != nil, err, secure)
		}
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", http.NoBody))
		want := http.StatusOK
		if secure {
			want = http.StatusUnauthorized
		}
		if w.Code != want {
			t.Errorf("%s: a scrape without a token has status %d, want %d", address, w.Code, want)
		}
	}
	file := filepath.Join(t.TempDir(), "none.pem")
	o := Options{MetricsBindAddress: "127.0.0.1:8080", MetricsTLSCertFile: file, MetricsTLSKeyFile: file}
	_, _, err := o.metricsHandler(nil, time.Now, logr.Discard())
	if err == nil || !strings.Contains(err.Error(), "--metrics-tls-cert-file") {
		t.Errorf("got %v, want an error that names the flag of the missing certificate", err)
	}
}

// failingLists is a cache whose lists fail.
type failingLists struct{ client.Reader }

func (failingLists) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return errCancelledByTest
}

func TestSeriesOfExistingObjectsStay(t *testing.T) {
	scheme, err := Scheme()
	if err != nil {
		t.Fatal(err)
	}
	at := func(namespace, name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: namespace, Name: name}
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(
		&v1alpha1.Agent{ObjectMeta: at("agents", "a")}, &v1alpha1.ModelProvider{ObjectMeta: at("helpdesk", "openai")},
		&v1alpha1.ModelProvider{ObjectMeta: at("helpdesk", "vllm")}, &v1alpha1.Agent{ObjectMeta: at("helpdesk", "a")},
	).Build()
	got, err := liveSeries(t.Context(), c)
	want := metrics.Live{
		"agents":   {Agents: map[string]bool{"a": true}, Providers: map[string]bool{}},
		"helpdesk": {Agents: map[string]bool{"a": true}, Providers: map[string]bool{"openai": true, "vllm": true}},
	}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("error %v; live series (-want +got):\n%s", err, diff)
	}
	if _, err := liveSeries(t.Context(), failingLists{}); err == nil {
		t.Error("liveSeries returned no error although the list failed: the series of all objects would be dropped")
	}
}
