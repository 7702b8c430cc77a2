package bundle

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/capstan-dev/capstan/api/v1alpha1"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/translate"
)

// Identity returns the UID of the Turn. The same inputs give the same UID, and any change gives another UID.
// desiredState, ttlSecondsAfterFinished and Secrets do not count as inputs: they do not change the prompts or the
// calls, and Secrets may be rotated.
func (p *Bundle) Identity(ctx context.Context, now time.Time) (types.UID, error) {
	inputs := struct {
		Namespace, Turn, Agent, Profile string
		Now                             time.Time `json:",omitzero"`
		TurnSpec                        v1alpha1.TurnSpec
		AgentSpec                       v1alpha1.AgentSpec
		ProfileSpec                     v1alpha1.PromptProfileSpec
		Providers                       map[string]v1alpha1.ModelProviderSpec
		ConfigMaps                      map[string]*string `json:",omitempty"`
		ManagerSkills                   []prepare.Skill    `json:",omitempty"`
		Subject                         string             `json:",omitempty"`
		// ToolServers and SubAgents are the ToolServers and sub-agents that the Turn may use, directly or through other
		// sub-agents.
		ToolServers map[string]v1alpha1.ToolServerSpec `json:",omitempty"`
		SubAgents   map[string]subAgentSpec            `json:",omitempty"`
	}{
		Namespace: p.Turn.Namespace, Turn: p.Turn.Name, Agent: p.Agent.Name, Profile: p.Profile.Name, Now: now.UTC(),
		TurnSpec: *p.Turn.Spec.DeepCopy(), AgentSpec: p.Agent.Spec, ProfileSpec: p.Profile.Spec,
		Providers:  map[string]v1alpha1.ModelProviderSpec{},
		ConfigMaps: p.contents(ctx, now), ManagerSkills: p.Skills,
		ToolServers: map[string]v1alpha1.ToolServerSpec{}, SubAgents: map[string]subAgentSpec{},
	}
	if p.Session != nil {
		inputs.Subject = p.Session.Spec.Subject
	}
	inputs.TurnSpec.DesiredState, inputs.TurnSpec.TTLSecondsAfterFinished = "", nil
	for name, member := range p.Team {
		for _, ref := range providerRefs(&member.Agent.Spec) {
			if object, err := member.provider(ref); err == nil {
				inputs.Providers[ref.String()] = object.Spec
			}
		}
		for _, s := range member.ToolServers() {
			inputs.ToolServers[p.nameOf(s)] = s.Spec
		}
		if name != p.AgentName() {
			inputs.SubAgents[name] = subAgentSpec{member.Agent.Spec, member.Profile.Name, member.Profile.Spec}
		}
	}
	data, err := json.Marshal(inputs)
	if err != nil {
		return "", fmt.Errorf("failed to identify the Turn: %w", err)
	}
	return UIDOf(data), nil
}

// providerRefs returns the references to the ModelProviders of all models of an Agent: those that answer, the one that
// turns texts into vectors, and those that extract memories.
func providerRefs(a *v1alpha1.AgentSpec) []v1alpha1.SharedReference {
	models := a.Models
	if a.Memory != nil && a.Memory.Learning != nil {
		models = append(slices.Clip(models), a.Memory.Learning.Models...)
	}
	var refs []v1alpha1.SharedReference
	for _, m := range models {
		refs = append(refs, m.ProviderRef)
	}
	if a.Embeddings != nil {
		refs = append(refs, a.Embeddings.ProviderRef)
	}
	return refs
}

// subAgentSpec holds the objects that define a sub-agent.
type subAgentSpec struct {
	Agent       v1alpha1.AgentSpec
	Profile     string
	ProfileSpec v1alpha1.PromptProfileSpec
}

// UIDOf returns a UID that is computed from data.
func UIDOf(data []byte) types.UID {
	const version = 8 // UUID version 8: the vendor defines how it is made
	return types.UID(uuid.NewHash(sha256.New(), uuid.Nil, data, version).String())
}

// contents returns the values that the objects take from ConfigMaps, by name and key; a missing value is nil. To find
// the keys that are read, it prepares the messages. It ignores errors, because the run fails with the same errors and
// reports them.
func (p *Bundle) contents(ctx context.Context, now time.Time) map[string]*string {
	for _, member := range p.Team {
		_, _ = translate.Preparation(ctx, member.Objects(), now)
	}
	for _, a := range p.Turn.Spec.Attachments {
		if a.ConfigMapKeyRef != nil {
			_, _ = p.contentsOfConfigMaps(ctx, *a.ConfigMapKeyRef)
		}
	}
	found := make(map[string]*string, len(p.read))
	for ref, value := range p.read {
		name := ref.Name + "/" + ref.Key
		if ref.namespace != p.Turn.Namespace {
			name = ref.namespace + "/" + name
		}
		found[name] = value
	}
	return found
}

// sessionOf returns the Session with a name in the Turn's namespace. If the manifests do not have it, sessionOf returns
// a new Session, as the controller in a cluster would create one.
func (p *Bundle) sessionOf(name string) *v1alpha1.Session {
	s := &v1alpha1.Session{ObjectMeta: metav1.ObjectMeta{Namespace: p.Turn.Namespace, Name: name}}
	if object, ok := p.Set.Session(p.Turn.Namespace, name); ok {
		s = object.DeepCopy()
	}
	s.UID = sessionUID(p.Turn.Namespace, name)
	return s
}

// sessionUID returns the UID of a Session outside a cluster. It depends only on the namespace and the name, so that a
// changed Session keeps its history.
func sessionUID(namespace, name string) types.UID {
	data, _ := json.Marshal(map[string]string{"Session": name, "Namespace": namespace}) // maps of strings always marshal
	return UIDOf(data)
}

// nameOf returns the name of an object. If its namespace is not that of the Turn, it returns NAMESPACE/NAME.
func (p *Bundle) nameOf(o client.Object) string { return p.relative(client.ObjectKeyFromObject(o)) }
