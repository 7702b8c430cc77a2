package prepare

import (
	"time"

	"github.com/capstan-dev/capstan/internal/runtime/prompt"
	"github.com/capstan-dev/capstan/internal/runtime/turncontext"
)

// sampleTime is the time in samples. It is fixed, so that a status changes only if the profile changes.
var sampleTime = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// sampleTurn is the Turn in samples.
var sampleTurn = Turn{Name: "sample", Namespace: "default", Message: "sample"}

// sampleSession is the conversation in samples.
const sampleSession = "sample"

// CheckInstructions returns an *invalid.Error if the instructions of an agent do not render, whatever the profile. It
// does not find every such fault: see template.Scope.CheckAnyVariables.
func CheckInstructions(agent Agent) error {
	in := Input{Agent: agent, Turn: sampleTurn}
	if err := newScope(in).CheckAnyVariables(FieldAgentInstructions, agent.Instructions); err != nil {
		return err
	}
	in.Turn.Session = &turncontext.Session{ID: sampleSession}
	return newScope(in).CheckAnyVariables(FieldAgentInstructions, agent.Instructions)
}

// Sample renders the system prompt of an agent and a profile to find faults before a Turn does. It renders the
// prompt twice: for a Turn without parameters and conversation, and for a Turn with a conversation. A required
// variable has its own name as its value. Sample returns the report of the first prompt. The error, an
// *invalid.Error, names the field that does not render.
func Sample(agent Agent, profile Profile, managerSkills []Skill, modelName string) (prompt.Report, error) {
	in := Input{
		Agent: agent, Profile: profile, ManagerSkills: managerSkills, Provider: "sample", Model: modelName, Now: sampleTime,
		Turn: sampleTurn,
	}
	in.Turn.Parameters = map[string]string{}
	for _, v := range profile.Variables {
		if v.Required {
			in.Turn.Parameters[v.Name] = v.Name
		}
	}
	prepared, err := Prepare(in)
	if err != nil {
		return prompt.Report{}, err
	}
	in.Turn.Session = &turncontext.Session{ID: sampleSession}
	if _, err := Prepare(in); err != nil {
		return prompt.Report{}, err
	}
	return prepared.Report.Report, nil
}
