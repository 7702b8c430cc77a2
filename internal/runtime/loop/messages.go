package loop

import (
	"slices"

	"github.com/capstan-dev/capstan/internal/runtime/fence"
	"github.com/capstan-dev/capstan/internal/runtime/model"
)

// The names of messages that the loop adds to those that were prepared.
const (
	// MessageOutputForm says which form the answer must have.
	MessageOutputForm = "output_form"
	// MessageOutputSchema shows the schema of the answer to a model whose endpoint does not take it.
	MessageOutputSchema = "output_schema"
	// MessageSummary stands for older messages.
	MessageSummary = "conversation_summary"
	// MessageStepLimit asks for the best answer when the Turn is out of steps.
	MessageStepLimit = "step_limit"
	// MessageReflection asks to check a draft.
	MessageReflection = "reflection"
	// MessageViolations says why an answer does not fit the schema.
	MessageViolations = "output_violations"
)

// conversation lines up what a model is told: the prompt, notes of the loop before the user's message, and what was said since.
// Where older messages were replaced, system messages, the user's message and the newest exchanges stay as they are, and a
// summary stands before the user's message for the others: an exchange is kept whole or not at all.
func conversation(prepared []model.Message, s *State, notes ...model.Message) []model.Message {
	compaction := s.compaction()
	user := lastUser(prepared)
	all := make([]model.Message, 0, len(prepared)+len(notes)+2*len(s.Steps)+1)
	for _, m := range prepared[:user] {
		if compaction == nil || m.Role == model.RoleSystem {
			all = append(all, sendable(m)) // a history may be older than this rule
		}
	}
	all = append(all, notes...)
	if compaction != nil {
		all = append(all, summaryMessage(compaction.Summary))
	}
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

// history are the messages of earlier Turns among those that were prepared.
func history(prepared []model.Message) []model.Message {
	var all []model.Message
	for _, m := range prepared[:lastUser(prepared)] {
		if m.Role != model.RoleSystem {
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

// compaction is the newest; nil if there is none.
func (s *State) compaction() *Compaction {
	if len(s.Compactions) == 0 {
		return nil
	}
	return &s.Compactions[len(s.Compactions)-1]
}
