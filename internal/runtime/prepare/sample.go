package prepare

import (
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/turncontext"
)

// Sample renders the system prompt of an agent and a profile as a Turn without parameters would get it, to find faults
// before any Turn does. A required variable has its own name for a value, the conversation the id sample. It returns an
// *invalid.Error that names the field for what does not render.
func Sample(agent Agent, profile Profile, managerSkills []Skill, modelName string, now time.Time) (prompt.Report, error) {
	in := Input{
		Agent: agent, Profile: profile, ManagerSkills: managerSkills, Provider: "sample", Model: modelName, Now: now,
		Turn: Turn{
			Name: "sample", Namespace: "default", Message: "sample", Parameters: map[string]string{},
			Session: &turncontext.Session{ID: "sample"},
		},
	}
	for _, v := range profile.Variables {
		if v.Required {
			in.Turn.Parameters[v.Name] = v.Name
		}
	}
	prepared, err := Prepare(in)
	if err != nil {
		return prompt.Report{}, err
	}
	return prepared.Report.Report, nil
}
