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

// fromConfigMaps returns a contribution with its own text, and one contribution from each of these ConfigMaps.
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
	return v1alpha1.Skill{Key: name, ContentFrom: &v1alpha1.ContentSource{
		ConfigMapKeyRef: v1alpha1.ConfigMapKeyReference{Name: name, Key: "text"},
	}}
}

// textIn returns a source in a ConfigMap.
func textIn(name string) *v1alpha1.ContentSource {
	return &v1alpha1.ContentSource{ConfigMapKeyRef: v1alpha1.ConfigMapKeyReference{Name: name, Key: "text"}}
}

func TestConfigMapsOfObjects(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		names  func(client.Object) []string
		object client.Object
		want   []string
	}{
		"Profile": {
			reason: "all texts count, but not those that are in the profile itself",
			names:  profileConfigMaps,
			object: &v1alpha1.PromptProfile{Spec: v1alpha1.PromptProfileSpec{
				Skills: []v1alpha1.Skill{{Key: "own", Content: new("here")}, skillFrom("b")}, Contributions: fromConfigMaps("a"),
				InstructionsFrom: textIn("c"), Identity: &v1alpha1.Identity{SystemPromptFrom: textIn("d")},
			}},
			want: []string{"a", "c", "d", "b"},
		},
		"Agent": {
			reason: "the ConfigMaps of the profile do not count",
			names:  agentConfigMaps,
			object: &v1alpha1.Agent{Spec: v1alpha1.AgentSpec{Contributions: fromConfigMaps("a", "b"), InstructionsFrom: textIn("c")}},
			want:   []string{"a", "b", "c"},
		},
		"Turn": {
			reason: "a new Turn awaits them", names: awaitedConfigMaps,
			object: turnWith(contributes("a")), want: []string{"a"},
		},
		"TurnWithTexts": {
			reason: "the message and the values of variables count", names: awaitedConfigMaps, object: turnWith(func(t *v1alpha1.Turn) {
				t.Spec.Message, t.Spec.MessageFrom = "", textIn("a")
				t.Spec.Parameters = []v1alpha1.Parameter{{Name: "x", Value: new("v")}, {Name: "y", ValueFrom: textIn("b")}}
			}), want: []string{"a", "b"},
		},
		"TurnWithout": {reason: "most Turns await none", names: awaitedConfigMaps, object: turnWith()},
		"TurnThatWasBound": {
			reason: "its journal may have the texts", names: awaitedConfigMaps,
			object: turnWith(contributes("a"), boundTo("e")),
		},
		"TurnWithoutAPrompt": {
			reason: "it was handed back without a prompt", names: awaitedConfigMaps,
			object: turnWith(contributes("a"), boundTo("e"), unprepared), want: []string{"a"},
		},
		"TurnThatHasEnded":    {reason: "it awaits nothing", names: awaitedConfigMaps, object: turnWith(contributes("a"), finished(0))},
		"AnotherKind":         {reason: "an index of one kind ignores other kinds", names: awaitedConfigMaps, object: &v1alpha1.Agent{}},
		"AnotherKindOfAgent":  {reason: "an index of one kind ignores other kinds", names: agentConfigMaps, object: turnWith()},
		"AnotherKindOfObject": {reason: "an index of one kind ignores other kinds", names: profileConfigMaps, object: turnWith()},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, tc.names(tc.object)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

func TestATurnWaitsForItsConfigMap(t *testing.T) {
	b := newTestEnv(t, interceptor.Funcs{}, turnWith(contributes("there", "absent")), configMap("there", nil),
		agentWith(metav1.ConditionTrue, ""), leaseOf("self", 1, now))
	if result, err := b.reconcile(t, "one"); err != nil || result.RequeueAfter <= 0 {
		t.Fatalf("got %v, %v; want a requeue at the starting deadline", result, err)
	}
	got := b.turn(t, "one")
	want := `ConfigMap "absent", which spec.context.contributions[2].configMapKeyRef names, does not exist`
	if message := got.Status.Conditions[0].Message; got.StateReason() != v1alpha1.TurnReasonPending || message != want {
		t.Errorf("the Turn is %s: %s\nwant Pending: %s", got.StateReason(), message, want)
	}
	if err := b.client.Create(t.Context(), configMap("absent", nil)); err != nil {
		t.Fatal(err)
	}
	if _, err := b.reconcile(t, "one"); err != nil || b.turn(t, "one").BoundTo() != "self" {
		t.Errorf("the Turn must be bound once its ConfigMap exists: %v", err)
	}
}

// failingReads counts the reads of ConfigMaps and makes them fail.
func failingReads(reads *int, err error) interceptor.Funcs {
	return interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object,
		opts ...client.GetOption,
	) error {
		if _, ok := o.(*metav1.PartialObjectMetadata); ok {
			*reads++
			return err
		}
		return c.Get(ctx, key, o, opts...)
	}}
}

func TestReadingConfigMaps(t *testing.T) {
	reads := 0
	b := newTestEnv(t, failingReads(&reads, broken), turnWith(), agentWith(metav1.ConditionTrue, ""), leaseOf("self", 1, now))
	if _, err := b.reconcile(t, "one"); err != nil || reads != 0 {
		t.Errorf("a Turn without ConfigMaps caused %d reads, want none: %v", reads, err)
	}
	b = newTestEnv(t, failingReads(&reads, broken), turnWith(contributes("a")), agentWith(metav1.ConditionTrue, ""),
		leaseOf("self", 1, now))
	if _, err := b.reconcile(t, "one"); !apierrors.IsInternalError(err) {
		t.Errorf("got %v, want the error of the failed read", err)
	}
}

// TestTurnWaitsForForbiddenConfigMap checks that the Turn is reconciled at intervals, because no event
// reports that the right was granted.
func TestTurnWaitsForForbiddenConfigMap(t *testing.T) {
	reads := 0
	b := newTestEnv(t, failingReads(&reads, forbidden), turnWith(contributes("a")), agentWith(metav1.ConditionTrue, ""),
		leaseOf("self", 1, now))
	b.turns.Recheck = time.Second
	if result, err := b.reconcile(t, "one"); err != nil || result.RequeueAfter != time.Second {
		t.Fatalf("got %v, %v; want a requeue after the recheck interval", result, err)
	}
	got := b.turn(t, "one")
	want := `ConfigMap "a", which spec.context.contributions[1].configMapKeyRef names, cannot be read: configmaps "a" is forbidden: no rule`
	if message := got.Status.Conditions[0].Message; got.StateReason() != v1alpha1.TurnReasonPending || message != want {
		t.Errorf("the Turn is %s: %s\nwant Pending: %s", got.StateReason(), message, want)
	}
}

func TestReadFailure(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		err    error
		want   string
	}{
		"Forbidden": {"the message names the missing right", fmt.Errorf("wrapped: %w", forbidden), `configmaps "a" is forbidden: no rule`},
		"Answer": {
			"a server's error may contain a request ID", apierrors.NewInternalError(errors.New("request 4711")),
			"the API server answered 500 InternalError",
		},
		"Timeout": {"the status code is enough", apierrors.NewTimeoutError("try 17", 3), "the API server answered 504 Timeout"},
		"NoAnswer": {
			"a network error contains ports", errors.New("read tcp 10.0.0.1:41234: i/o timeout"),
			"the API server did not answer",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := readFailure(tc.err); got != tc.want {
				t.Errorf("got %q, want %q: %s", got, tc.want, tc.reason)
			}
		})
	}
}

func TestRetriesAreBounded(t *testing.T) {
	limiter, request := retryOptions().RateLimiter, reconcile.Request{}
	if first := limiter.When(request); first < 50*time.Millisecond {
		t.Errorf("the first retry comes after %s, which is a hot loop", first)
	}
	for range 100 {
		limiter.When(request)
	}
	if last := limiter.When(request); last != maxRetryDelay {
		t.Errorf("after many failures the next retry comes after %s, want %s", last, maxRetryDelay)
	}
}
