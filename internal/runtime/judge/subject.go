package judge

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/capstan-dev/capstan/internal/runtime/model"
	"github.com/capstan-dev/capstan/internal/runtime/untrusted"
)

// The maximum lengths of the parts of a question, in characters. Longer texts are cut, and the question says so.
const (
	maxSystem       = 16_000
	maxConversation = 48_000
	maxMessage      = 16_000
	maxContext      = 24_000
	maxToolResult   = 8_000
	maxToolResults  = 32_000
	maxAnswer       = 32_000
)

// Subject is the answer to judge, with the texts that the model had received.
type Subject struct {
	// Messages are the conversation, in order, without the message context_pack, tool results and the answer.
	Messages []Message
	// LeftOut is the number of older messages that are not in Messages.
	LeftOut int
	// Request is the message of this Turn alone, which is also in Messages.
	Request string
	// Context is the text of the message context_pack. It may be empty.
	Context string
	// Tools are the results of tools, in order.
	Tools []ToolResult
	// Answer is the answer.
	Answer string
}

// Message is one message of the conversation.
type Message struct {
	// Role is system, user or assistant.
	Role model.Role
	Text string
}

// ToolResult is the text that the model received from one call.
type ToolResult struct {
	// Name is the name of the tool.
	Name string
	Text string
}

// Redacted returns a copy with redacted texts. redact removes from a text everything that no model may receive.
func (s *Subject) Redacted(redact func(text string) string) *Subject {
	out := *s
	out.Request, out.Context, out.Answer = redact(s.Request), redact(s.Context), redact(s.Answer)
	out.Messages, out.Tools = slices.Clone(s.Messages), slices.Clone(s.Tools)
	for i := range out.Messages {
		out.Messages[i].Text = redact(out.Messages[i].Text)
	}
	for i := range out.Tools {
		out.Tools[i].Name, out.Tools[i].Text = redact(out.Tools[i].Name), redact(out.Tools[i].Text)
	}
	return &out
}

// parts returns the fenced texts of a question. A part without text is left out, except for the answer.
func (s *Subject) parts() []string {
	var all []string
	add := func(label, body string) {
		if strings.TrimSpace(body) != "" {
			all = append(all, untrusted.Untrusted(label, body))
		}
	}
	add("## Conversation", s.conversation())
	add("## Context pack", capped(s.Context, maxContext))
	add("## Results of tools", s.toolResults())
	return append(all, untrusted.Untrusted("## Answer to judge", capped(s.Answer, maxAnswer)))
}

// conversation returns the conversation as plain text: "[role] text". Further lines of a message are indented, so no
// such line can begin with the tag of a speaker. The system prompts come first. A long conversation is cut to its
// newest messages.
func (s *Subject) conversation() string {
	lines := s.systemPrompts()
	var talk []string
	used, leftOut := 0, s.LeftOut
	for _, m := range slices.Backward(s.Messages) {
		if m.Role == model.RoleSystem {
			continue
		}
		if used >= maxConversation {
			leftOut++
			continue
		}
		text := "[" + speaker(m.Role) + "] " + indented(capped(m.Text, min(maxMessage, maxConversation-used)))
		talk, used = append(talk, text), used+utf8.RuneCountInString(text)
	}
	if leftOut > 0 {
		lines = append(lines, fmt.Sprintf("(%d older messages are left out)", leftOut))
	}
	for _, text := range slices.Backward(talk) {
		lines = append(lines, text)
	}
	return strings.Join(lines, "\n")
}

// systemPrompts returns the system prompts. If they are too long together, long prompts are cut, so that each prompt
// keeps at least an equal share.
func (s *Subject) systemPrompts() []string {
	var prompts []string
	rest := 0
	for _, m := range s.Messages {
		if m.Role == model.RoleSystem {
			prompts = append(prompts, m.Text)
			rest += utf8.RuneCountInString(m.Text)
		}
	}
	space := maxSystem
	for i, text := range prompts {
		rest -= utf8.RuneCountInString(text)
		prompts[i] = "[system] " + indented(capped(text, max(space-rest, space/(len(prompts)-i))))
		space = max(0, space-utf8.RuneCountInString(prompts[i]))
	}
	return prompts
}

// speaker returns the name of a role in its tag. Any role other than the assistant counts as the user, whose messages
// have the least weight.
func speaker(r model.Role) string {
	if r == model.RoleAssistant {
		return "assistant"
	}
	return "user"
}

// toolResults returns the results of tools as plain text, in the same form as the conversation.
func (s *Subject) toolResults() string {
	var lines []string
	used, leftOut := 0, 0
	for _, result := range slices.Backward(s.Tools) {
		if used >= maxToolResults {
			leftOut++
			continue
		}
		space := min(maxToolResult, maxToolResults-used)
		text := "[tool " + tagName(untrusted.Line(result.Name)) + "] " + indented(capped(result.Text, space))
		lines, used = append(lines, text), used+utf8.RuneCountInString(text)
	}
	if leftOut > 0 {
		lines = append(lines, fmt.Sprintf("(%d older results are left out)", leftOut))
	}
	slices.Reverse(lines)
	return strings.Join(lines, "\n")
}

// maxToolName is the maximum length of the name of a tool in a question, in characters.
const maxToolName = 64

// tagName returns the name of a tool for its tag.
func tagName(name string) string {
	name, _ = untrusted.Cap(strings.NewReplacer("[", "", "]", "").Replace(name), maxToolName)
	return name
}

// capped returns a text that is safe in a fence: escaped, without tags of speakers, and cut to a number of characters.
func capped(text string, limit int) string {
	kept, leftOut := untrusted.Cap(text, limit)
	kept = speakerTag.ReplaceAllString(strings.Trim(untrusted.Block(kept), "\n"), "&#91;$1")
	if leftOut > 0 {
		kept += fmt.Sprintf("\n(%d more characters are left out)", leftOut)
	}
	return kept
}

// indented returns a text in which all lines but the first are indented.
func indented(text string) string { return strings.ReplaceAll(text, "\n", "\n  ") }

// speakerTag matches the beginning of a text that looks like the tag of a speaker.
var speakerTag = regexp.MustCompile(`(?i)[\[［【〔]([\s/]*(?:system|user|assistant|tool|developer)\b)`)
