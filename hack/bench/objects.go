package main

import (
	"context"
	"fmt"
	"math"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/selection"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

const (
	systemNamespace = "capstan-system" // the namespace of the manager's Leases
	namespace       = "bench"          // the namespace of the Turns and of all objects that they need
	objectName      = "bench"          // the name of the objects that the Turns need
	finishedLabel   = "bench-finished" // the label of Turns that makeFinished created
	modelName       = "bench"

	// maxFacts is the maximum number of facts in a Turn of the benchmark, and so limits --payload. The API allows 128
	// facts. maxFactChars is the API's limit on the text of one fact.
	maxFacts     = 64
	maxFactChars = 4096
)

var scheme = runtime.NewScheme()

func init() {
	utilruntime.Must(corev1.AddToScheme(scheme))
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
}

// turnClient returns client-go's REST client for the Turns of an API group: Capstan's group, or the group of the
// minimal object (see minimalVersion).
func turnClient(config *rest.Config, version schema.GroupVersion) (rest.Interface, error) {
	types := runtime.NewScheme()
	types.AddKnownTypes(version, &v1alpha1.Turn{}, &v1alpha1.TurnList{})
	metav1.AddToGroupVersion(types, version)
	config = rest.CopyConfig(config)
	config.APIPath = "/apis"
	config.GroupVersion = &version
	config.NegotiatedSerializer = serializer.NewCodecFactory(types).WithoutConversion()
	config.QPS = -1
	c, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("failed to make a client for %s: %w", version, err)
	}
	return c, nil
}

// objects returns all objects that a Turn of a namespace needs, in an order in which they can be created.
func objects(namespace, modelURL string, latency time.Duration) []client.Object {
	meta := metav1.ObjectMeta{Name: objectName, Namespace: namespace}
	reference := v1alpha1.SharedReference{Name: objectName}
	// A slow Turn should count as slow instead of ending at its deadline.
	timeout := int32(math.Ceil(latency.Seconds())) + 600
	return []client.Object{
		newNamespace(namespace),
		&corev1.Secret{ObjectMeta: meta, StringData: map[string]string{"apiKey": "bench-key"}},
		&v1alpha1.ModelProvider{ObjectMeta: meta, Spec: v1alpha1.ModelProviderSpec{
			Type: v1alpha1.ProviderTypeOpenAI, BaseURL: modelURL,
			CredentialsRef: &v1alpha1.SecretKeyReference{Name: objectName, Key: "apiKey"},
		}},
		&v1alpha1.PromptProfile{ObjectMeta: meta, Spec: v1alpha1.PromptProfileSpec{
			ID: objectName, Version: "1.0.0", Instructions: "Answer in one sentence.",
		}},
		&v1alpha1.Agent{ObjectMeta: meta, Spec: v1alpha1.AgentSpec{
			PromptProfileRef: reference,
			Models:           []v1alpha1.ModelReference{{ProviderRef: reference, Model: modelName}},
			Limits:           &v1alpha1.Limits{TimeoutSeconds: &timeout},
		}},
	}
}

// newTurn returns a Turn whose facts have payload characters in total.
func newTurn(name string, payload int) *v1alpha1.Turn {
	turn := &v1alpha1.Turn{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec:       v1alpha1.TurnSpec{AgentRef: v1alpha1.SharedReference{Name: objectName}, Message: "How are you?"},
	}
	if payload == 0 {
		return turn
	}
	turn.Spec.Context = factsOf(payload)
	return turn
}

// factsOf returns a context whose facts have chars characters in total.
func factsOf(chars int) *v1alpha1.TurnContext {
	c := &v1alpha1.TurnContext{}
	for i := 0; chars > 0; i++ {
		text := min(chars, maxFactChars)
		chars -= text
		c.Facts = append(c.Facts, v1alpha1.Fact{ID: fmt.Sprintf("fact-%d", i), Text: strings.Repeat("f", text)})
	}
	return c
}

// deleteTurns deletes the Turns of a burst, so that they do not affect the next burst. It keeps the Turns that
// makeFinished created.
func (b *bench) deleteTurns(ctx context.Context) error {
	others, err := labels.NewRequirement(finishedLabel, selection.DoesNotExist, nil)
	if err != nil {
		return err
	}
	err = deleteMany(ctx, func(ctx context.Context) error {
		return b.turns.Delete().Namespace(namespace).Resource("turns").Param("labelSelector",
			labels.NewSelector().Add(*others).String()).Do(ctx).Error()
	})
	if err != nil {
		return fmt.Errorf("failed to delete the Turns: %w", err)
	}
	return nil
}
