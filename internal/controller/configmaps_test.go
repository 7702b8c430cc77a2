package controller

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

func configMap(name string, data map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "helpdesk", Name: name}, Data: data}
}

// fromConfigMaps are a contribution with a text of its own, and one of each of these ConfigMaps.
func fromConfigMaps(names ...string) []v1alpha1.Contribution {
	all := []v1alpha1.Contribution{{Name: "own", Text: new("here")}}
	for _, name := range names {
		all = append(all, v1alpha1.Contribution{Name: name, ConfigMapKeyRef: &v1alpha1.ConfigMapKeyReference{Name: name, Key: "text"}})
	}
	return all
}

func contributes(names ...string) func(*v1alpha1.Turn) {
	return func(t *v1alpha1.Turn) {
		t.Spec.Context = &v1alpha1.TurnContext{Contributions: fromConfigMaps(names...)}
	}
}

func skillFrom(name string) v1alpha1.Skill {
	return v1alpha1.Skill{Key: name, ContentFrom: &v1alpha1.ContentSource{ConfigMapKeyRef: v1alpha1.ConfigMapKeyReference{Name: name, Key: "text"}}}
}

func TestConfigMapsOfObjects(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		names  func(client.Object) []string
		object client.Object
		want   []string
	}{
		"Profile": {
			reason: "skills and contributions count, those with a text of their own do not",
			names:  profileConfigMaps,
			object: &v1alpha1.PromptProfile{Spec: v1alpha1.PromptProfileSpec{
				Skills: []v1alpha1.Skill{{Key: "own", Content: new("here")}, skillFrom("b")}, Contributions: fromConfigMaps("a"),
			}},
			want: []string{"a", "b"},
		},
		"Agent": {
			reason: "the profile's are the profile's",
			names:  agentConfigMaps,
			object: &v1alpha1.Agent{Spec: v1alpha1.AgentSpec{Contributions: fromConfigMaps("a", "b")}},
			want:   []string{"a", "b"},
		},
		"Turn":                {reason: "a new Turn awaits them", names: awaitedConfigMaps, object: turnWith(contributes("a")), want: []string{"a"}},
		"TurnWithout":         {reason: "most Turns await none", names: awaitedConfigMaps, object: turnWith()},
		"TurnThatWasBound":    {reason: "its journal may have the texts", names: awaitedConfigMaps, object: turnWith(contributes("a"), boundTo("e"))},
		"TurnWithoutAPrompt":  {reason: "it was given back for want of what it is made of", names: awaitedConfigMaps, object: turnWith(contributes("a"), boundTo("e"), unprepared), want: []string{"a"}},
		"TurnThatHasEnded":    {reason: "it awaits nothing", names: awaitedConfigMaps, object: turnWith(contributes("a"), finished(0))},
		"AnotherKind":         {reason: "an index of one kind says nothing of others", names: awaitedConfigMaps, object: &v1alpha1.Agent{}},
		"AnotherKindOfAgent":  {reason: "an index of one kind says nothing of others", names: agentConfigMaps, object: turnWith()},
		"AnotherKindOfObject": {reason: "an index of one kind says nothing of others", names: profileConfigMaps, object: turnWith()},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, tc.names(tc.object)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

func TestATurnWaitsForItsConfigMap(t *testing.T) {
	b := newBench(t, interceptor.Funcs{}, turnWith(contributes("there", "absent")), configMap("there", nil),
		agentWith(metav1.ConditionTrue, ""), leaseOf("self", 1, now))
	if result, err := b.look(t, "one"); err != nil || result.RequeueAfter <= 0 {
		t.Fatalf("got %v, %v; want another look when the time to start is over", result, err)
	}
	got := b.turn(t, "one")
	want := `ConfigMap "absent", which spec.context.contributions[2].configMapKeyRef names, does not exist`
	if message := got.Status.Conditions[0].Message; got.StateReason() != v1alpha1.TurnReasonPending || message != want {
		t.Errorf("the Turn is %s: %s\nwant Pending: %s", got.StateReason(), message, want)
	}
	if err := b.client.Create(t.Context(), configMap("absent", nil)); err != nil {
		t.Fatal(err)
	}
	if _, err := b.look(t, "one"); err != nil || b.turn(t, "one").BoundTo() != "self" {
		t.Errorf("the Turn must be bound when its ConfigMap is there: %v", err)
	}
}

// lookingFails counts the looks for ConfigMaps, and makes them fail.
func lookingFails(looks *int, err error) interceptor.Funcs {
	return interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
		if _, ok := o.(*metav1.PartialObjectMetadata); ok {
			*looks++
			return err
		}
		return c.Get(ctx, key, o, opts...)
	}}
}

func TestLookingForConfigMaps(t *testing.T) {
	looks := 0
	b := newBench(t, lookingFails(&looks, broken), turnWith(), agentWith(metav1.ConditionTrue, ""), leaseOf("self", 1, now))
	if _, err := b.look(t, "one"); err != nil || looks != 0 {
		t.Errorf("a Turn without ConfigMaps must ask for none: %d looks, %v", looks, err)
	}
	b = newBench(t, lookingFails(&looks, broken), turnWith(contributes("a")), agentWith(metav1.ConditionTrue, ""), leaseOf("self", 1, now))
	if _, err := b.look(t, "one"); !apierrors.IsInternalError(err) {
		t.Errorf("a look that failed must bring the Turn back, got %v", err)
	}
}

// TestATurnWaitsForAConfigMapThatMayNotBeRead: nobody tells when the right is granted.
func TestATurnWaitsForAConfigMapThatMayNotBeRead(t *testing.T) {
	looks := 0
	b := newBench(t, lookingFails(&looks, forbidden), turnWith(contributes("a")), agentWith(metav1.ConditionTrue, ""), leaseOf("self", 1, now))
	b.turns.Recheck = time.Second
	if result, err := b.look(t, "one"); err != nil || result.RequeueAfter != time.Second {
		t.Fatalf("got %v, %v; want another look after the time to recheck", result, err)
	}
	got := b.turn(t, "one")
	want := `ConfigMap "a", which spec.context.contributions[1].configMapKeyRef names, cannot be read: configmaps "a" is forbidden: no rule`
	if message := got.Status.Conditions[0].Message; got.StateReason() != v1alpha1.TurnReasonPending || message != want {
		t.Errorf("the Turn is %s: %s\nwant Pending: %s", got.StateReason(), message, want)
	}
}

func TestWhyAReadFailed(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		err    error
		want   string
	}{
		"Forbidden": {"it says which right is missing", fmt.Errorf("wrapped: %w", forbidden), `configmaps "a" is forbidden: no rule`},
		"Answer":    {"the text of a server's error may have an id", apierrors.NewInternalError(errors.New("request 4711")), "the API server answered 500 InternalError"},
		"Timeout":   {"the kind of answer is enough", apierrors.NewTimeoutError("try 17", 3), "the API server answered 504 Timeout"},
		"NoAnswer":  {"the text of a network's error has ports", errors.New("read tcp 10.0.0.1:41234: i/o timeout"), "the API server did not answer"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := whyUnread(tc.err); got != tc.want {
				t.Errorf("got %q, want %q: %s", got, tc.want, tc.reason)
			}
		})
	}
}

func TestRetriesAreBounded(t *testing.T) {
	limiter, request := retries().RateLimiter, reconcile.Request{}
	if first := limiter.When(request); first < 50*time.Millisecond {
		t.Errorf("the first retry comes after %s, which is a hot loop", first)
	}
	for range 100 {
		limiter.When(request)
	}
	if last := limiter.When(request); last != retryMost {
		t.Errorf("after many failures the next retry comes after %s, want %s", last, retryMost)
	}
}
