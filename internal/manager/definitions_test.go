package manager

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// serving returns a client of an API server, and a pointer to the names of the resources of capstan.dev that the API
// server serves. While the pointer is nil, it serves none, as if no CustomResourceDefinition were installed.
func serving(t *testing.T) (d discovery.DiscoveryInterface, served *atomic.Pointer[[]string]) {
	t.Helper()
	served = &atomic.Pointer[[]string]{}
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		names := served.Load()
		if names == nil {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		list := metav1.APIResourceList{
			TypeMeta:     metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"},
			GroupVersion: v1alpha1.GroupVersion.String(),
		}
		for _, name := range *names {
			list.APIResources = append(list.APIResources, metav1.APIResource{Name: name}, metav1.APIResource{Name: name + "/status"})
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(list)
	}))
	t.Cleanup(web.Close)
	d, err := discovery.NewDiscoveryClientForConfig(&rest.Config{Host: web.URL, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	return d, served
}

func TestManagerWithoutDefinitionsIsNotReady(t *testing.T) {
	d, served := serving(t)
	var lines []string
	h := definitionsHealth(d, funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{}))
	expect := func(says string) {
		t.Helper()
		h.checkOnce(t.Context())
		err := h.ready(nil)
		if (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("ready = %v, want %q", err, says)
		}
	}
	served.Store(&resources)
	expect("")
	served.Store(nil)
	expect("the set of custom resource definitions is incomplete: the cluster does not have the custom resource definitions ")
	expect("turns.capstan.dev: install them with the chart (crds.install) or with make install")
	some := slices.DeleteFunc(slices.Clone(resources), func(k string) bool { return k == "sessions" })
	served.Store(&some)
	expect("definitions sessions.capstan.dev: install")
	served.Store(&resources)
	expect("")
	if len(lines) != 2 ||
		!strings.Contains(lines[0], "the set of custom resource definitions is incomplete; nothing can be read or written, and this") ||
		!strings.Contains(lines[1], "the set of custom resource definitions is complete again") {
		t.Errorf("logged %q, want one line when definitions are missing and one when they exist again", lines)
	}
}

func TestStartWaitsForDefinitions(t *testing.T) {
	d, served := serving(t)
	var lines []string
	log := funcr.New(func(_, args string) {
		lines = append(lines, args)
		served.Store(&resources) // they exist after the first wait was logged
	}, funcr.Options{})
	if err := awaitDefinitions(t.Context(), time.Now().Add(startPatience), d, log); err != nil || len(lines) != 1 ||
		!strings.Contains(lines[0], "Waiting for the custom resource definitions") {
		t.Errorf("awaitDefinitions = %v after %q; want it to wait, and a log line that says so", err, lines)
	}
}
