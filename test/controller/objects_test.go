package controller_test

import (
	"fmt"

	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/types"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// apiKey is the key that the models of the test environments accept, if they require one.
const apiKey = "right-key"

// The names of the objects that basics returns, the key in the Secret, and the name of the model.
const (
	secretName = "model-key"
	keyName    = "apiKey"
	provider   = "demo"
	profile    = "house"
	agent      = "support"
	modelName  = "demo-small"
)

// basics returns a Secret, a ModelProvider, a PromptProfile and an Agent that work together.
func (s *testEnv) basics(change ...func(*v1alpha1.Agent)) []client.Object {
	return []client.Object{newSecret(secretName, apiKey), s.newProvider(provider), newProfile(profile), newAgent(agent, change...)}
}

func newSecret(name, key string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, StringData: map[string]string{keyName: key}}
}

// newProvider returns a ModelProvider for the test environment's model server. Each request is sent at most twice, with
// a short wait in between.
func (s *testEnv) newProvider(name string, change ...func(*v1alpha1.ModelProvider)) *v1alpha1.ModelProvider {
	return build(&v1alpha1.ModelProvider{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.ModelProviderSpec{
			Type: v1alpha1.ProviderTypeOpenAI, BaseURL: s.baseURL,
			CredentialsRef: &v1alpha1.SecretKeyReference{Name: secretName, Key: keyName},
			Retry:          v1alpha1.RetryPolicy{MaxAttempts: 2, InitialBackoffMilliseconds: 10, MaxBackoffSeconds: 1},
			Models: []v1alpha1.Model{{
				Name: modelName, Pricing: &v1alpha1.Pricing{InputPerMillion: "1", OutputPerMillion: "2", Currency: "USD"},
			}},
		},
	}, change)
}

func newProfile(name string, change ...func(*v1alpha1.PromptProfile)) *v1alpha1.PromptProfile {
	return build(&v1alpha1.PromptProfile{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1alpha1.PromptProfileSpec{ID: "house", Version: "1.0.0", Instructions: "Answer in one sentence."},
	}, change)
}

func newAgent(name string, change ...func(*v1alpha1.Agent)) *v1alpha1.Agent {
	return build(&v1alpha1.Agent{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.AgentSpec{
			PromptProfileRef: v1alpha1.SharedReference{Name: profile},
			Models:           []v1alpha1.ModelReference{{ProviderRef: v1alpha1.SharedReference{Name: provider}, Model: modelName}},
		},
	}, change)
}

func newTurn(name string, change ...func(*v1alpha1.Turn)) *v1alpha1.Turn {
	return build(&v1alpha1.Turn{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1alpha1.TurnSpec{AgentRef: v1alpha1.SharedReference{Name: agent}, Message: name},
	}, change)
}

// newTurns returns Turns whose names sort in the order of their creation.
func newTurns(count int, change ...func(*v1alpha1.Turn)) []client.Object {
	turns := make([]client.Object, 0, count)
	for i := range count {
		turns = append(turns, newTurn(fmt.Sprintf("turn-%03d", i), change...))
	}
	return turns
}

func build[T any](object *T, change []func(*T)) *T {
	for _, f := range change {
		f(object)
	}
	return object
}

func desired(state v1alpha1.DesiredState) func(*v1alpha1.Turn) {
	return func(t *v1alpha1.Turn) { t.Spec.DesiredState = state }
}

func ttl(seconds int32) func(*v1alpha1.Turn) {
	return func(t *v1alpha1.Turn) { t.Spec.TTLSecondsAfterFinished = &seconds }
}

func timeout(seconds int32) func(*v1alpha1.Turn) {
	return func(t *v1alpha1.Turn) { t.Spec.Limits = &v1alpha1.Limits{TimeoutSeconds: &seconds} }
}

func startWithin(seconds int32) func(*v1alpha1.Turn) {
	return func(t *v1alpha1.Turn) { t.Spec.Limits = &v1alpha1.Limits{StartingDeadlineSeconds: &seconds} }
}

func parallel(turns int32) func(*v1alpha1.Agent) {
	return func(a *v1alpha1.Agent) { a.Spec.MaxParallelTurns = &turns }
}

// bound sets the status of a Turn as if the Turn had just been bound to an executor.
func bound(t *v1alpha1.Turn, executor string, epoch int64) {
	now := metav1.NowMicro()
	t.Status.StartTime = &now
	t.Status.Executor = &v1alpha1.ExecutorBinding{Name: executor, Epoch: epoch}
	for _, kind := range []string{v1alpha1.ConditionSucceeded, v1alpha1.ConditionReconciling} {
		status := metav1.ConditionUnknown
		if kind == v1alpha1.ConditionReconciling {
			status = metav1.ConditionTrue
		}
		meta.SetStatusCondition(&t.Status.Conditions, metav1.Condition{
			Type: kind, Status: status, Reason: v1alpha1.TurnReasonRunning, Message: "bound to executor " + executor,
		})
	}
}

// message returns the message of a Turn's main condition.
func message(t *v1alpha1.Turn) string {
	if c := meta.FindStatusCondition(t.Status.Conditions, v1alpha1.ConditionSucceeded); c != nil {
		return c.Message
	}
	return ""
}

func agentReadiness(a *v1alpha1.Agent) string { return readiness(a.Status.Conditions) }

func profileReadiness(p *v1alpha1.PromptProfile) string { return readiness(p.Status.Conditions) }

func providerReadiness(p *v1alpha1.ModelProvider) string { return readiness(p.Status.Conditions) }

// readiness returns "reason: message" of the condition Ready.
func readiness(conditions []metav1.Condition) string {
	if c := meta.FindStatusCondition(conditions, v1alpha1.ConditionReady); c != nil {
		return c.Reason + ": " + c.Message
	}
	return ""
}

// conditionsOf returns "type=status reason" for each condition.
func conditionsOf(conditions []metav1.Condition) []string {
	all := make([]string, 0, len(conditions))
	for _, c := range conditions {
		all = append(all, fmt.Sprintf("%s=%s %s", c.Type, c.Status, c.Reason))
	}
	return all
}

// beBound matches a binding to an executor with an epoch.
func beBound(executor string, epoch int64) types.GomegaMatcher {
	return And(HaveField("Name", executor), HaveField("Epoch", epoch))
}
