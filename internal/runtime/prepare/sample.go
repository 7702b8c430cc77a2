package prepare

import (
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/prompt"
)

// Sample renders the system prompt of an agent and a profile as a Turn without parameters would get it, to find faults
// before any Turn does. A required variable has its own name for a value. It returns a *prompt.TemplateError for a text
// that does not render.
func Sample(agent prompt.Agent, profile Profile, modelName string, now time.Time) (prompt.System, error) {
	scope := NewScope(agent, "sample", "default")
	for _, v := range profile.Variables {
		value := prompt.Value{Text: v.Default, Trusted: true}
		if v.Required {
			value = prompt.Value{Text: v.Name, Trusted: v.Trusted}
		}
		scope.Variables[v.Name] = value
	}
	return prompt.Make(prompt.Input{Agent: agent, Profile: profile.Profile, Model: modelName, Scope: scope, Now: now})
}
