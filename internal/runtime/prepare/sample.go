package prepare

import (
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/turncontext"
)

// sampleTime is the time that samples speak of: the same each time, so that a status changes only with the profile.
var sampleTime = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// Sample renders the system prompt of an agent and a profile as a Turn without parameters and without a conversation would
// get it, and once more with a conversation, to find faults before any Turn does. A required variable has its own name for a
// value. The report is that of the first; the error, an *invalid.Error, names the field for what does not render.
func Sample(agent Agent, profile Profile, managerSkills []Skill, modelName string) (prompt.Report, error) {
	in := Input{
		Agent: agent, Profile: profile, ManagerSkills: managerSkills, Provider: "sample", Model: modelName, Now: sampleTime,
		Turn: Turn{Name: "sample", Namespace: "default", Message: "sample", Parameters: map[string]string{}},
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
	in.Turn.Session = &turncontext.Session{ID: "sample"}
	if _, err := Prepare(in); err != nil {
		return prompt.Report{}, err
	}
	return prepared.Report.Report, nil
}
