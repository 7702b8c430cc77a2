package loop

import (
	"slices"

	"github.com/capstan-dev/capstan/internal/runtime/fence"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
)

// The names of messages that the loop adds to those that were prepared.
const (
	// MessageOutputForm says which form the answer must have.
	MessageOutputForm = "output_form"
	// MessageOutputSchema shows the schema of the answer to a model whose endpoint does not take it.
	MessageOutputSchema = "output_schema"
	// MessageSummary stands for older messages.
	MessageSummary = prepare.MessageSummary
	// MessageStepLimit asks for the best answer when the Turn is out of steps.
	MessageStepLimit = "step_limit"
	// MessageReflection asks to check a draft.
	MessageReflection = "reflection"
	// MessageViolations says why an answer does not fit the schema.
	MessageViolations = "output_violations"
)

// conversation lines up what a model is told: the prompt, notes of the loop before the user's message, and what was said since.
// Where older messages were replaced, system messages, the user's message and the newest exchanges stay as they are, and a
// summary stands for the others, before the history that is kept: an exchange is kept whole or not at all.
func conversation(prepared []model.Message, s *State, notes ...model.Message) []model.Message {
	compaction := s.compaction()
	user := lastUser(prepared)
	all := make([]model.Message, 0, len(prepared)+len(notes)+2*len(s.Steps)+1)
	var summary []model.Message
	replaced := 0 // of the history, from its beginning
	if compaction != nil {
		summary = []model.Message{summaryMessage(compaction.Summary)}
		replaced = max(0, len(history(prepared))-compaction.KeptHistory)
	}
	for _, m := range prepared[:user] {
		switch {
		case m.Role == model.RoleSystem, compaction == nil:
			all = append(all, sendable(m)) // a history may be older than this rule
		case m.Name == MessageSummary: // the newer one has it
		case replaced > 0:
			replaced--
		default:
			all, summary = append(append(all, summary...), sendable(m)), nil
		}
	}
	all = append(append(all, notes...), summary...)
	all = append(all, prepared[user:]...)
	for _, step := range s.Steps {
		if compaction == nil || step.Step >= compaction.From {
			all = append(all, s.exchange(step)...)
		}
	}
	return all
}

// lastUser is the place of the user's message; behind all if there is none.
func lastUser(prepared []model.Message) int {
	for i, m := range slices.Backward(prepared) {
		if m.Role == model.RoleUser {
			return i
		}
	}
	return len(prepared)
}

// history are the messages of earlier Turns among those that were prepared, without a summary of still earlier ones.
func history(prepared []model.Message) []model.Message {
	var all []model.Message
	for _, m := range prepared[:lastUser(prepared)] {
		if m.Role != model.RoleSystem && m.Name != MessageSummary {
			all = append(all, m)
		}
	}
	return all
}

// summaryMessage is a summary as the model gets it. It was made from what users and tools have said, so it has no more weight
// than these, and is fenced as they are.
func summaryMessage(summary string) model.Message {
	return model.Message{Role: model.RoleUser, Name: MessageSummary, Content: fence.Untrusted(
		"## Summary of older messages\nIt stands for the conversation so far, and for work on the request below that is done already: do not do it again.",
		fence.Block(summary),
	)}
}

// earlierSummary is what a new summary begins with: the one before in this Turn, or the one that earlier Turns have left.
func (s *State) earlierSummary(p *prepare.Prepared) string {
	if c := s.compaction(); c != nil {
		return c.Summary
	}
	return p.Summary
}

// LastCompaction is the newest; nil if there is none.
func (s *State) LastCompaction() *Compaction { return s.compaction() }

// compaction is the newest; nil if there is none.
func (s *State) compaction() *Compaction {
	if len(s.Compactions) == 0 {
		return nil
	}
	return &s.Compactions[len(s.Compactions)-1]
}
