package controller

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// providerOf returns a ModelProvider of this age, with this reason in its Ready condition. If reason is empty, the
// provider has not been probed.
func providerOf(name, reason string, age time.Duration) client.Object {
	p := &v1alpha1.ModelProvider{ObjectMeta: metav1.ObjectMeta{
		Namespace: "helpdesk", Name: name, Generation: 1, CreationTimestamp: metav1.NewTime(now.Add(-age)),
	}}
	switch reason {
	case "":
	case v1alpha1.ReasonReady:
		p.Status.Conditions = []metav1.Condition{readyAs(metav1.ConditionTrue, reason)}
	default:
		p.Status.Conditions = []metav1.Condition{readyAs(metav1.ConditionFalse, reason)}
	}
	return p
}

func TestModelsOfAnAgent(t *testing.T) {
	const unreachable, resolved = v1alpha1.ReasonEndpointUnreachable, "Resolved: all model providers exist"
	const waitsForA = `ProviderNotReady: ModelProvider "a" is new and does not answer (EndpointUnreachable): ` +
		`turns wait for it until it is 2m0s old`
	for name, tc := range map[string]struct {
		because string
		a, b    client.Object
		want    string
		after   time.Duration
	}{
		"both answer": {
			"there is no fault", providerOf("a", v1alpha1.ReasonReady, time.Second),
			providerOf("b", v1alpha1.ReasonReady, time.Hour), resolved, 0,
		},
		"one is not checked yet": {
			"it may be needed", providerOf("a", "", time.Second), providerOf("b", v1alpha1.ReasonReady, time.Hour),
			`ProviderNotReady: ModelProvider "a" is not checked yet`, 0,
		},
		"a new one does not answer, the other does": {
			"the chain falls back to the other", providerOf("a", unreachable, time.Second),
			providerOf("b", v1alpha1.ReasonReady, time.Hour), resolved, 0,
		},
		"a new one does not answer, nor does the other": {
			"the new one may be starting", providerOf("a", unreachable, time.Second), providerOf("b", unreachable, time.Hour),
			waitsForA, 119 * time.Second,
		},
		"a new one does not answer, the other is refused": {
			"the new one may be starting", providerOf("a", unreachable, 119*time.Second),
			providerOf("b", v1alpha1.ReasonAddressRefused, time.Second),
			waitsForA, time.Second,
		},
		"two that are new": {
			"the check comes when the first is no longer new", providerOf("a", unreachable, 30*time.Second),
			providerOf("b", unreachable, 60*time.Second),
			waitsForA + `; ModelProvider "b" is new and does not answer (EndpointUnreachable): turns wait for it until it is 2m0s old`,
			60 * time.Second,
		},
		"both are older than two minutes": {
			"each Turn tries itself", providerOf("a", unreachable, 2*time.Minute), providerOf("b", unreachable, time.Hour), resolved, 0,
		},
		"a new one does not answer, the other lacks its key": {
			"the message names both", providerOf("a", unreachable, time.Second), providerOf("b", v1alpha1.ReasonSecretNotFound, time.Hour),
			`ProviderNotReady: ModelProvider "b" is not ready: ; ` + waitsForA[len("ProviderNotReady: "):], 119 * time.Second,
		},
	} {
		t.Run(name, func(t *testing.T) {
			a := subAgent("desk")
			for _, provider := range []string{"a", "b"} {
				a.Spec.Models = append(a.Spec.Models,
					v1alpha1.ModelReference{ProviderRef: v1alpha1.ObjectReference{Name: provider}, Model: "m"})
			}
			r := &AgentReconciler{Client: inMemory(t, a, tc.a, tc.b), Now: func() time.Time { return now }, ProbeInterval: time.Minute}
			found, err := r.resolveModels(t.Context(), a)
			if err != nil {
				t.Fatal(err)
			}
			if got := found.reason + ": " + found.message; got != tc.want {
				t.Errorf("got %q, want %q: %s", got, tc.want, tc.because)
			}
			if !found.holds && found.after != tc.after {
				t.Errorf("the next check is after %s, want %s", found.after, tc.after)
			}
		})
	}
}

// TestNewEndpointIsProbedMoreOften checks that a new endpoint is probed more often than one that has been
// unreachable for long, because Turns wait for it.
func TestNewEndpointIsProbedMoreOften(t *testing.T) {
	for name, tc := range map[string]struct {
		age, interval, want time.Duration
	}{
		"just created":            {age: time.Second, interval: time.Minute, want: time.Second},
		"starting":                {age: 3 * time.Second, interval: time.Minute, want: 3 * time.Second},
		"unreachable for a while": {age: 90 * time.Second, interval: time.Minute, want: 5 * time.Second},
		"no longer new":           {age: 2 * time.Minute, interval: time.Minute, want: 30 * time.Second},
		"with a short interval":   {age: 20 * time.Second, interval: 10 * time.Second, want: 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			p := providerOf("a", v1alpha1.ReasonEndpointUnreachable, tc.age).(*v1alpha1.ModelProvider)
			p.Status.Conditions[0].LastTransitionTime = p.CreationTimestamp
			if got := nextProbe(now, p, p.Status.Conditions, tc.interval).RequeueAfter; got != tc.want {
				t.Errorf("the next check is after %s, want %s", got, tc.want)
			}
		})
	}
}
