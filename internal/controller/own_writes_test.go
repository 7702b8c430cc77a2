package controller

import (
	"context"
	"net/http"
	"net/http/httptest"
	"reflect"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/netpolicy"
	"github.com/capstan-dev/capstan/internal/providers"
	"github.com/capstan-dev/capstan/internal/toolservers"
)

// TestReconcilersAwaitTheirOwnWrites checks a change that is undone before the cache shows the status that the
// reconciler wrote about the change. The cached object then has the correct status, but the object on the API server
// does not.
func TestReconcilersAwaitTheirOwnWrites(t *testing.T) {
	for name, tc := range map[string]struct {
		object client.Object
		// begin returns a reconciler that uses c, and a function that makes the object ready or not.
		begin func(t *testing.T, c client.Client) (reconcile.Reconciler, func(ready bool))
	}{
		"an Agent whose ModelProvider is checked again": {
			deskAgent(func(s *v1alpha1.AgentSpec) { s.Models[0].ProviderRef.Name = "a" }),
			func(t *testing.T, c client.Client) (reconcile.Reconciler, func(bool)) {
				profile := houseProfile()
				provider := &v1alpha1.ModelProvider{ObjectMeta: metav1.ObjectMeta{Namespace: "helpdesk", Name: "a", Generation: 1}}
				must(t, c.Create(t.Context(), profile))
				must(t, c.Create(t.Context(), provider))
				profiles := &PromptProfileReconciler{Client: c, Now: fixed, ConfigMaps: texts{}.in}
				_, err := profiles.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(profile)})
				must(t, err)
				agents := &AgentReconciler{Client: c, Now: fixed, ServerClock: fixed, ConfigMaps: texts{}.in, ProbeInterval: time.Minute}
				return agents, func(ready bool) {
					provider.Status.Conditions = nil
					if ready {
						provider.Status.Conditions = []metav1.Condition{readyAs(metav1.ConditionTrue, v1alpha1.ReasonReady)}
					}
					must(t, c.Status().Update(t.Context(), provider))
				}
			},
		},
		"a PromptProfile whose ConfigMap is deleted and created": {
			houseProfile(func(s *v1alpha1.PromptProfileSpec) { s.Skills = []v1alpha1.Skill{skillFrom("skills")} }),
			func(_ *testing.T, c client.Client) (reconcile.Reconciler, func(bool)) {
				maps := texts{}
				return &PromptProfileReconciler{Client: c, Now: fixed, ConfigMaps: maps.in}, func(ready bool) {
					delete(maps, "skills")
					if ready {
						maps["skills"] = map[string]string{"text": "Ask first."}
					}
				}
			},
		},
		"a ModelProvider whose endpoint stops and starts": {
			&v1alpha1.ModelProvider{
				ObjectMeta: metav1.ObjectMeta{Namespace: "helpdesk", Name: "demo"},
				Spec:       v1alpha1.ModelProviderSpec{Type: v1alpha1.ProviderTypeOpenAI},
			},
			func(t *testing.T, c client.Client) (reconcile.Reconciler, func(bool)) {
				url, set := switchedEndpoint(t)
				var p v1alpha1.ModelProvider
				must(t, c.Get(t.Context(), client.ObjectKey{Namespace: "helpdesk", Name: "demo"}, &p))
				p.Spec.BaseURL, p.Spec.Timeouts = url, v1alpha1.ProviderTimeouts{ConnectSeconds: 60, IdleSeconds: 60}
				must(t, c.Update(t.Context(), &p))
				cache := providers.NewCache(nil, time.Now, netpolicy.NewLocalPolicy(), nil)
				t.Cleanup(cache.Close)
				return &ModelProviderReconciler{
					Client: c, Providers: cache, Events: events.NewFakeRecorder(10), Now: fixed, ServerClock: fixed,
					ProbeInterval: time.Minute,
				}, set
			},
		},
		"a ToolServer whose Secret is deleted and created": {
			&v1alpha1.ToolServer{
				ObjectMeta: metav1.ObjectMeta{Namespace: "helpdesk", Name: "tickets", UID: "uid", Generation: 1},
				Spec: v1alpha1.ToolServerSpec{
					Type: v1alpha1.ToolServerTypeMCP, CallTimeoutSeconds: 45, ConnectTimeoutSeconds: 5,
					MCP:            &v1alpha1.MCPEndpoint{URL: "http://127.0.0.1:1"},
					CredentialsRef: &v1alpha1.SecretKeyReference{Name: "token", Key: "k"},
				},
			},
			func(t *testing.T, c client.Client) (reconcile.Reconciler, func(bool)) {
				missing := apierrors.NewNotFound(schema.GroupResource{Resource: "secrets"}, "token")
				var exists atomic.Bool
				read := func(context.Context, types.NamespacedName) (*corev1.Secret, error) {
					if !exists.Load() {
						return nil, missing
					}
					return &corev1.Secret{Data: map[string][]byte{"k": []byte("t")}}, nil
				}
				servers := toolservers.NewCache(read, netpolicy.NewLocalPolicy(), time.Now, logr.Discard())
				t.Cleanup(servers.Close)
				// Nothing listens at the URL, so the server is never ready. Only the reason of the condition changes.
				return &ToolServerReconciler{
					Client: c, Servers: servers, Events: events.NewFakeRecorder(10), Now: fixed, ServerClock: fixed,
					ProbeInterval: time.Minute,
				}, exists.Store
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var stale client.Object
			live := inMemory(t, copyOf(tc.object))
			cached := interceptor.NewClient(live, interceptor.Funcs{
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
					if stale != nil && reflect.TypeOf(o) == reflect.TypeOf(stale) && key == client.ObjectKeyFromObject(stale) {
						reflect.ValueOf(o).Elem().Set(reflect.ValueOf(copyOf(stale)).Elem())
						return nil
					}
					return c.Get(ctx, key, o, opts...)
				},
			})
			r, set := tc.begin(t, cached)
			key := client.ObjectKeyFromObject(tc.object)
			step := func() (ctrl.Result, string, client.Object) {
				t.Helper()
				result, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: key})
				must(t, err)
				stored := copyOf(tc.object)
				must(t, live.Get(t.Context(), key, stored))
				return result, readyReason(t, stored), stored
			}
			set(true)
			_, first, current := step()
			set(false)
			_, second, _ := step()
			if first == second {
				t.Fatalf("both states have the reason %s", first)
			}
			stale = current
			set(true)
			if result, got, _ := step(); got != second || result.RequeueAfter != staleInterval {
				t.Errorf("with the old object: the reason is %s, next in %s; want %s, and a requeue for when the cache is up to date",
					got, result.RequeueAfter, second)
			}
			stale = nil
			if _, got, _ := step(); got != first {
				t.Errorf("with the new object: the reason is %s, want %s", got, first)
			}
		})
	}
}

func fixed() time.Time { return now }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func copyOf(o client.Object) client.Object {
	return o.DeepCopyObject().(client.Object) //nolint:forcetypeassert // a copy has the same type
}

// readyReason returns the reason of the Ready condition of an object.
func readyReason(t *testing.T, o client.Object) string {
	t.Helper()
	var conditions []metav1.Condition
	switch o := o.(type) {
	case *v1alpha1.Agent:
		conditions = o.Status.Conditions
	case *v1alpha1.ModelProvider:
		conditions = o.Status.Conditions
	case *v1alpha1.PromptProfile:
		conditions = o.Status.Conditions
	case *v1alpha1.ToolServer:
		conditions = o.Status.Conditions
	}
	c := meta.FindStatusCondition(conditions, v1alpha1.ConditionReady)
	if c == nil {
		t.Fatalf("%T has no condition %s", o, v1alpha1.ConditionReady)
	}
	return c.Reason
}

// switchedEndpoint starts a model endpoint. After set(false), the endpoint rejects the credentials of all requests.
func switchedEndpoint(t *testing.T) (url string, set func(accepts bool)) {
	var refuses atomic.Bool
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if refuses.Load() {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_, _ = w.Write([]byte(`{"data":[]}`))
	}))
	t.Cleanup(s.Close)
	return s.URL, func(accepts bool) { refuses.Store(!accepts) }
}
