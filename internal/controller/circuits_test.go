package controller

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/executor"
	"github.com/capstan-dev/capstan/internal/netpolicy"
	"github.com/capstan-dev/capstan/internal/providers"
)

// reporting returns the Lease of an executor with this report of open circuits.
func reporting(name, text string) *coordinationv1.Lease {
	return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Name: executor.LeasePrefix + name, Annotations: map[string]string{executor.CircuitsAnnotation: text},
	}}
}

// TestReportsOfCircuits checks which ModelProviders are reconciled again when executors report their circuits.
func TestReportsOfCircuits(t *testing.T) {
	var changed []string
	c := &OpenCircuits{}
	c.onChange(func(key types.NamespacedName) { changed = append(changed, key.String()) })
	demo := types.NamespacedName{Namespace: "a", Name: "demo"}
	for _, step := range []struct {
		what    string
		do      func()
		changed []string
		open    []string
	}{
		{"no report", func() { c.observe(reporting("one", "")) }, nil, nil},
		{
			"two open", func() { c.observe(reporting("one", `{"a/demo":["m"],"b/demo":["m"]}`)) },
			[]string{"a/demo", "b/demo"},
			[]string{"m"},
		},
		{"the same again", func() { c.observe(reporting("one", `{"a/demo":["m"],"b/demo":["m"]}`)) }, nil, []string{"m"}},
		{"another executor", func() { c.observe(reporting("two", `{"a/demo":["k","m"]}`)) }, []string{"a/demo"}, []string{"k", "m"}},
		{"one closed", func() { c.observe(reporting("one", `{"a/demo":["m"]}`)) }, []string{"b/demo"}, []string{"k", "m"}},
		{"an executor is lost", func() { c.forget(executor.LeasePrefix + "two") }, []string{"a/demo"}, []string{"m"}},
		{"unreadable", func() { c.observe(reporting("one", `{`)) }, []string{"a/demo"}, nil},
	} {
		changed = nil
		step.do()
		slices.Sort(changed)
		if !slices.Equal(changed, step.changed) || !slices.Equal(c.models(demo), step.open) {
			t.Errorf("%s: changed %v, open %v; want %v and %v", step.what, changed, c.models(demo), step.changed, step.open)
		}
	}
}

// TestAgentIsDown checks when an Agent counts as down. It also checks that observe and forget return the ModelProviders
// whose Agents may be affected.
func TestAgentIsDown(t *testing.T) {
	c := &OpenCircuits{}
	chain := &v1alpha1.Agent{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "chain"}, Spec: v1alpha1.AgentSpec{
		Models: []v1alpha1.ModelReference{
			{ProviderRef: v1alpha1.SharedReference{Name: "demo"}, Model: "m"},
			{ProviderRef: v1alpha1.SharedReference{Name: "spare"}, Model: "m"},
		},
	}}
	const both, first = `{"a/demo":["k","m"],"a/spare":["m"]}`, `{"a/demo":["m"]}`
	for _, step := range []struct {
		what     string
		do       func() []types.NamespacedName
		affected []string
		down     bool
	}{
		{"no report", func() []types.NamespacedName { return nil }, nil, false},
		{"no circuit", func() []types.NamespacedName { return c.observe(reporting("one", "")) }, nil, false},
		{"one model", func() []types.NamespacedName { return c.observe(reporting("one", first)) }, []string{"a/demo"}, false},
		{"all models", func() []types.NamespacedName { return c.observe(reporting("one", both)) }, []string{"a/demo", "a/spare"}, true},
		{"again", func() []types.NamespacedName { return c.observe(reporting("one", both)) }, nil, true},
		{"a new executor", func() []types.NamespacedName { return c.observe(reporting("two", "")) }, []string{"a/demo", "a/spare"}, false},
		{"both", func() []types.NamespacedName { return c.observe(reporting("two", both)) }, []string{"a/demo", "a/spare"}, true},
		{"one answers", func() []types.NamespacedName { return c.observe(reporting("one", first)) }, []string{"a/demo", "a/spare"}, false},
		{
			"it is gone", func() []types.NamespacedName { return c.forget(executor.LeasePrefix + "one") },
			[]string{"a/demo", "a/spare"},
			true,
		},
	} {
		var affected []string
		for _, key := range step.do() {
			affected = append(affected, key.String())
		}
		slices.Sort(affected)
		if down := c.isDown(chain); down != step.down || !slices.Equal(affected, step.affected) {
			t.Errorf("%s: down %t, affected %v; want %t, %v", step.what, down, affected, step.down, step.affected)
		}
	}
}

// newModelProviderEnv returns the reconciler of a ModelProvider whose endpoint answers with status, and a function that
// reconciles the ModelProvider and returns it with the Events since the last call.
func newModelProviderEnv(t *testing.T, status *atomic.Int32) (*ModelProviderReconciler, func() (*v1alpha1.ModelProvider, []string)) {
	t.Helper()
	endpoint := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(int(status.Load()))
		_, _ = w.Write([]byte(`{"data":[]}`))
	}))
	t.Cleanup(endpoint.Close)
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	p := &v1alpha1.ModelProvider{
		ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "demo"},
		Spec: v1alpha1.ModelProviderSpec{
			Type: v1alpha1.ProviderTypeOpenAI, BaseURL: endpoint.URL,
			Timeouts: v1alpha1.ProviderTimeouts{ConnectSeconds: 60, IdleSeconds: 60},
		},
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(p).WithStatusSubresource(p).Build()
	cache := providers.NewCache(nil, time.Now, netpolicy.NewLocalPolicy(), nil)
	t.Cleanup(cache.Close)
	recorder := events.NewFakeRecorder(10)
	r := &ModelProviderReconciler{
		Client: c, Providers: cache, Events: recorder, Now: time.Now, ServerClock: time.Now,
		ProbeInterval: time.Minute, Circuits: &OpenCircuits{},
	}
	return r, func() (*v1alpha1.ModelProvider, []string) {
		t.Helper()
		key := client.ObjectKeyFromObject(p)
		if _, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: key}); err != nil {
			t.Fatal(err)
		}
		var stored v1alpha1.ModelProvider
		if err := c.Get(t.Context(), key, &stored); err != nil {
			t.Fatal(err)
		}
		return &stored, drain(recorder)
	}
}

// TestConditionAvailable checks the condition and the Events of a ModelProvider while the circuit of a model is open,
// and before and after that. Each step is a probe.
func TestConditionAvailable(t *testing.T) {
	var status atomic.Int32
	status.Store(http.StatusOK)
	r, reconcile := newModelProviderEnv(t, &status)
	heldBack := func(models string) string {
		return "requests to " + models + " are held back, because several in a row failed: a request tries the endpoint every 10 seconds"
	}
	for _, step := range []struct {
		report, want string
		events       []string
	}{
		{"", "", nil},
		{`{"a/demo":["k","m"]}`, "False CircuitOpen: " + heldBack("k, m"), []string{"Warning CircuitOpen " + heldBack("k, m")}},
		{`{"a/demo":["k","m"]}`, "False CircuitOpen: " + heldBack("k, m"), nil},
		{`{"a/demo":["m"]}`, "False CircuitOpen: " + heldBack("m"), nil},
		{"", "True CircuitClosed: requests are sent", []string{"Normal CircuitClosed requests are sent"}},
		{"", "True CircuitClosed: requests are sent", nil},
		{`{"a/demo":["m"]}`, "False CircuitOpen: " + heldBack("m"), []string{"Warning CircuitOpen " + heldBack("m")}},
	} {
		r.Circuits.observe(reporting("one", step.report))
		stored, emitted := reconcile()
		got := ""
		if available := meta.FindStatusCondition(stored.Status.Conditions, v1alpha1.ConditionAvailable); available != nil {
			got = string(available.Status) + " " + available.Reason + ": " + available.Message
		}
		if got != step.want {
			t.Errorf("after the report %q the condition is %q, want %q", step.report, got, step.want)
		}
		if diff := cmp.Diff(step.events, emitted); diff != "" {
			t.Errorf("Events after the report %q (-want +got):\n%s", step.report, diff)
		}
		if c := ready(stored.Status.Conditions, stored.Generation); c == nil || c.Status != metav1.ConditionTrue {
			t.Errorf("Ready is %v, want True: the endpoint answers probes", c)
		}
	}
}

// TestStalledProvider checks that a ModelProvider is Stalled exactly while only a change of its spec helps.
func TestStalledProvider(t *testing.T) {
	var status atomic.Int32
	status.Store(http.StatusOK)
	r, reconcile := newModelProviderEnv(t, &status)
	for _, step := range []struct{ header, reason, stalled string }{
		{"", v1alpha1.ReasonReady, ""},
		{"Host", v1alpha1.ReasonHeaderRefused, v1alpha1.ReasonHeaderRefused},
		{"X-Team", v1alpha1.ReasonReady, ""},
	} {
		p, _ := reconcile()
		p.Generation++
		if step.header != "" {
			p.Spec.Headers = []v1alpha1.Header{{Name: step.header, Value: new("a")}}
		}
		if err := r.Client.Update(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		p, _ = reconcile()
		c, stalled := ready(p.Status.Conditions, p.Generation), ""
		if s := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionStalled); s != nil {
			stalled = s.Reason
		}
		if c == nil || c.Reason != step.reason || stalled != step.stalled {
			t.Errorf("with the header %q Ready is %+v and Stalled has the reason %q, want %q and %q",
				step.header, c, stalled, step.reason, step.stalled)
		}
	}
}

// TestFailingProviderEmitsOneEvent checks that a ModelProvider gets one Event for each failure, and one when its
// endpoint answers again, however many probes there are.
func TestFailingProviderEmitsOneEvent(t *testing.T) {
	var status atomic.Int32
	_, reconcile := newModelProviderEnv(t, &status)
	for _, step := range []struct {
		status int32
		events []string
	}{
		{http.StatusOK, nil},
		{http.StatusServiceUnavailable, []string{"Warning EndpointUnreachable the endpoint failed (HTTP 503)"}},
		{http.StatusBadGateway, nil},
		{http.StatusUnauthorized, []string{"Warning CredentialsRejected "}},
		{http.StatusUnauthorized, nil},
		{http.StatusOK, []string{"Normal Ready the endpoint answers"}},
		{http.StatusOK, nil},
	} {
		status.Store(step.status)
		_, emitted := reconcile()
		if !slices.EqualFunc(emitted, step.events, strings.HasPrefix) {
			t.Errorf("Events of a probe that ends with HTTP %d: %q, want %q", step.status, emitted, step.events)
		}
	}
}

// TestEndpointWithoutListIsReady checks that a ModelProvider is Ready if its endpoint has no list of models, or refuses
// it, because completions may work. The message says it.
func TestEndpointWithoutListIsReady(t *testing.T) {
	var status atomic.Int32
	_, reconcile := newModelProviderEnv(t, &status)
	for code, want := range map[int32]string{
		http.StatusOK: "the endpoint answers",
		http.StatusNotFound: "the endpoint answers, but has no list of models at baseURL/models: if Turns fail with HTTP 404, " +
			"check the path of baseURL",
		http.StatusForbidden: "the endpoint answers, but does not let the manager list its models: if Turns fail with HTTP 401 or 403, " +
			"check the credentials and their permissions",
	} {
		status.Store(code)
		p, emitted := reconcile()
		c := meta.FindStatusCondition(p.Status.Conditions, v1alpha1.ConditionReady)
		if c == nil || c.Status != metav1.ConditionTrue || c.Message != want || len(emitted) > 0 {
			t.Errorf("with HTTP %d, Ready is %+v after the Events %q, want True with the message %q", code, c, emitted, want)
		}
	}
}
