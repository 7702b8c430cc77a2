package manifest

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// Origin returns the file from which an object was read, and the first line of its document, counted from 1. The line
// is 0 if the file has no other document. Both are zero for an object that is in no manifest, such as a Secret that was
// made from the environment.
func (s *Set) Origin(kind, namespace, name string) (file string, line int) {
	at := s.origins[objectKey{kind, types.NamespacedName{Namespace: namespace, Name: name}}]
	return at.file, at.line
}

// Names returns the objects of a kind as NAMESPACE/NAME, sorted. It returns nil for a kind that a Set does not have.
func (s *Set) Names(kind string) []string {
	switch kind {
	case "Agent":
		return names(s.agents)
	case "PromptProfile":
		return names(s.profiles)
	case "ModelProvider":
		return names(s.providers)
	case "ToolServer":
		return names(s.servers)
	case "Turn":
		return names(s.turns)
	case "Session":
		return names(s.sessions)
	case "ConfigMap":
		return names(s.configMaps)
	case "Secret":
		return names(s.secrets)
	}
	return nil
}

func names[T any](objects map[types.NamespacedName]T) []string {
	all := make([]string, 0, len(objects))
	for name := range objects {
		all = append(all, name.String())
	}
	slices.Sort(all)
	return all
}
