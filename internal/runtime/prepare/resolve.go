package prepare

import (
	"strings"

	"github.com/capstan-dev/capstan/internal/runtime/invalid"
)

// ModelName identifies a model and its provider.
type ModelName struct {
	// Provider may be empty, which means any provider.
	Provider string
	Model    string
}

// ParseModelName splits "provider:model" at the first colon. A name without a colon is a model of any provider.
func ParseModelName(name string) ModelName {
	if provider, model, ok := strings.Cut(name, ":"); ok {
		return ModelName{Provider: provider, Model: model}
	}
	return ModelName{Model: name}
}

// Resolve returns the index in the chain of the model that a Turn names. If name is empty, it returns 0. If the chain
// has no such model, it returns an *invalid.Error that lists the models of the chain.
func Resolve(name string, chain []ModelName) (int, error) {
	if name == "" {
		return 0, nil
	}
	wanted := ParseModelName(name)
	var known []string
	for i, m := range chain {
		if m.Model == wanted.Model && (wanted.Provider == "" || m.Provider == wanted.Provider) {
			return i, nil
		}
		known = append(known, m.Provider+":"+m.Model)
	}
	return 0, invalid.Field("Turn spec.model", "%q is not a model of the agent's chain: use one of %s", name, orNone(known))
}
