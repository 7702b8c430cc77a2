//go:build unix

package controller

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/netpolicy"
	"github.com/capstan-dev/capstan/internal/netpolicy/shortagetest"
	"github.com/capstan-dev/capstan/internal/providers"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/tool"
)

// TestShortageIsNoFindingAboutToolServer checks that a check of a ToolServer has no result while this process has no
// free file descriptor, and that the server is found afterwards.
func TestShortageIsNoFindingAboutToolServer(t *testing.T) {
	d := newToolServerEnv(t, netpolicy.NewLocalPolicy())
	key := client.ObjectKey{Namespace: "helpdesk", Name: "tickets"}
	restore := shortagetest.NoFiles(t)
	_, err := d.Reconcile(t.Context(), reconcile.Request{NamespacedName: key})
	restore()
	if !errors.Is(err, tool.ErrOwnShortage) {
		t.Errorf("Reconcile: %v, want an own shortage", err)
	}
	var s v1alpha1.ToolServer
	if err := d.Client.Get(t.Context(), key, &s); err != nil || len(s.Status.Conditions) != 0 {
		t.Errorf("the conditions are %+v (error %v), want none", s.Status.Conditions, err)
	}
	if found, _ := d.reconcileAfter(t, 0); !meta.IsStatusConditionTrue(found.Status.Conditions, v1alpha1.ConditionReady) {
		t.Errorf("after the shortage, the ToolServer is %q, want it Ready", readinessOf(found))
	}
}

// TestShortageIsNoFindingAboutModelProvider checks that a probe of an endpoint has no result while this process has no
// free file descriptor, and that the endpoint is found afterwards.
func TestShortageIsNoFindingAboutModelProvider(t *testing.T) {
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) }))
	defer web.Close()
	cache := providers.NewCache(nil, time.Now, netpolicy.NewLocalPolicy(), nil)
	defer cache.Close()
	r := &ModelProviderReconciler{Providers: cache}
	p := &v1alpha1.ModelProvider{
		ObjectMeta: metav1.ObjectMeta{Namespace: "helpdesk", Name: "main", UID: "uid", Generation: 1},
		Spec: v1alpha1.ModelProviderSpec{
			Type: v1alpha1.ProviderTypeOpenAI, BaseURL: web.URL + "/v1",
			Timeouts: v1alpha1.ProviderTimeouts{ConnectSeconds: 60, IdleSeconds: 60},
		},
	}
	restore := shortagetest.NoFiles(t)
	found, err := r.probe(t.Context(), p)
	restore()
	if !errors.Is(err, model.ErrOwnShortage) {
		t.Errorf("probe: %+v, %v, want an own shortage", found, err)
	}
	if found, err := r.probe(t.Context(), p); err != nil || !found.holds {
		t.Errorf("after the shortage, probe: %+v, %v, want an endpoint that answers", found, err)
	}
}
