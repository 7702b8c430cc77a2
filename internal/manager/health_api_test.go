package manager

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// apiServer returns a client of an API server that answers each request with status. It does not answer while
// status is 0.
func apiServer(t *testing.T, status *atomic.Int64) kubernetes.Interface {
	t.Helper()
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if code := int(status.Load()); code > 0 {
			w.WriteHeader(code)
			return
		}
		<-r.Context().Done()
	}))
	t.Cleanup(web.Close)
	client, err := kubernetes.NewForConfig(&rest.Config{Host: web.URL, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func TestReachable(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		status int64
		says   string
	}{
		"the Lease does not exist yet": {"it answers", http.StatusNotFound, ""},
		"a permission is missing":      {"it answers", http.StatusForbidden, ""},
		"etcd is unreachable":          {"writes would fail", http.StatusInternalServerError, "an error on the server"},
		"the credentials are invalid":  {"writes would fail", http.StatusUnauthorized, "provide credentials"},
		"it gives no answer":           {"writes would fail", 0, "cancelled by the test"},
		"it is overloaded":             {"writes would fail", http.StatusTooManyRequests, "too many requests"},
		"it is shutting down":          {"writes would fail", http.StatusServiceUnavailable, "unable to handle the request"},
	} {
		t.Run(name, func(t *testing.T) {
			var status atomic.Int64
			status.Store(tc.status)
			client := apiServer(t, &status)
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			if tc.status == 0 {
				cancel(errCancelledByTest)
			}
			err := apiHealth(client, "capstan-system", logr.Discard()).check(ctx)
			if (err == nil) != (tc.says == "") || err != nil && !strings.Contains(err.Error(), tc.says) {
				t.Errorf("check = %v, want %q: %s", err, tc.says, tc.reason)
			}
		})
	}
}

type testError string

func (e testError) Error() string { return string(e) }

const errCancelledByTest = testError("cancelled by the test")

func TestStartWaitsForTheAPIServer(t *testing.T) {
	var status atomic.Int64
	status.Store(http.StatusInternalServerError)
	var lines []string
	log := funcr.New(func(_, args string) {
		lines = append(lines, args)
		status.Store(http.StatusNotFound) // the API server answers after the first wait was logged
	}, funcr.Options{})
	client := apiServer(t, &status)
	if err := awaitAPIServer(t.Context(), time.Now().Add(startPatience), client, "capstan-system", log); err != nil || len(lines) != 1 ||
		!strings.Contains(lines[0], "Waiting for the API server") {
		t.Errorf("awaitAPIServer = %v after %q; want it to wait, and a log line that says so", err, lines)
	}
	status.Store(http.StatusUnauthorized)
	if err := awaitAPIServer(t.Context(), time.Now().Add(startPatience), client, "capstan-system", log); err == nil ||
		!strings.Contains(err.Error(), "refused the credentials") || len(lines) != 1 {
		t.Errorf("awaitAPIServer = %v after %q; want no wait with refused credentials", err, lines)
	}
}
