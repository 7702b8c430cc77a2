package loop

import (
	"context"
	"slices"

	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/untrusted"
)

// Names of the messages that the loop adds to the prepared messages.
const (
	// MessageOutputForm describes the form of the answer.
	MessageOutputForm = "output_form"
	// MessageOutputSchema contains the schema of the answer, for an endpoint that does not enforce it.
	MessageOutputSchema = "output_schema"
	// MessageSummary replaces older messages.
	MessageSummary = prepare.MessageSummary
	// MessageStepLimit asks for the best answer because the Turn is out of steps.
	MessageStepLimit = "step_limit"
	// MessageReflection asks the model to check a draft.
	MessageReflection = "reflection"
	// MessagePolicy asks a model to check an answer against output policies.
	MessagePolicy = "output_policy"
	// MessageEmptyReply asks for an answer after a reply with neither text nor calls.
	MessageEmptyReply = "empty_reply"
	// MessageViolations says why an answer does not fit the schema, or which output policies it violates.
	MessageViolations = "output_violations"
)

// conversation returns the messages for the model: the prompt, with notes of the loop before the user's message, and
// all steps. After a compaction, system messages, the user's message and the newest exchanges stay unchanged. The
// summary replaces all other messages and precedes the history that is kept. An exchange is kept whole or not at all.
// The reasons why output policies have refused answers are always kept, because the summary must not contain them.
func conversation(ctx context.Context, prepared []model.Message, s *State, notes ...model.Message) []model.Message {
	compaction := s.compaction()
	user := lastUser(prepared)
	all := make([]model.Message, 0, len(prepared)+len(notes)+2*len(s.Steps)+1)
	var summary []model.Message
	replaced := 0 // the number of messages at the beginning of the history that the summary replaces
	if compaction != nil {
		summary = []model.Message{summaryMessage(compaction.Summary)}
		replaced = max(0, len(history(prepared))-compaction.KeptHistory)
	}
	for _, m := range prepared[:user] {
		switch {
		case m.Role == model.RoleSystem, compaction == nil:
			all = append(all, sendable(ctx, m)) // an old history may contain unsendable arguments
		case m.Name == MessageSummary: // the newer summary includes this one
		case replaced > 0:
			replaced--
		default:
			all, summary = append(append(all, summary...), sendable(ctx, m)), nil
		}
	}
	all = append(append(all, notes...), summary...)
	all = append(all, prepared[user:]...)
	if compaction != nil {
		all = append(all, s.refusalsBefore(compaction.From)...)
	}
	for _, step := range s.Steps {
		if compaction == nil || step.Step >= compaction.From {
			all = append(all, s.exchange(ctx, step)...)
		}
	}
	return all
}

// refusalsBefore returns the messages about answers that output policies have refused before a step.
func (s *State) refusalsBefore(step int) []model.Message {
	var all []model.Message
	for i := range s.Rejections {
		if r := &s.Rejections[i]; r.IsByPolicies() && r.Step < step {
			all = append(all, model.Message{Role: model.RoleUser, Name: MessageViolations, Content: r.Message})
		}
	}
	return all
}

// messagesFor returns the conversation for a candidate. Data of other candidates is left out.
func (run *runner) messagesFor(ctx context.Context, c *Candidate, p *prepare.Prompt) []model.Message {
	all := conversation(ctx, p.Messages, run.State, run.outputNotes(c, p)...)
	for i := range all {
		if !all[i].ProviderData.MadeBy(c.ProviderName, c.Model, c.Endpoint) {
			all[i] = all[i].WithoutProviderData()
		}
	}
	return all
}

// lastUser returns the index of the user's message, or len(prepared) if there is none.
func lastUser(prepared []model.Message) int {
	for i, m := range slices.Backward(prepared) {
		if m.Role == model.RoleUser {
			return i
		}
	}
	return len(prepared)
}

// history returns the prepared messages of earlier Turns, without the summary of still earlier Turns.
func history(prepared []model.Message) []model.Message {
	var all []model.Message
	for _, m := range prepared[:lastUser(prepared)] {
		if m.Role != model.RoleSystem && m.Name != MessageSummary {
			all = append(all, m)
		}
	}
	return all
}

// summaryMessage returns a summary as a message. The summary was made from texts of users and tools, so it has no
// more weight than these texts and is fenced like them.
func summaryMessage(summary string) model.Message {
	return model.Message{Role: model.RoleUser, Name: MessageSummary, Content: untrusted.Untrusted(
		"## Summary of older messages\nIt replaces the conversation so far, and reports work on the request below "+
			"that is done: do not repeat that work.",
		untrusted.Block(summary),
	)}
}

// earlierSummary returns the text that a new summary starts from: the last summary of this Turn, or the summary of
// earlier Turns.
func (s *State) earlierSummary(p *prepare.Prompt) string {
	if c := s.compaction(); c != nil {
		return c.Summary
	}
	return p.Summary
}

// LastCompaction returns the newest compaction, or nil if there is none.
func (s *State) LastCompaction() *Compaction { return s.compaction() }

// compaction returns the newest compaction, or nil if there is none.
func (s *State) compaction() *Compaction {
	if len(s.Compactions) == 0 {
		return nil
	}
	return &s.Compactions[len(s.Compactions)-1]
}
