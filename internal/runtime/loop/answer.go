package loop

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/capstan-dev/capstan/internal/runtime/fence"
	"github.com/capstan-dev/capstan/internal/runtime/journal"
	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/schema"
)

const (
	// maxRejections is how often an answer that does not fit the schema is sent back.
	maxRejections = 2
	// maxViolations and maxViolationChars bound what the model is told of an answer that does not fit.
	maxViolations, maxViolationChars = 20, 300
	// maxSchemaChars bounds the schema that a model is told in words.
	maxSchemaChars = 32_000
)

// AnswerText is the text of the answer by now: what the check of the draft has made of it, else the last reply. It is empty
// before the first reply. The answer of a Turn that a tool has ended is the tool's.
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

// Answer is the JSON of a structured answer: one value, which may stand in one Markdown code block. Reasoning before it, as
// <think>...</think>, is no part of it. It is false for any other text. Whether the value fits a schema is another question.
func Answer(text string) (json.RawMessage, bool) {
	_, text = model.SplitThought(text, false)
	text = strings.TrimSpace(text)
	if opened, ok := strings.CutPrefix(text, "```"); ok {
		language, body, _ := strings.Cut(opened, "\n")
		body, closed := strings.CutSuffix(strings.TrimRight(body, " \t\r\n"), "```")
		if language = strings.TrimSpace(language); !closed || language != "" && !strings.EqualFold(language, "json") {
			return nil, false
		}
		text = strings.TrimSpace(body)
	}
	if !json.Valid([]byte(text)) {
		return nil, false
	}
	return json.RawMessage(text), true
}

// ended says whether a reply is the last one.
func (in *Input) ended(s *Step) *End {
	switch {
	case s.Reply.FinishReason == model.FinishRefusal:
		return &End{Reason: ModelRefused, Message: "the model refused to answer"}
	case s.Last:
		return &End{Reason: OutOfSteps, Message: fmt.Sprintf(
			"the turn was out of steps after %d, and answered from what was known by then: raise limits.maxSteps, or ask for less", in.State.steps())}
	case len(s.Reply.ToolCalls) == 0:
		return &End{Reason: Answered, Message: "the model answered"}
	}
	return nil
}

// steps is how many steps there were before the Turn was out of them.
func (s *State) steps() int {
	for i, step := range s.Steps {
		if step.Last {
			return i
		}
	}
	return len(s.Steps)
}

// judge checks an answer against the schema. One that does not fit is rejected, so that the model is asked again, at most so
// often; then it is the end. Whether an earlier run has rejected it already makes no difference.
func (in *Input) judge(s *Step, end *End) (*End, error) {
	if in.Output == nil || s.Reply.TooLong { // what is cut off fits no schema, and is too long to be sent back
		return end, nil
	}
	if in.State.rejections[s.Step] != nil {
		return nil, nil //nolint:nilnil // because the model is asked again
	}
	wrong := in.violations(s.Reply.Text)
	switch {
	case len(wrong) == 0:
		return end, nil
	case len(in.State.Rejections) >= maxRejections:
		return &End{Reason: OutputInvalid, Message: fmt.Sprintf(
			"the answer does not fit spec.output.schema, also after it was sent back %d times: %s", maxRejections, wrong[0])}, nil
	}
	return nil, in.Record(append(in.notOffered(s),
		journal.Record{Kind: journal.OutputRejected, Payload: Rejection{Step: s.Step, Message: rejection(wrong)}})...)
}

// notOffered returns the ends of the open calls of a last reply, as gate 1 would give them: no tool was offered.
func (in *Input) notOffered(s *Step) []journal.Record {
	var records []journal.Record
	for _, c := range in.open(s) {
		got := known(view{call: c.call})
		records = append(records, in.ending(s.Step, c, nil).failed(Refused, got.class, got.message))
	}
	return records
}

// violations are the places at which an answer does not fit the schema, a line each; none if it fits.
func (in *Input) violations(text string) []string { return violations(in.Output, text) }

func violations(output *schema.Schema, text string) []string {
	value, ok := Answer(text)
	if !ok {
		return []string{"it is not one JSON value and nothing else"}
	}
	var lines []string
	for _, v := range output.Validate(value) {
		lines = append(lines, violation(v))
	}
	return lines
}

// violation is one line, short whatever the answer holds.
func violation(v schema.Violation) string {
	message, _ := fence.Cap(fence.Line(v.Message), maxViolationChars)
	if v.Path == "" {
		return message
	}
	path, _ := fence.Cap(fence.Line(v.Path), maxViolationChars)
	return path + ": " + message
}

// rejection is what the model is told of an answer that does not fit.
func rejection(wrong []string) string {
	return rejected("Your answer was not accepted, as it does not fit the JSON Schema of the answer:", wrong,
		"Answer again: with the corrected JSON alone, without any text around it.")
}

// resultRejection is what the model is told of the result of a tool that was to end the Turn and does not fit.
func resultRejection(wrong []string) string {
	return rejected("The call was made, but its result was not accepted as the answer, as it does not fit the JSON Schema of the answer:", wrong,
		"Do not make the same call again for another form of its result. Answer with JSON that fits, alone and without any text around it.")
}

// rejected lists what is wrong between two lines.
func rejected(head string, wrong []string, remedy string) string {
	lines := []string{head}
	for _, w := range wrong[:min(len(wrong), maxViolations)] {
		lines = append(lines, "- "+w)
	}
	if more := len(wrong) - maxViolations; more > 0 {
		lines = append(lines, fmt.Sprintf("- and %d more", more))
	}
	return strings.Join(append(lines, remedy), "\n")
}

// nativeOutput is the schema for an endpoint that keeps to it by itself; empty for any other.
func (in *Input) nativeOutput(c *Candidate) json.RawMessage {
	if in.Output == nil || !c.StructuredOutput {
		return nil
	}
	return in.Output.Source
}

// outputNotes tell the model which form its answer must have. It gets the schema in words where its endpoint does not take it.
func (in *Input) outputNotes(c *Candidate) []model.Message {
	if in.Output == nil {
		return nil
	}
	notes := []model.Message{{
		Role: model.RoleSystem, Name: MessageOutputForm,
		Content: "Your final answer must be one JSON value that fits the JSON Schema of the answer, without any text around it.",
	}}
	if !c.StructuredOutput {
		notes = append(notes, model.Message{Role: model.RoleUser, Name: MessageOutputSchema, Content: schemaNote(in.Output.Source)})
	}
	return notes
}

// schemaNote shows a schema. Whoever makes a Turn has written it, so it has no more weight than the message, and is fenced: JSON's
// own escapes of <, > and & leave its meaning as it is.
func schemaNote(source json.RawMessage) string {
	var escaped bytes.Buffer
	json.HTMLEscape(&escaped, source)
	text, leftOut := fence.Cap(fence.Strip(escaped.String()), maxSchemaChars)
	label := "## JSON Schema of the answer"
	if leftOut > 0 {
		label += fmt.Sprintf("\nIt is too long: %d characters are left out at its end.", leftOut)
	}
	return fence.Untrusted(label, text)
}
