package loop

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/capstan-dev/capstan/internal/fairgate"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/prepare"
	"github.com/capstan-dev/capstan/internal/runtime/schema"
	"github.com/capstan-dev/capstan/internal/runtime/untrusted"
)

const (
	// maxRejections is the number of times that an answer is sent back because it does not fit the schema.
	maxRejections = 2
	// maxViolations and maxViolationChars bound the description of an answer that does not fit.
	maxViolations, maxViolationChars = 20, 300
	// maxSchemaChars bounds a schema that is part of the prompt, in characters.
	maxSchemaChars = 32_000
)

// AnswerText returns the current text of the model's answer: the result of the model's check of its draft, which is the
// corrected answer or the unchanged draft; without such a check, the last reply. The text is empty before the first
// reply. If a tool ended the Turn, the tool's result is the answer, and AnswerText does not apply.
func (s *State) AnswerText() string {
	last := s.LastStep()
	if last == nil {
		return ""
	}
	if r := s.reflection(last.Step); r != nil {
		return r.Text
	}
	return last.Reply.Text
}

// endAfter returns the End of the loop after a reply, or nil if the reply requests calls that must be made first.
func (run *runner) endAfter(s *Step) *End {
	switch {
	case s.Reply.FinishReason == model.FinishRefusal:
		return &End{Reason: ModelRefused, Message: "the model refused to answer"}
	case s.Last && hasNoAnswer(&s.Reply):
		return &End{Reason: OutOfSteps, Message: fmt.Sprintf(
			"the turn ran out of steps after %d, and the model gave no answer: raise limits.maxSteps, or ask for less",
			run.State.stepsTaken())}
	case s.Last:
		return &End{Reason: OutOfSteps, Message: fmt.Sprintf(
			"the turn ran out of steps after %d and gave its best answer: raise limits.maxSteps, or ask for less", run.State.stepsTaken())}
	case len(s.Reply.ToolCalls) == 0:
		return &End{Reason: Answered, Message: "the model answered"}
	}
	return nil
}

// stepsTaken returns the number of replies before the request for a final answer, or of all replies if there was no
// such request.
func (s *State) stepsTaken() int {
	for i, step := range s.Steps {
		if step.Last {
			return i
		}
	}
	return len(s.Steps)
}

// checkAnswer checks an answer against the schema. It returns end if the answer fits, and nil without an error if the
// answer was rejected, in this or an earlier run, so that the model is asked again. After maxRejections rejections in a
// Turn, it returns an End with the reason OutputInvalid. Without a schema, it rejects only a reply without an answer.
func (run *runner) checkAnswer(ctx context.Context, s *Step, end *End) (*End, error) {
	if run.State.rejections[s.Step] != nil {
		return nil, nil //nolint:nilnil // because the model is asked again
	}
	switch {
	case run.Output != nil && !s.Reply.TooLong:
	case run.lacksText(s):
		return nil, run.reject(s, Rejection{NoText: true, Message: noTextMessage})
	default: // a cut-off answer fits no schema and is too long to send back
		return end, nil
	}
	found := run.violations(ctx, s.Reply.Text)
	switch {
	case len(found) == 0:
		return end, nil
	case run.State.schemaRejections() >= maxRejections:
		return &End{Reason: OutputInvalid, Message: fmt.Sprintf(
			"the answer does not fit spec.output.schema, even after it was sent back %d times: %s", maxRejections, found[0])}, nil
	}
	return nil, run.reject(s, Rejection{Message: rejection(found)})
}

// reject records that the answer of a step was rejected, and the refusals of its calls.
func (run *runner) reject(s *Step, r Rejection) error {
	r.Step = s.Step
	return run.Record(append(run.notOfferedResults(s), journal.Record{Kind: journal.OutputRejected, Payload: r})...)
}

// noTextMessage is the message to a model that has requested only calls although none can be made any more.
const noTextMessage = "Your last reply was not accepted, because it has no answer. You cannot call any more tools. " +
	"Write your answer now, from the information you have."

// lacksText reports whether a last reply has only calls, which are not made, so that the Turn would end without any
// answer. It returns false after such a reply was sent back once.
func (run *runner) lacksText(s *Step) bool {
	return s.Last && hasNoAnswer(&s.Reply) &&
		!slices.ContainsFunc(run.State.Rejections, func(r Rejection) bool { return r.NoText })
}

// hasNoAnswer reports whether a reply has only calls, or ends with a call as text: many servers do not recognize calls
// in the reply to a request that offers no tools.
func hasNoAnswer(r *model.Reply) bool { return untrusted.Blank(r.Text) || model.EndsWithCall(r.Text) }

// notOfferedResults returns the results of the open calls of a reply to a request that offered no tools. It refuses the
// calls as gate 1 does.
func (run *runner) notOfferedResults(s *Step) []journal.Record {
	var records []journal.Record
	for _, c := range run.open(s) {
		got := knownTool(view{call: c.call})
		records = append(records, run.newResult(s.Step, c, nil).failed(Refused, got.class, got.message))
	}
	return records
}

// violations returns one line for each violation of the schema in an answer.
func (run *runner) violations(ctx context.Context, text string) []string {
	return violations(ctx, run.Output, text)
}

func violations(ctx context.Context, output *schema.Schema, text string) []string {
	done := fairgate.AcquireProcessor(ctx, len(text))
	value, ok := model.JSONAnswer(text)
	done()
	if !ok {
		return []string{"it must be one JSON value without other text"}
	}
	var lines []string
	for _, v := range output.Validate(ctx, value) {
		lines = append(lines, violation(v))
	}
	return lines
}

// violation describes a violation in one short line, whatever the answer contains.
func violation(v schema.Violation) string {
	message, _ := untrusted.Cap(untrusted.Line(v.Message), maxViolationChars)
	if v.Path == "" {
		return message
	}
	path, _ := untrusted.Cap(untrusted.Line(v.Path), maxViolationChars)
	return path + ": " + message
}

// rejection returns the message to the model about an answer that does not fit the schema.
func rejection(violations []string) string {
	return rejected("Your answer was not accepted. It does not fit the JSON Schema of the answer:", violations,
		"Answer again, with only the corrected JSON and no other text.")
}

// resultRejection returns the message to the model about the result of a tool that should end the Turn but does not fit
// the schema.
func resultRejection(violations []string) string {
	return rejected("The call was made, but its result was not accepted as the answer. It does not fit the JSON Schema of the answer:",
		violations,
		"Do not repeat the call to get its result in another form. Answer with only the corrected JSON and no other text.")
}

// rejected returns a message with head as the first line, the violations, and remedy as the last line.
func rejected(head string, violations []string, remedy string) string {
	lines := []string{head}
	for _, v := range violations[:min(len(violations), maxViolations)] {
		lines = append(lines, "- "+v)
	}
	if more := len(violations) - maxViolations; more > 0 {
		lines = append(lines, fmt.Sprintf("- and %d more", more))
	}
	return strings.Join(append(lines, remedy), "\n")
}

// enforcesSchema reports whether an endpoint itself makes the model keep to the schema of the answer. The result is the
// same for all requests of a Turn to the endpoint, so that all these requests begin with the same messages.
func enforcesSchema(c *Candidate, p *prepare.Prompt) bool {
	return c.StructuredOutput && (!c.SchemaExcludesTools || len(p.Tools) == 0)
}

// nativeOutput returns the schema in its modern form if the endpoint enforces the schema itself, and nil otherwise.
func (run *runner) nativeOutput(c *Candidate, p *prepare.Prompt) json.RawMessage {
	if run.Output == nil || !enforcesSchema(c, p) {
		return nil
	}
	return schema.Modern(run.Output.Source)
}

// outputNotes returns the messages that describe the form of the answer. They contain the schema unless the endpoint
// enforces it.
func (run *runner) outputNotes(c *Candidate, p *prepare.Prompt) []model.Message {
	if run.Output == nil {
		return nil
	}
	notes := []model.Message{{
		Role: model.RoleSystem, Name: MessageOutputForm,
		Content: "Your final answer must be one JSON value that fits the JSON Schema of the answer. Write no other text.",
	}}
	if !enforcesSchema(c, p) {
		notes = append(notes, model.Message{Role: model.RoleUser, Name: MessageOutputSchema, Content: schemaNote(run.Output.Source)})
	}
	return notes
}

// schemaNote returns a message with a schema. The creator of a Turn wrote the schema, so it has no more weight than
// the user's message and is fenced. <, >, & and invisible characters are escaped as JSON, which does not change the
// meaning of the schema: the answer must fit it with these characters.
func schemaNote(source json.RawMessage) string {
	var escaped bytes.Buffer
	json.HTMLEscape(&escaped, source)
	text, leftOut := untrusted.Cap(untrusted.Escape(escaped.String()), maxSchemaChars)
	label := "## JSON Schema of the answer"
	if leftOut > 0 {
		label += fmt.Sprintf("\nIt is too long: the last %d characters are omitted.", leftOut)
	}
	return untrusted.Untrusted(label, text)
}
