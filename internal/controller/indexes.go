package controller

import (
	"context"
	"fmt"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/translate"
)

// The cache finds objects by these fields.
const (
	indexProfileConfigMap = "spec:configMapKeyRef.name"
	indexAgentProfile     = "spec.promptProfileRef"   // as NAMESPACE/NAME
	indexAgentProvider    = "spec.models.providerRef" // as NAMESPACE/NAME
	indexAgentConfigMap   = "spec:configMapKeyRef.name"
	indexAgentToolServer  = "spec.tools.serverRef"       // as NAMESPACE/NAME
	indexAgentSubAgent    = "spec.tools.agentRef"        // as NAMESPACE/NAME
	indexTurnAgent        = "spec.agentRef"              // unfinished Turns, as NAMESPACE/NAME
	indexTurnExecutor     = "status.executor.name:bound" // unfinished Turns
	indexTurnConfigMap    = "spec:configMapKeyRef.name"  // Turns without a prompt
	indexTurnSession      = "spec.sessionRef.name"       // unfinished Turns; the API server selects by this field, too
)

// SetupIndexes adds the indexes by which the cache finds objects that refer to another object. It must be called
// once, before the reconcilers are set up.
func SetupIndexes(ctx context.Context, indexer client.FieldIndexer) error {
	for _, i := range []struct {
		object client.Object
		field  string
		values client.IndexerFunc
	}{
		{&v1alpha1.PromptProfile{}, indexProfileConfigMap, profileConfigMaps},
		{&v1alpha1.Agent{}, indexAgentConfigMap, agentConfigMaps},
		{&v1alpha1.Turn{}, indexTurnConfigMap, awaitedConfigMaps},
		{&v1alpha1.Agent{}, indexAgentProfile, func(o client.Object) []string {
			a := o.(*v1alpha1.Agent)
			return []string{a.Spec.PromptProfileRef.Key(a.Namespace).String()}
		}},
		{&v1alpha1.Agent{}, indexAgentProvider, func(o client.Object) []string {
			return providerKeys(o.(*v1alpha1.Agent))
		}},
		{&v1alpha1.Agent{}, indexAgentToolServer, func(o client.Object) []string { return toolServerKeys(o.(*v1alpha1.Agent)) }},
		{&v1alpha1.Agent{}, indexAgentSubAgent, func(o client.Object) []string { return subAgentKeys(o.(*v1alpha1.Agent)) }},
		{&v1alpha1.Turn{}, indexTurnAgent, turnAgent},
		{&v1alpha1.Turn{}, indexTurnExecutor, func(o client.Object) []string {
			if name := o.(*v1alpha1.Turn).BoundTo(); name != "" {
				return []string{name}
			}
			return nil
		}},
		{&v1alpha1.Turn{}, indexTurnSession, turnSession},
	} {
		if err := indexer.IndexField(ctx, i.object, i.field, i.values); err != nil {
			return fmt.Errorf("failed to index %T by %s: %w", i.object, i.field, err)
		}
	}
	return setupTurnIndexes(ctx, indexer)
}

// turnAgent returns the Agent of an unfinished Turn.
func turnAgent(o client.Object) []string {
	if t := o.(*v1alpha1.Turn); !t.IsFinished() {
		return []string{t.AgentKey().String()}
	}
	return nil
}

// turnSession returns the Session of an unfinished Turn.
func turnSession(o client.Object) []string {
	if t := o.(*v1alpha1.Turn); t.Spec.SessionRef != nil && !t.IsFinished() {
		return []string{t.Spec.SessionRef.Name}
	}
	return nil
}

// providerRefs returns the references to the providers of an Agent's chain of models, each once, in order.
func providerRefs(a *v1alpha1.Agent) []v1alpha1.SharedReference {
	var refs []v1alpha1.SharedReference
	for _, m := range a.Spec.Models {
		if !slices.Contains(refs, m.ProviderRef) {
			refs = append(refs, m.ProviderRef)
		}
	}
	return refs
}

// judgeProviderRefs returns the references to the ModelProviders of spec.evaluation.models.
func judgeProviderRefs(a *v1alpha1.Agent) []v1alpha1.SharedReference {
	var refs []v1alpha1.SharedReference
	if e := a.Spec.Evaluation; e != nil {
		for _, m := range e.Models {
			refs = append(refs, m.ProviderRef)
		}
	}
	return refs
}

// learningProviderRefs returns the references to the ModelProviders of spec.memory.learning.models, if the Agent
// learns.
func learningProviderRefs(a *v1alpha1.Agent) []v1alpha1.SharedReference {
	var refs []v1alpha1.SharedReference
	if translate.Learns(a) {
		for _, m := range a.Spec.Memory.Learning.Models {
			refs = append(refs, m.ProviderRef)
		}
	}
	return refs
}

// embeddingsProviderRefs returns the reference to the ModelProvider of spec.embeddings.
func embeddingsProviderRefs(a *v1alpha1.Agent) []v1alpha1.SharedReference {
	if e := a.Spec.Embeddings; e != nil {
		return []v1alpha1.SharedReference{e.ProviderRef}
	}
	return nil
}

// providerKeys returns the ModelProviders of an Agent's chain, of its judges, of its learning and of its embeddings as
// NAMESPACE/NAME, each once.
func providerKeys(a *v1alpha1.Agent) []string {
	var keys []string
	for _, ref := range slices.Concat(providerRefs(a), judgeProviderRefs(a), learningProviderRefs(a), embeddingsProviderRefs(a)) {
		if key := ref.Key(a.Namespace).String(); !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	return keys
}
