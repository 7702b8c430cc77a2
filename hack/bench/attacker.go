package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/flowcontrol"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/hack/bench/hostile"
)

// attacker is a tenant who attacks the manager from one namespace.
type attacker struct {
	api       client.Client
	namespace string
	size      int
	server    *hostile.Remote
}

// create creates n objects, at most perSecond of them in a second. If perSecond is 0, only the API server limits
// the rate.
func (a *attacker) create(ctx context.Context, n int, perSecond float32, newOne func(i int) client.Object) error {
	limiter := flowcontrol.NewFakeAlwaysRateLimiter()
	if perSecond > 0 {
		limiter = flowcontrol.NewTokenBucketRateLimiter(perSecond, 1)
	}
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(creators)
	for i := range n {
		if limiter.Wait(groupCtx) != nil {
			break // the group or the context has the error
		}
		group.Go(func() error {
			object := newOne(i)
			if err := a.api.Create(groupCtx, object); err != nil {
				return fmt.Errorf("failed to create %T %q: %w", object, object.GetName(), err)
			}
			return nil
		})
	}
	return errors.Join(group.Wait(), context.Cause(ctx))
}

// createAll creates objects one after another.
func (a *attacker) createAll(ctx context.Context, objects ...client.Object) error {
	for _, o := range objects {
		if err := a.api.Create(ctx, o); err != nil {
			return fmt.Errorf("failed to create %T %q: %w", o, o.GetName(), err)
		}
	}
	return nil
}

// own returns the metadata of an object with this name in the attacker's namespace.
func (a *attacker) own(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: name, Namespace: a.namespace}
}

// provider returns a ModelProvider without retries: a step makes one attempt.
func (a *attacker) provider(name, url string) *v1alpha1.ModelProvider {
	return &v1alpha1.ModelProvider{ObjectMeta: a.own(name), Spec: v1alpha1.ModelProviderSpec{
		Type: v1alpha1.ProviderTypeOpenAI, BaseURL: url,
		Retry:    v1alpha1.RetryPolicy{MaxAttempts: 1},
		Timeouts: v1alpha1.ProviderTimeouts{IdleSeconds: 600},
	}}
}

func (a *attacker) toolServer(name, url string) *v1alpha1.ToolServer {
	return &v1alpha1.ToolServer{ObjectMeta: a.own(name), Spec: v1alpha1.ToolServerSpec{
		Type: v1alpha1.ToolServerTypeMCP, MCP: &v1alpha1.MCPEndpoint{URL: url}, ConnectTimeoutSeconds: 60,
		Tools: []v1alpha1.ToolDeclaration{{Name: "note", Effect: v1alpha1.ToolEffectReadOnly}},
	}}
}

// agent returns an Agent with the ModelProvider of the same name and the tools of the given servers. Its limits on
// time, steps, calls and tokens are the highest that the API allows. The other limits keep their defaults.
func (a *attacker) agent(name string, servers ...string) *v1alpha1.Agent {
	agent := &v1alpha1.Agent{ObjectMeta: a.own(name), Spec: v1alpha1.AgentSpec{
		PromptProfileRef: v1alpha1.SharedReference{Name: a.namespace},
		Models:           []v1alpha1.ModelReference{{ProviderRef: v1alpha1.SharedReference{Name: name}, Model: modelName}},
		Limits: &v1alpha1.Limits{
			TimeoutSeconds: new(int32(86_400)), StartingDeadlineSeconds: new(int32(604_800)), MaxSteps: new(int32(100)),
			MaxToolCalls: new(int32(1000)), MaxTokens: new(int64(1_000_000_000)),
		},
	}}
	for _, server := range servers {
		agent.Spec.Tools = append(agent.Spec.Tools, v1alpha1.AgentTool{ServerRef: &v1alpha1.SharedReference{Name: server}})
	}
	return agent
}

// turns returns a function that makes Turns of an Agent.
func (a *attacker) turns(agent string) func(int) client.Object {
	return func(i int) client.Object { return a.turn(i, agent) }
}

func (a *attacker) turn(i int, agent string) *v1alpha1.Turn {
	return &v1alpha1.Turn{
		ObjectMeta: a.own(fmt.Sprintf("turn-%d", i)),
		Spec:       v1alpha1.TurnSpec{AgentRef: v1alpha1.SharedReference{Name: agent}, Message: "Please go on."},
	}
}

// describeFirst returns the status of the attacker's first Turn as text. It says why an attack has not begun.
func (a *attacker) describeFirst(ctx context.Context) string {
	turn := a.turn(0, "")
	if err := a.api.Get(ctx, client.ObjectKeyFromObject(turn), turn); err != nil {
		return fmt.Sprintf("failed to read its first Turn: %v", err)
	}
	status, err := json.Marshal(turn.Status)
	if err != nil {
		return fmt.Sprintf("failed to print its first Turn: %v", err)
	}
	return fmt.Sprintf("the status of its first Turn is %s", status)
}

// clean deletes the attacker's objects of Capstan's kinds, the Turns first. The Namespace, Secrets and ConfigMaps stay.
func (a *attacker) clean(ctx context.Context) error { return cleanNamespace(ctx, a.api, a.namespace) }

func newNamespace(name string) client.Object {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// newProfile returns a PromptProfile with the name of its namespace.
func newProfile(namespace string) *v1alpha1.PromptProfile {
	return &v1alpha1.PromptProfile{ObjectMeta: metav1.ObjectMeta{Name: namespace, Namespace: namespace}, Spec: v1alpha1.PromptProfileSpec{
		ID: namespace, Version: "1.0.0", Instructions: "Answer in one sentence.",
	}}
}
