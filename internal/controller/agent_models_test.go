package controller

import (
	"slices"
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
		p.Status.Conditions[0].Message = "the reason in words"
	}
	return p
}

func TestModelsOfAnAgent(t *testing.T) {
	const unreachable, noSecret, rejected = v1alpha1.ReasonEndpointUnreachable, v1alpha1.ReasonSecretNotFound,
		v1alpha1.ReasonCredentialsRejected
	const (
		all       = "True Resolved: all models of the chain can be used"
		part      = "True PartiallyResolved: turns use only a part of the chain: "
		silent    = "True PartiallyResolved: no endpoint of the chain answers, and turns try those that exist: "
		notReady  = "False ProviderNotReady: "
		notFound  = "False ProviderNotFound: "
		aMissing  = `ModelProvider "a" does not exist`
		aSilent   = `ModelProvider "a" does not answer (EndpointUnreachable)`
		aAwaited  = `ModelProvider "a" is new and does not answer (EndpointUnreachable): turns wait for it until it is 2m0s old`
		bSilent   = `ModelProvider "b" does not answer (EndpointUnreachable)`
		bAwaited  = `ModelProvider "b" is new and does not answer (EndpointUnreachable): turns wait for it until it is 2m0s old`
		bNotReady = `ModelProvider "b" is not ready: the reason in words`
		aNotReady = `ModelProvider "a" is not ready: the reason in words`
	)
	answering := func(name string) client.Object { return providerOf(name, v1alpha1.ReasonReady, time.Hour) }
	for name, tc := range map[string]struct {
		because string
		a, b    client.Object
		want    string
		after   time.Duration
	}{
		"both answer":                {"there is no fault", answering("a"), answering("b"), all, 0},
		"one is missing":             {"the other can be used", nil, answering("b"), part + aMissing, 0},
		"one has no key":             {"the other can be used", providerOf("a", noSecret, time.Hour), answering("b"), part + aNotReady, 0},
		"the key of one is rejected": {"the other can be used", answering("a"), providerOf("b", rejected, time.Hour), part + bNotReady, 0},
		"one is not checked yet": {
			"the other can be used", providerOf("a", "", time.Second), answering("b"),
			part + `ModelProvider "a" is not checked yet`, 0,
		},
		"one does not answer": {"the other can be used", providerOf("a", unreachable, time.Hour), answering("b"), part + aSilent, 0},
		"a new one does not answer, the other does": {
			"no Turn waits", providerOf("a", unreachable, time.Second), answering("b"), part + aSilent, 0,
		},
		"a new one does not answer, nor does the other": {
			"the new one may be starting", providerOf("a", unreachable, time.Second), providerOf("b", unreachable, time.Hour),
			notReady + aAwaited + "; " + bSilent, 119 * time.Second,
		},
		"a new one does not answer, the other is refused": {
			"the new one may be starting", providerOf("a", unreachable, 119*time.Second),
			providerOf("b", v1alpha1.ReasonAddressRefused, time.Second),
			notReady + aAwaited + `; ModelProvider "b" does not answer (AddressRefused)`, time.Second,
		},
		"two that are new": {
			"the next check is due when the first is no longer new", providerOf("a", unreachable, 30*time.Second),
			providerOf("b", unreachable, 60*time.Second), notReady + aAwaited + "; " + bAwaited, 60 * time.Second,
		},
		"one is not checked yet, the other does not answer": {
			"the check takes only a moment", providerOf("a", "", time.Second), providerOf("b", unreachable, time.Hour),
			notReady + `ModelProvider "a" is not checked yet; ` + bSilent, 0,
		},
		"both are older than two minutes": {
			"each Turn tries the models itself", providerOf("a", unreachable, 2*time.Minute), providerOf("b", unreachable, time.Hour),
			silent + aSilent + "; " + bSilent, 0,
		},
		"one is missing, the other does not answer": {
			"each Turn tries the other", nil, providerOf("b", unreachable, time.Hour), silent + aMissing + "; " + bSilent, 0,
		},
		"a new one does not answer, the other lacks its key": {
			"the message names both", providerOf("a", unreachable, time.Second), providerOf("b", noSecret, time.Hour),
			notReady + aAwaited + "; " + bNotReady, 119 * time.Second,
		},
		"one is missing, the other lacks its key": {
			"no model can be used", nil, providerOf("b", noSecret, time.Hour), notFound + aMissing + "; " + bNotReady, 0,
		},
		"both are missing": {
			"no model can be used", nil, nil, notFound + aMissing + `; ModelProvider "b" does not exist`, 0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			a := subAgent("desk")
			for _, provider := range []string{"a", "b"} {
				a.Spec.Models = append(a.Spec.Models,
					v1alpha1.ModelReference{ProviderRef: v1alpha1.SharedReference{Name: provider}, Model: "m"})
			}
			objects := slices.DeleteFunc([]client.Object{a, tc.a, tc.b}, func(o client.Object) bool { return o == nil })
			clock := func() time.Time { return now }
			r := &AgentReconciler{Client: inMemory(t, objects...), Now: clock, ServerClock: clock, ProbeInterval: time.Minute}
			found, err := r.resolveModels(t.Context(), a)
			if err != nil {
				t.Fatal(err)
			}
			status := map[bool]string{true: "True ", false: "False "}[found.holds]
			if got := status + found.reason + ": " + found.message; got != tc.want {
				t.Errorf("got %q, want %q: %s", got, tc.want, tc.because)
			}
			if found.after != tc.after {
				t.Errorf("the next check is after %s, want %s", found.after, tc.after)
			}
		})
	}
}

// TestRecheckConsent checks that an Agent is checked again at intervals if it uses any object of another namespace.
func TestRecheckConsent(t *testing.T) {
	ref := func(namespace string) v1alpha1.SharedReference {
		return v1alpha1.SharedReference{Namespace: namespace, Name: "x"}
	}
	for name, change := range map[string]func(*v1alpha1.AgentSpec, v1alpha1.SharedReference){
		"profile": func(s *v1alpha1.AgentSpec, r v1alpha1.SharedReference) { s.PromptProfileRef = r },
		"embeddings": func(s *v1alpha1.AgentSpec, r v1alpha1.SharedReference) {
			s.Embeddings = &v1alpha1.AgentEmbeddings{ProviderRef: r}
		},
		"sub-agent": func(s *v1alpha1.AgentSpec, r v1alpha1.SharedReference) {
			s.Tools = []v1alpha1.AgentTool{{AgentRef: &r}}
		},
		"model": func(s *v1alpha1.AgentSpec, r v1alpha1.SharedReference) {
			s.Models = []v1alpha1.ModelReference{{ProviderRef: r}}
		},
	} {
		for namespace, want := range map[string]time.Duration{"": 0, "helpdesk": 0, "owner": consentRecheck} {
			a := subAgent("desk")
			change(&a.Spec, ref(namespace))
			if got := recheckConsent(a); got != want {
				t.Errorf("%s in namespace %q: the next check is after %s, want %s", name, namespace, got, want)
			}
		}
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
			if got := nextProbe(now, now, p, p.Status.Conditions, tc.interval).RequeueAfter; got != tc.want {
				t.Errorf("the next check is after %s, want %s", got, tc.want)
			}
		})
	}
}
