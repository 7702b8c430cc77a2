package manifest

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/capstan-dev/capstan/api/v1alpha1"
)

// Set holds the objects of manifests, valid and with their defaults. They have no status and generation 0, because
// no API server has stored them. The objects belong to the Set and must not be changed.
type Set struct {
	// Ignored has one line for each object that Load left out: objects of kinds that Capstan does not use, and
	// Budgets and ToolApprovals, which are about the Turns of a cluster.
	Ignored []string

	agents     map[types.NamespacedName]*v1alpha1.Agent
	profiles   map[types.NamespacedName]*v1alpha1.PromptProfile
	providers  map[types.NamespacedName]*v1alpha1.ModelProvider
	servers    map[types.NamespacedName]*v1alpha1.ToolServer
	turns      map[types.NamespacedName]*v1alpha1.Turn
	sessions   map[types.NamespacedName]*v1alpha1.Session
	secrets    map[types.NamespacedName]*corev1.Secret
	configMaps map[types.NamespacedName]*corev1.ConfigMap
	// origins maps each object to its position in the manifests.
	origins map[objectKey]origin
}

func newSet() *Set {
	return &Set{
		agents:     map[types.NamespacedName]*v1alpha1.Agent{},
		profiles:   map[types.NamespacedName]*v1alpha1.PromptProfile{},
		providers:  map[types.NamespacedName]*v1alpha1.ModelProvider{},
		servers:    map[types.NamespacedName]*v1alpha1.ToolServer{},
		turns:      map[types.NamespacedName]*v1alpha1.Turn{},
		sessions:   map[types.NamespacedName]*v1alpha1.Session{},
		secrets:    map[types.NamespacedName]*corev1.Secret{},
		configMaps: map[types.NamespacedName]*corev1.ConfigMap{},
		origins:    map[objectKey]origin{},
	}
}

// Agent returns an Agent; ok is false if the manifests do not have it.
func (s *Set) Agent(namespace, name string) (agent *v1alpha1.Agent, ok bool) {
	agent, ok = s.agents[types.NamespacedName{Namespace: namespace, Name: name}]
	return agent, ok
}

// PromptProfile returns a PromptProfile; ok is false if the manifests do not have it.
func (s *Set) PromptProfile(namespace, name string) (profile *v1alpha1.PromptProfile, ok bool) {
	profile, ok = s.profiles[types.NamespacedName{Namespace: namespace, Name: name}]
	return profile, ok
}

// ModelProvider returns a ModelProvider; ok is false if the manifests do not have it.
func (s *Set) ModelProvider(namespace, name string) (provider *v1alpha1.ModelProvider, ok bool) {
	provider, ok = s.providers[types.NamespacedName{Namespace: namespace, Name: name}]
	return provider, ok
}

// ToolServer returns a ToolServer; ok is false if the manifests do not have it.
func (s *Set) ToolServer(namespace, name string) (server *v1alpha1.ToolServer, ok bool) {
	server, ok = s.servers[types.NamespacedName{Namespace: namespace, Name: name}]
	return server, ok
}

// Session returns a Session; ok is false if the manifests do not have it.
func (s *Set) Session(namespace, name string) (session *v1alpha1.Session, ok bool) {
	session, ok = s.sessions[types.NamespacedName{Namespace: namespace, Name: name}]
	return session, ok
}

// Secret returns a Secret, with its stringData merged into its data; ok is false if the manifests do not have it.
func (s *Set) Secret(namespace, name string) (secret *corev1.Secret, ok bool) {
	secret, ok = s.secrets[types.NamespacedName{Namespace: namespace, Name: name}]
	return secret, ok
}

// ConfigMap returns a ConfigMap; ok is false if the manifests do not have it.
func (s *Set) ConfigMap(namespace, name string) (configMap *corev1.ConfigMap, ok bool) {
	configMap, ok = s.configMaps[types.NamespacedName{Namespace: namespace, Name: name}]
	return configMap, ok
}

// Over returns a set with the objects of s, and with the objects of base that s does not have. It shares the objects
// with both sets. Its field Ignored is empty.
func (s *Set) Over(base *Set) *Set {
	return &Set{
		agents: merge(s.agents, base.agents), profiles: merge(s.profiles, base.profiles), providers: merge(s.providers, base.providers),
		servers: merge(s.servers, base.servers), turns: merge(s.turns, base.turns), sessions: merge(s.sessions, base.sessions),
		secrets: merge(s.secrets, base.secrets), configMaps: merge(s.configMaps, base.configMaps),
		origins: merge(s.origins, base.origins),
	}
}

func merge[K comparable, V any](top, base map[K]V) map[K]V {
	all := maps.Clone(base)
	maps.Copy(all, top)
	return all
}

// Turns returns all Turns, sorted by namespace and name.
func (s *Set) Turns() []*v1alpha1.Turn {
	return slices.SortedFunc(maps.Values(s.turns), func(a, b *v1alpha1.Turn) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
}

// Turn returns the Turn with a name, which may be NAMESPACE/NAME. For an empty name it returns the only Turn. The
// error lists the Turns to choose from.
func (s *Set) Turn(name string) (*v1alpha1.Turn, error) {
	var found []*v1alpha1.Turn
	for _, turn := range s.Turns() {
		if name == "" || name == turn.Name || name == turn.Namespace+"/"+turn.Name {
			found = append(found, turn)
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(s.turns) == 0:
		return nil, errors.New("failed to choose a Turn: the manifests have none")
	case len(found) == 0:
		return nil, fmt.Errorf("failed to find Turn %q: the manifests have %s", name, list(s.Turns()))
	default:
		return nil, fmt.Errorf("failed to choose a Turn: name one of %s", list(found))
	}
}

// list returns the names of Turns, at most 10 names, for a message.
func list(turns []*v1alpha1.Turn) string {
	const most = 10
	names := make([]string, 0, most)
	for _, turn := range turns[:min(len(turns), most)] {
		names = append(names, turn.Namespace+"/"+turn.Name)
	}
	text := strings.Join(names, ", ")
	if more := len(turns) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
